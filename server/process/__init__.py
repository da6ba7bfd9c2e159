"""The server as an operating system sees it: its port, its signals, and its worker processes."""
