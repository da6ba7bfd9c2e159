"""Where protobuf ends: requests become plain values here, results become messages, errors become statuses."""
