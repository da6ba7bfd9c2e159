"""Verifies that graphs compute the model, and measures the cost of a precision. Begin with certification.py."""
