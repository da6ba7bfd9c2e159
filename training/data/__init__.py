"""From files to batches: pairs are read (`pairs.py`), tokenized (`tokenization.py`, `corpus.py`), and batched.

`config.py` has the tables of the recipe. `fetch` builds the data of the recipes that come along. Begin with `pairs.py`.
"""
