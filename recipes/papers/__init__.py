"""The papers' models, and experiments about their claims: trainings by plan, small studies, their tables and pictures.

Begin with harness.py, the plans in `plans/`, and the pages in docs/experiments, which the commands fill in.
"""
