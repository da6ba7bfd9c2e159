"""From files to batches: reading, grouping references, cleaning, bucketing."""
