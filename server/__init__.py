"""Serves bundles over gRPC. Nothing here, or below, imports torch."""

import os

# gRPC's core writes to standard error past every log format, in words of whoever connects: what a client says as it
# goes away, newlines included, some hundred megabytes a second of it. It reads this once, when `grpc` is imported.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
