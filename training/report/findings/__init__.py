"""What a report measures, before anything is drawn."""
