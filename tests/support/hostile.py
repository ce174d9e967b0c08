"""A folder in which a user may stand: it holds packages of our names and of what we import."""

from __future__ import annotations

import sys
from pathlib import Path

NAMES = (
    *("protos", "ext_proc", "xds_server", "tidegate", "tidegate_api", "tidegate_common"),
    *("bench", "tools", "tests", "support", "models", "toyllm"),
    *("envoy", "google", "grpc", "yaml", "numpy", "pydantic", "structlog", "aiohttp", "uvloop"),
)
TIDEGATE = str(Path(sys.executable).with_name("tidegate"))
"""The console script: unlike ``python -m tidegate`` it does not look into the current folder."""


def fill(folder: Path) -> Path:
    """Put packages into ``folder`` that fail where they are imported; return it."""
    for name in NAMES:
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(f"raise SystemExit('{name} was imported')\n")
    return folder
