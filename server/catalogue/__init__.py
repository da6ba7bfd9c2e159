"""The served models: which versions there are, which one answers a request, and the repositories that they come from.

Begin with `models.py`. `reconciler.py` follows the folders, whose layout is in `folders.py`.
"""
