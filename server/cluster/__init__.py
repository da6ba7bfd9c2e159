"""Many machines, by Ray: serving on Ray Serve, decoding of files on Ray Data. docs/cluster.md has the alternatives.

It builds on the server, its engine and the library. Ray comes with the extra `cluster`; nothing else imports it.
"""
