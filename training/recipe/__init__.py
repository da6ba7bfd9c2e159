"""A recipe: one TOML file that says a whole experiment."""
