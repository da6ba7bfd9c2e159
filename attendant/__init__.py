"""Attendant: attention sequence-to-sequence models, trained, exported to ONNX and served.

The four packages in here stand at the top of the repository (`runtime`, `training`, `export`, `server`); this folder
links to them, so that what is installed is `attendant.*` alone. CONTRIBUTING.md says why.
"""
