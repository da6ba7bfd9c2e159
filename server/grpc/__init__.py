"""The gRPC port and the service Seq2Seq, whose methods the HTTP port and Ray call as well.

Begin with `service.py`, whose methods read requests, submit them and make messages (`requests.py`). `handlers.py` leads
from gRPC's calls to these methods. Protobuf's messages end here: engines get plain values.
"""
