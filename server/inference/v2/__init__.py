"""The messages of `inference`, generated from protos/inference/open_inference.proto by `make protos`."""
