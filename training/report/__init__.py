"""Runs shown to people: `measuring` takes the measurements (its parts are `curves`, `judging` and `gradients`),
`pictures` draws them, `page` writes the files.

The sections of a report are templates/sections.jinja; only the templates of the two forms have HTML and Markdown.
"""
