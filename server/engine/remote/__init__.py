"""Engines in worker processes: both ends of the socket between them and the server."""
