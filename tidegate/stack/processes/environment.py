"""Environment variables of the services and load processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate_common.children import ROOT, child_environment

if TYPE_CHECKING:
    from pathlib import Path


def service_environment(installed: Path | None = None) -> dict[str, str]:
    """Return this process's environment, with the project importable from any folder.

    Args:
        installed: Installation of the project to import from, such as ``build/compiled``;
            default: ``ROOT``.
    """
    return {**child_environment(installed or ROOT), "PYTHONUNBUFFERED": "1"}
