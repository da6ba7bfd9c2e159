"""The engine decodes requests by continuous batching. It depends on neither gRPC nor Prometheus.

The server's process submits requests through `client.py`, which admits them and passes them to a pool of workers
(`pool.py`), processes of their own; `dispatch.py` decides which worker gets which request, and when. Each worker runs
one `Engine`. Begin with `messages.py` (the values), `engine.py` (a round) and `client.py` (the way there).
"""
