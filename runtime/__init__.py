"""The base that needs no torch and that all other packages import: bundles, tokenizers, steppers, decoding, requests.

`bundle_stepper.open_checked` opens the model of a bundle, `decoding.batch.RunningBatch` decodes with it. Begin with
`stepper.py`, the interface of a model for decoding.
"""
