"""The Open Inference Protocol, over gRPC and HTTP.

Begin with `service.py`: it turns a tensor of texts into requests like Seq2Seq's, and their results into tensors.
`http.py` reads the protocol's JSON; `v2` is generated from the proto.
"""
