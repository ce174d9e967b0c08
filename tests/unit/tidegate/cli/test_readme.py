"""The README's fleet is one, and its links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

from xds_server.fleet.load import load_text

ROOT = Path(__file__).resolve().parents[4]
README = (ROOT / "README.md").read_text()


def test_the_fleet_of_the_readme_is_valid() -> None:
    """Whoever copies it gets a fleet."""
    (fleet,) = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
    assert load_text(fleet, "README.md").pools[0].name == "llm"


def test_links_of_the_readme_lead_to_files() -> None:
    """No link inside the project is dead."""
    links = re.findall(r"\]\(([^)]+)\)", README)
    assert links
    for link in links:
        assert link.startswith("https://") or (ROOT / link).exists(), link
