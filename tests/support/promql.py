"""Metrics and labels that PromQL expressions name: as much of the language as ours use."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "observability"
RULES = sorted(FOLDER.joinpath("rules").glob("*.yaml"))
DASHBOARDS = sorted(FOLDER.joinpath("dashboards").glob("*.json"))
EMPTY = "Empty "
"""Begin of a panel's description that says when it has no series."""

_STRINGS = re.compile(r'"(?:[^"\\]|\\.)*"')
_SELECTOR = re.compile(r"\b([a-z_]+:[a-z_0-9:]+|(?:tidegate|envoy)_[a-z_0-9]+|up)\b(\{[^}]*\})?")
_MATCHER = re.compile(r"([a-z_]+)\s*(?:=~|!~|!=|=)")
_BY = re.compile(r"\b(?:by|on|group_left|group_right)\s*\(([^)]*)\)")


class Expression(NamedTuple):
    """An expression, and where it stands."""

    where: str
    text: str
    about: str = ""
    """The description of a panel; empty for rules."""

    @property
    def selectors(self) -> list[tuple[str, str]]:
        """Each metric with its label matchers, in braces or empty."""
        return [(found[1], found[2] or "") for found in _SELECTOR.finditer(self.text)]

    @property
    def matched(self) -> list[tuple[str, set[str]]]:
        """Each metric with the labels that it is selected by."""
        bare = Expression(self.where, _STRINGS.sub('""', self.text))
        return [(name, set(_MATCHER.findall(braces))) for name, braces in bare.selectors]

    @property
    def grouped(self) -> set[str]:
        """The labels by which series are grouped or joined."""
        lists = _BY.findall(_STRINGS.sub('""', self.text))
        return {each.strip() for found in lists for each in found.split(",") if each.strip()}


def rules() -> Iterator[dict[str, Any]]:
    """Yield all rules, of all files."""
    for path in RULES:
        for group in yaml.safe_load(path.read_text())["groups"]:
            yield from group["rules"]


def alerts() -> dict[str, dict[str, Any]]:
    """Return the alerts by name."""
    return {each["alert"]: each for each in rules() if "alert" in each}


def panels() -> Iterator[Expression]:
    """Yield the expressions of all dashboards, with Grafana's variables filled in."""
    for path in DASHBOARDS:
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel["targets"]:
                text = target["expr"].replace("$pool", ".*").replace("$__rate_interval", "1m")
                where = f"{path.stem}: {panel['title']}"
                yield Expression(where, text, panel["description"])


def expressions() -> Iterator[Expression]:
    """Yield all expressions of rules and dashboards."""
    for each in rules():
        yield Expression(each.get("alert") or each["record"], each["expr"])
    yield from panels()
