"""A report as a page: its sections, and how they are written as HTML and Markdown."""
