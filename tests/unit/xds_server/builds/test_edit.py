"""Edits of serialized messages."""

from __future__ import annotations

import contextlib

import pytest
from envoy.config.cluster.v3 import cluster_pb2
from envoy.config.core.v3 import extension_pb2
from google.protobuf import wrappers_pb2
from hypothesis import given
from hypothesis import strategies as st

from xds_server.builds.edit import Drop, Into, edited

POLICIES = (Into(41), Into(1), Into(4))
STRING = "google.protobuf.StringValue"


def cluster(*names: str) -> cluster_pb2.Cluster:
    """Return a cluster with a policy of each name, whose settings are a long text."""
    made = cluster_pb2.Cluster(name="c", alt_stat_name="other")
    for name in names:
        one = made.load_balancing_policy.policies.add().typed_extension_config
        one.name = name
        one.typed_config.Pack(wrappers_pb2.StringValue(value=name * 100))
    return made


def test_a_field_deep_inside_is_dropped() -> None:
    """Lengths around it are written anew; all else stays."""
    new = cluster_pb2.Cluster.FromString(
        edited(cluster("a", "b").SerializeToString(), POLICIES, Drop(frozenset({1})))
    )
    wanted = cluster("a", "b")
    for policy in wanted.load_balancing_policy.policies:
        policy.typed_extension_config.ClearField("name")
    assert new == wanted


def test_an_any_is_entered_by_its_type() -> None:
    """Another type stays, byte for byte."""
    data = cluster("a").SerializeToString()
    drop = Drop(frozenset({1}))
    new = cluster_pb2.Cluster.FromString(edited(data, (*POLICIES, Into(2, STRING)), drop))
    (policy,) = new.load_balancing_policy.policies
    packed = policy.typed_extension_config.typed_config
    assert packed.type_url == f"type.googleapis.com/{STRING}"
    assert packed.value == b""
    assert edited(data, (*POLICIES, Into(2, "google.protobuf.BytesValue")), drop) == data


def test_elements_are_dropped_by_their_name() -> None:
    """The others of the list stay."""
    made = cluster()
    made.health_checks.add()
    for name in "aba":
        made.filters.add(name=name)
    new = cluster_pb2.Cluster.FromString(
        edited(made.SerializeToString(), (), Drop(frozenset({40}), "a"))
    )
    assert [each.name for each in new.filters] == ["b"]
    assert len(new.health_checks) == 1


def test_a_path_that_leads_nowhere_changes_nothing() -> None:
    """Not a byte, so that the version stays."""
    data = cluster("a").SerializeToString()
    assert edited(data, (Into(99),), Drop(frozenset({1}))) == data
    assert edited(data, POLICIES, Drop(frozenset({99}))) == data


@given(st.binary(max_size=200))
def test_any_bytes_are_edited_or_refused(data: bytes) -> None:
    """There is no other error, whatever a resource contains."""
    with contextlib.suppress(ValueError):
        edited(data, (Into(1), Into(2, "x")), Drop(frozenset({1, 2}), "n"))


@given(st.text(max_size=400), st.text(max_size=400), st.binary(max_size=400))
def test_what_is_left_is_what_the_library_leaves(name: str, url: str, value: bytes) -> None:
    """Fields of any length."""
    message = extension_pb2.TypedExtensionConfig(name=name)
    message.typed_config.type_url, message.typed_config.value = url, value
    data = message.SerializeToString()
    message.ClearField("name")
    assert edited(data, (), Drop(frozenset({1}))) == message.SerializeToString()


@pytest.mark.parametrize("data", [b"\x0a\x05ab", b"\x0b", b"\x80" * 11, b"\x0d\x00"])
def test_what_is_no_message_is_an_error(data: bytes) -> None:
    """Cut off, a group, an endless number."""
    with pytest.raises(ValueError, match=r"byte \d"):
        edited(data, (), Drop(frozenset({1})))
