"""Runs shown to people: `measuring` takes what there is to say, `composing` makes a report of it, `writing` its files.

A report is plain values (blocks.py); only html_page.py and markdown_page.py know the forms that it takes, and only they
escape. Charts are charts.py's, attention maps attention_map.py's.
"""
