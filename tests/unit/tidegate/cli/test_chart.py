"""The Helm chart without Helm: its values, its schema, and the manifests rendered of it.

Whether Helm renders it and an API server takes it is held by ``tests/kubernetes``.
"""

from __future__ import annotations

import copy
import json
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from kubernetes.chart import CHART, DIGESTS, FILES, MANIFESTS, ROOT, VALUES, digests

SCHEMA = json.loads((CHART / "values.schema.json").read_text())
DEFAULTS = yaml.safe_load((CHART / "values.yaml").read_text())
MAPS = {"annotations", "fleet", "istioSelector", "labels", "limits", "nodeSelector", "poolSelector",
        "requests"}  # fmt: skip
"""Objects whose keys are the user's."""


def merged(given: Any, over: Any) -> Any:
    """Return values with others over them, as Helm merges them."""
    if not isinstance(given, dict) or not isinstance(over, dict):
        return copy.deepcopy(over)
    known = {key: merged(given[key], value) for key, value in over.items() if key in given}
    return {**given, **over, **known}


def refused(values: Any) -> str | None:
    """Return why the schema refuses values; ``None`` if it takes them."""
    error = next(jsonschema.Draft7Validator(SCHEMA).iter_errors(values), None)
    return None if error is None else f"{'/'.join(map(str, error.absolute_path))}: {error.message}"


def test_the_chart_is_of_this_version() -> None:
    """Helm wants a version of three numbers, and shows the one of the program beside it."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert chart["appVersion"] == project
    assert chart["version"].replace("-dev.", ".dev") == project


def test_the_schema_is_one() -> None:
    """Of the draft that it names."""
    jsonschema.Draft7Validator.check_schema(SCHEMA)


def test_there_are_sets_of_values() -> None:
    """Which tests render, lint and apply."""
    assert len(VALUES) == 21


@pytest.mark.parametrize("path", [None, *VALUES], ids=lambda path: path.stem if path else "default")
def test_the_schema_takes_the_values(path: Path | None) -> None:
    """The defaults, and each set over them."""
    over = yaml.safe_load(path.read_text()) if path else {}
    assert refused(merged(DEFAULTS, over)) is None


def _places(values: dict[str, Any], place: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found = [place]
    for key, value in values.items():
        if isinstance(value, dict) and key not in MAPS:
            found += _places(value, (*place, key))
    return found


@pytest.mark.parametrize("place", _places(DEFAULTS), ids=lambda place: "/".join(place) or "top")
def test_an_unknown_value_is_refused(place: tuple[str, ...]) -> None:
    """At each place: a name that is mistyped would do nothing."""
    values = copy.deepcopy(DEFAULTS)
    at = values
    for key in place:
        at = at[key]
    at["mistyped"] = 1
    assert "mistyped" in (refused(values) or "")


def _described(schema: dict[str, Any], values: dict[str, Any], place: str) -> list[str]:
    wrong = []
    for key, each in schema.get("properties", {}).items():
        if key == "global" or key in MAPS:
            continue
        if key not in values:
            wrong.append(f"{place}/{key}")
        elif isinstance(values[key], dict):
            wrong += _described(each, values[key], f"{place}/{key}")
    return wrong


def test_each_value_of_the_schema_has_a_default() -> None:
    """So that values.yaml shows all there are, but what a list may hold and the issuer's group."""
    assert _described(SCHEMA, DEFAULTS, "") == []


def test_the_manifests_are_rendered_of_this_chart() -> None:
    """Neither was changed without the other; if this fails, run `make manifests`."""
    assert json.loads((MANIFESTS / DIGESTS).read_text()) == digests()
    assert sorted(path.name for path in MANIFESTS.glob("*.yaml")) == sorted(FILES)
