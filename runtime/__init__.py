"""The torch-free ground floor: bundle, tokenizers, stepper, decoding. Imports nothing above it."""
