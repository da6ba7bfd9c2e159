"""A model, or several, decoded step by step: what a step hands to the search."""
