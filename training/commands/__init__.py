"""The commands of training: each has `NAME_parser`, its options, and `run_NAME`, which runs it. Begin with train.py."""
