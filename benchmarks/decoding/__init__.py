"""Decoding without a server: every system in processes of its own, on the same sentences, in turns."""
