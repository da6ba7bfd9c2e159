"""Where protobuf stops: requests become plain values here, results become messages, errors become status codes."""
