"""What measures speed and cost; each runs by one command."""
