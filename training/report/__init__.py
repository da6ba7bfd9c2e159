"""Runs shown to people: `measuring` takes what there is to say, `composing` draws it, `writing` makes the files.

What a report says is page/sections.jinja; only the templates of the two forms know HTML and Markdown. Charts are
charts.py's, attention maps attention_map.py's.
"""
