"""What measures speed and cost; each runs by one command."""

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
"""The project's folder."""
