"""Serves bundles over gRPC. Nothing here, or below, imports torch."""

import os

# gRPC's core writes to standard error past every log format, and with text of the other end: the reason that a client
# sends with its end, newlines included, some hundred megabytes a second. It reads this once, when `grpc` is imported.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
