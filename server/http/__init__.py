"""The HTTP port: the API in JSON, metrics and probes, and the playground.

Begin with `app.py`, which has the paths. `endpoints.py` turns requests into calls of the methods that gRPC serves,
and `bodies.py` reads and writes its JSON.
"""
