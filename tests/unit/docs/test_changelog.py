"""The version of the package is the one that the CHANGELOG leads to."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from packaging.version import Version

ROOT = Path(__file__).resolve().parents[3]


def test_the_version_follows_the_changelog() -> None:
    """The newest release, or a development version above it while `Unreleased` has entries."""
    text = (ROOT / "CHANGELOG.md").read_text()
    version = Version(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])
    releases = [Version(found) for found in re.findall(r"^## (\d\S*) - \d{4}", text, re.MULTILINE)]
    assert releases == sorted(releases, reverse=True)
    _, _, unreleased = text.partition("\n## Unreleased\n")
    if unreleased.partition("\n## ")[0].strip():
        assert version.is_devrelease
        assert version > releases[0]
    else:
        assert version == releases[0]
