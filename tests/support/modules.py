"""The modules of the project."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("ext_proc", "gateway", "xds_server", "tidegate", "tidegate_api", "tidegate_common")
LABORATORY = ("bench",)
PACKAGES = (*PRODUCT, *LABORATORY, "tools")


def _modules() -> dict[str, Path]:
    """Return the files of all modules by name, but those of generated code."""
    found = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            if "_pb2" in path.name:
                continue
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = _modules()
