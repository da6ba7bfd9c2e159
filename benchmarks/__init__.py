"""Measures speed and cost of Attendant and its peers: `python -m benchmarks` (docs/performance.md).

`__main__.py` lists the suites and their parts. `harness.py` measures systems in turns, `results.py` writes the pages.
"""

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
DATA: Final = Path(__file__).parent / "data"  # Templates and tables.
