"""A report as a page: its blocks, and how they are written as HTML and Markdown."""
