"""The messages and stubs of `attendant.v1`, generated from protos/attendant/v1/seq2seq.proto by `make protos`."""
