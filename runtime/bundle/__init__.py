"""The bundle on disk: its manifest, tokenizers, graphs and golden examples, and the checks of untrusted files.

`bundle.open_bundle` opens one. Begin with `manifest.py`, the contract between export and server.
"""
