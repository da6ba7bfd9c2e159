"""Run directories: `directory.py` lists their files, `checkpoint.py` saves and resumes, `corpora.py` prepares the data.

Begin with `directory.py`. `loading.py` opens a run to evaluate, export or continue from it.
"""
