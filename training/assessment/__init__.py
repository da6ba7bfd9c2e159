"""Runs and bundles, named by their paths, measured on held-out data."""
