"""Serving on many machines, by Ray Serve. docs/cluster.md has the alternatives.

It builds on the server. Ray comes with the extra `cluster`; nothing else imports it.
"""
