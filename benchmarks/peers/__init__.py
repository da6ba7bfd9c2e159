"""Attendant beside what a user would take instead, on the same work, in turns, on the same machine."""
