"""What an operator sees of the server: metrics and log lines."""
