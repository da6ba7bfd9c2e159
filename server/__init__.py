"""Serves bundles over gRPC. Nothing here, or below, imports torch."""
