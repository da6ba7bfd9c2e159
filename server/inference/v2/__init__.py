"""The messages and stubs of `inference`, generated from protos/inference/open_inference.proto by `make protos`."""
