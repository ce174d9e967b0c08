"""Makes the toy model's package importable, as Triton's stub does for a model folder."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "models" / "toy-llm"))
