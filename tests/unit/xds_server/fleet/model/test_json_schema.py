"""The published JSON Schema agrees with the loader."""

from __future__ import annotations

from pathlib import Path

import jsonschema
import pytest

from xds_server.fleet import document
from xds_server.fleet.model.fleet import json_schema

EXAMPLES = sorted(Path(__file__).parents[5].joinpath("docs/examples").glob("*.yaml"))


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft202012Validator:
    """Return a validator of fleet files."""
    return jsonschema.Draft202012Validator(json_schema())


def test_the_schema_is_one(validator: jsonschema.Draft202012Validator) -> None:
    """It is valid in the dialect that it names."""
    validator.check_schema(validator.schema)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_examples_are_valid(validator, example: Path) -> None:
    """Every example of the documentation passes."""
    validator.validate(document.read(example.read_text()).plain())


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "pools: []",
        "pools: [{match: {}}]",
        "pools: [{name: A, match: {}}]",
        "pools: [{name: a, match: {}, extra: 1}]",
        "pools: [{name: a, match: {}, endpoints: [{id: r1}]}]",
        "pools: [{name: a, match: {}, variants: [{name: v, model_version: 1}]}]",
        "pools: [{name: a, match: {}, health: {interval: soon}}]",
    ],
)
def test_bad_files_are_not(validator, text: str) -> None:
    """An editor that uses the schema marks what the loader refuses."""
    assert not validator.is_valid(document.read(text).plain())


def test_fields_are_described(validator) -> None:
    """An editor can show what a field means."""
    variant = validator.schema["$defs"]["VariantSpec"]["properties"]
    assert variant["weight"]["description"].startswith("Relative share")


def test_every_field_is_documented(validator) -> None:
    """The pages of the fleet file know each field by name."""
    pages = EXAMPLES[0].parents[1].joinpath("reference").glob("*-fields.md")
    page = "".join(each.read_text() for each in pages)
    models = [validator.schema, *validator.schema["$defs"].values()]
    fields = {name for model in models for name in model["properties"]}
    assert {name for name in fields if name not in page} == set()
