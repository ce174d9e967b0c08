"""YAML and JSON to plain values with lines."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xds_server.fleet import document
from xds_server.fleet.document import MAX_DEPTH, DocumentError, read

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(min_codepoint=32, max_codepoint=126)),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.text(st.characters(min_codepoint=97, max_codepoint=122)), inner, max_size=4
        )
    ),
    max_leaves=20,
)


def refused(text: str) -> DocumentError:
    """Return why the text is rejected."""
    with pytest.raises(DocumentError) as caught:
        read(text)
    return caught.value


@given(PLAIN, st.sampled_from([None, 2, "\t"]))
def test_json_is_parsed_as_json(value, indent) -> None:
    """Every JSON document has the same value here, with any indentation."""
    text = json.dumps({"value": value}, indent=indent)
    assert read(text).plain() == {"value": value}


@given(st.text(max_size=200))
def test_any_text_is_parsed_or_rejected(text: str) -> None:
    """An invalid text raises only DocumentError."""
    with contextlib.suppress(DocumentError):
        assert read(text).line >= 1


@pytest.mark.parametrize("word", ["on", "off", "yes", "no", "12:30", "2024-01-01", "0x1f", "1_000"])
def test_yaml_1_1_words_are_text(word: str) -> None:
    """A zone called `no` has the name "no"."""
    assert read(f"a: {word}").plain() == {"a": word}


def test_nodes_know_their_lines() -> None:
    """Errors name the line."""
    root = read("a:\n- b: 1\n- c:\n    d: 2\n")
    assert root.closest(("a", 1, "c", "d")).line == 4
    assert root.closest(("a", 1, "x", "y")).line == 3
    assert root.closest(("a", 7)).line == 2
    assert root.holds(("a", 0, "b"))
    assert not root.holds(("a", 0, "x"))


def test_a_repeated_key_is_rejected() -> None:
    """YAML parsers would silently use the last one."""
    error = refused("a: 1\nb: 2\na: 3")
    assert error.line == 3
    assert "already given in line 1" in error.reason


@pytest.mark.parametrize("key", ["1", "true", "null"])
def test_a_key_is_text(key: str) -> None:
    """The error says to write it in quotes."""
    assert f'"{key}" in quotes' in refused(f"{key}: x").reason


def test_a_collection_is_no_key() -> None:
    """YAML allows it; a fleet does not."""
    assert refused("? [a]\n: b").reason == "a key must be text"


def test_tags_are_rejected() -> None:
    """No document can name a Python object."""
    assert "not accepted" in refused("a: !!python/object/apply:os.system [ls]").reason
    assert read("a: !!str 1").plain() == {"a": "1"}


def test_aliases_and_merges_are_followed() -> None:
    """Explicit keys take precedence over merged ones."""
    root = read("base: &b {x: 1, y: 2}\none: {<<: *b, y: 3}\ntwo: {<<: [*b, {z: 4}]}")
    assert root.plain()["one"] == {"x": 1, "y": 3}
    assert root.plain()["two"] == {"x": 1, "y": 2, "z": 4}


def test_a_merge_takes_mappings_only() -> None:
    """Merging text is an error."""
    assert "merges mappings" in refused("a:\n  <<: text").reason


def test_an_alias_needs_its_anchor() -> None:
    """The error names the alias."""
    assert "*absent" in refused("a: *absent").reason


def test_an_alias_does_not_contain_itself() -> None:
    """A document is a tree."""
    assert "contains itself" in refused("a: &a [*a]").reason


def test_aliases_are_counted_as_often_as_used() -> None:
    """Nine lines cannot expand to a billion values."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)]
    assert "aliases counted" in refused("\n".join(lines)).reason


def test_depth_is_bounded() -> None:
    """The deepest document that is read has `MAX_DEPTH` levels."""
    assert read("[" * MAX_DEPTH + "]" * MAX_DEPTH)
    assert "deep" in refused("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1)).reason


def test_depth_is_bounded_through_aliases() -> None:
    """Aliases count for the depth like brackets."""
    lines = ["a0: &a0 [x]"] + [f"a{n}: &a{n} [*a{n - 1}]" for n in range(1, MAX_DEPTH + 1)]
    assert "deep" in refused("\n".join(lines)).reason


def test_size_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A text at the bound is parsed, one byte more is not; bytes count, not characters."""
    monkeypatch.setattr(document, "MAX_BYTES", 16)
    assert read("a: " + "x" * 13)
    assert "larger" in refused("a: " + "x" * 14).reason
    assert "larger" in refused("a: " + "ä" * 7).reason


def test_values_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The list and its entries count."""
    monkeypatch.setattr(document, "MAX_VALUES", 4)
    assert read("[1, 2, 3]")
    assert "more than 4 values" in refused("[1, 2, 3, 4]").reason


@pytest.mark.parametrize(
    ("text", "line"), [("", None), ("# nothing", None), ("a: [1", 1), ("a: 1\n---\nb: 2", 2)]
)
def test_an_invalid_document_is_rejected(text: str, line: int | None) -> None:
    """Empty, broken and repeated documents have messages of their own."""
    error = refused(text)
    assert error.line == line


def test_unprintable_characters_are_rejected() -> None:
    """A binary file is not a fleet."""
    assert "not YAML" in refused("\x00\x01").reason
