"""Serves bundles over gRPC. Nothing here, or below, imports torch."""

import os

# gRPC's core writes to standard error past every log format. Its lines contain text that a client chooses: the reason
# that it sends when it ends a connection, newlines included, some hundred megabytes a second. gRPC reads this variable
# once, when `grpc` is imported.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
