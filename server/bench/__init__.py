"""`attendant bench`: measures how fast a bundle is served on this host.

`command.py` starts servers, measures and reports; `load.py` generates the load, also for the project's own benchmarks.
"""
