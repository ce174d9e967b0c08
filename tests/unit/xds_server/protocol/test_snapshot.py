"""Snapshots: hashes, sharing, bounds."""

import pytest
from google.protobuf.any_pb2 import Any as AnyMessage
from hypothesis import given
from hypothesis import strategies as st

from xds_server.protocol.snapshot import Resource, Snapshot, TypeSet, changed_names

T = "type.googleapis.com/test.Thing"


def test_versions_follow_content_only() -> None:
    """X20, X34: equal bytes have equal versions in any order; other bytes have another version."""
    one = Snapshot.of({T: {"a": b"1", "b": b"2"}})
    two = Snapshot.of({T: {"b": b"2", "a": b"1"}})
    other = Snapshot.of({T: {"a": b"1", "b": b"3"}})
    assert one == two
    assert hash(one) == hash(two)
    assert one.version(T) == two.version(T) != other.version(T)
    assert one.resources(T)["a"].version == other.resources(T)["a"].version


def test_a_version_is_stable_across_restarts() -> None:
    """X20: the version is a hash of content without a per-process seed."""
    version = Snapshot.of({T: {"a": b"x"}}).resources(T)["a"].version
    assert version == "5c7401c0ec22eeeeeaf06c6480b2cd11"


def test_a_resource_is_packed_once_as_any() -> None:
    """X35, X64: the shared bytes are a google.protobuf.Any of the message."""
    packed = AnyMessage.FromString(Snapshot.of({T: {"a": b"body"}}).resources(T)["a"].any)
    assert (packed.type_url, packed.value) == (T, b"body")


def test_equal_resources_are_shared_with_the_previous_snapshot() -> None:
    """X35: an unchanged resource is the same object."""
    old = Snapshot.of({T: {"a": b"1", "b": b"2"}})
    new = Snapshot.of({T: {"a": b"1", "b": b"3"}}, previous=old)
    assert new.resources(T)["a"] is old.resources(T)["a"]
    assert new.resources(T)["b"] is not old.resources(T)["b"]


def test_an_absent_type_differs_from_an_empty_one() -> None:
    """X9: a missing type is not served, an empty one is an intended empty set."""
    empty, absent = Snapshot.of({T: {}}), Snapshot.of({})
    assert empty.serves(T)
    assert not absent.serves(T)
    assert empty != absent
    assert absent.version(T) == ""
    assert empty.version(T) != ""
    assert dict(absent.resources(T)) == {}
    assert absent.type_urls == ()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({T: {"": b""}}, "cannot name a resource"),
        ({T: {"*": b""}}, "cannot name a resource"),
        ({"": {}}, "empty type URL"),
    ],
)
def test_what_could_not_be_requested_is_rejected(content, words: str) -> None:
    """An empty name or type, and the wildcard as a name."""
    with pytest.raises(ValueError, match=words):
        Snapshot.of(content)


def test_assignment_names_follow_the_clusters_by_default() -> None:
    """X30: the assignment's name is the service name, else the cluster's."""
    snapshot = Snapshot.of({}, eds_names={"c": "service"})
    assert snapshot.eds_name("c") == "service"
    assert snapshot.eds_name("d") == "d"


def test_it_shows_how_much_it_holds() -> None:
    """The representation names types and counts, not bodies."""
    assert repr(Snapshot.of({T: {"a": b"secret"}})) == "Snapshot({'Thing': 1})"
    assert Snapshot.of({}) != 1


@given(st.dictionaries(st.text(min_size=1).filter(lambda n: n != "*"), st.binary(), max_size=5))
def test_a_set_version_distinguishes_sets(messages: dict[str, bytes]) -> None:
    """Two sets have one version exactly when they are equal."""
    renamed = {f"{name}x": body for name, body in messages.items()}
    version = Snapshot.of({T: messages}).version(T)
    assert version == Snapshot.of({T: dict(reversed(messages.items()))}).version(T)
    assert (version == Snapshot.of({T: renamed}).version(T)) == (messages == renamed)


def test_the_plain_form_follows_from_the_contents() -> None:
    """Whatever a snapshot was made from, its plain form is computed from what it contains."""
    asked = []

    def plain(snapshot: Snapshot) -> dict[str, dict[str, bytes]]:
        asked.append(1)
        return {T: {name: b"plain " + one.any[-1:] for name, one in snapshot.resources(T).items()}}

    first = Snapshot.of({T: {"a": b"1"}, "u": {"x": b"x"}}, plain=plain)
    other = Snapshot.of({T: {"a": b"2"}})
    assert asked == []  # made only where a client needs it
    mixed = first.with_types(other, [T])
    more = first.joined({T: [Snapshot.of({T: {"b": b"3"}}).resources(T)["b"]]})
    assert first.plain == Snapshot.of({T: {"a": b"plain 1"}, "u": {"x": b"x"}})
    assert mixed.plain == Snapshot.of({T: {"a": b"plain 2"}, "u": {"x": b"x"}})
    assert more.plain.resources(T).keys() == {"a", "b"}
    assert first.plain is first.plain
    assert first.plain.plain is first.plain
    assert other.plain is other


CONTENTS = st.dictionaries(st.sampled_from("abcde"), st.binary(max_size=1))


@given(steps=st.lists(CONTENTS, min_size=1, max_size=5))
def test_a_patched_set_is_the_one_that_would_be_built(steps: list[dict[str, bytes]]) -> None:
    """Version, order, resources and differences are those of a set built from all messages."""
    here = TypeSet.of(T, {})
    for messages in steps:
        changes = {
            name: Resource.of(T, name, messages[name]) if name in messages else None
            for name in {*here.resources, *messages}
        }
        patched, built = here.patched(changes), TypeSet.of(T, messages)
        assert patched.version == built.version
        assert list(patched.resources.items()) == list(built.resources.items())
        assert changed_names(here, patched) == changed_names(here, built)
        here = patched


def test_a_patch_that_changes_nothing_is_the_same_set() -> None:
    """What follows finds by identity that nothing has changed."""
    made = TypeSet.of(T, {"a": b"1", "b": b"2"})
    assert made.patched({"a": Resource.of(T, "a", b"1"), "c": None}) is made
