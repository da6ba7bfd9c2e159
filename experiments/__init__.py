"""What the papers claim, shown on runs: trainings by plan, their tables, pictures and pages (docs/experiments)."""
