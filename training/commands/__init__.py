"""What `python -m training` does: one file per subcommand, each with its parser and its `run`."""
