"""Adds the toy model's package to the import path, as Triton's stub does."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "models" / "toy-llm"))
