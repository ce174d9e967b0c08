"""The README's example fleet and links are valid."""

from __future__ import annotations

import re
from pathlib import Path

from xds_server.fleet.load import load_text

ROOT = Path(__file__).resolve().parents[4]
README = (ROOT / "README.md").read_text()


def test_the_fleet_of_the_readme_is_valid() -> None:
    """The YAML block of the README is a valid fleet."""
    (fleet,) = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
    assert load_text(fleet, "README.md").pools[0].name == "llm"


def test_links_of_the_readme_lead_to_files() -> None:
    """Every relative link of the README names an existing file."""
    links = re.findall(r"\]\(([^)]+)\)", README)
    assert links
    for link in links:
        assert link.startswith("https://") or (ROOT / link).exists(), link
