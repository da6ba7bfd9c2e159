"""Options that several commands have."""

import argparse
from pathlib import Path

from attendant.runtime.errors import UserError


def add_data_options(parser: argparse.ArgumentParser) -> None:
    """--split or --data, for `read_chosen` (training/assessment/session.py)."""
    data = parser.add_mutually_exclusive_group()
    data.add_argument("--split", choices=("test", "validation"), default="test", help="which split (default: test)")
    data.add_argument(
        "--data",
        metavar="FILE.tsv|SOURCE,TARGET",
        help="other data: a file of pairs, also FILE[COLUMN,COLUMN]; or two files whose lines correspond "
        "(docs/data.md)",
    )


def check_folder(option: str, path: Path) -> None:
    """Raises UserError where a file could not be written for want of its directory; said before anything is decoded."""
    if not path.parent.is_dir():
        raise UserError(f"{option} {path}: there is no directory {path.parent}: make it first")
