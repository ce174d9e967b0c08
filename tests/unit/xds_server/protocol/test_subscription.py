"""Subscriptions, by the sequences of the specification."""

import pytest

from xds_server.protocol.messages import ProtocolError
from xds_server.protocol.tracker import MAX_NAME_CHARS, MAX_NAMES, Subscription


def _new(*, legacy: bool = True) -> Subscription:
    return Subscription(legacy_wildcard=legacy)


def test_the_sotw_sequence_of_the_specification() -> None:
    """X21, X22, X23: [] = *, then * and A, then A alone, then [] = no resources."""
    subscription = _new()
    for _ in range(2):
        subscription.replace(())
        assert subscription.wildcard
        assert subscription.wants("anything")
    subscription.replace(("*", "A"))
    assert (subscription.wildcard, subscription.names) == (True, {"A"})
    subscription.replace(("A",))
    assert (subscription.wildcard, subscription.names) == (False, {"A"})
    subscription.replace(())
    assert subscription.empty


def test_the_delta_sequence_of_the_specification() -> None:
    """X22: an empty request = *, then A is added, then * is removed, then A is removed."""
    subscription = _new()
    assert subscription.change((), ()) == (frozenset(), True)
    assert subscription.change(("A",), ()) == ({"A"}, False)
    assert subscription.wildcard
    assert subscription.change((), ("*",)) == (frozenset(), False)
    assert (subscription.wildcard, subscription.names) == (False, {"A"})
    subscription.change((), ("A",))
    assert subscription.empty


def test_the_legacy_wildcard_can_be_off() -> None:
    """X24: if the type has no legacy wildcard, an empty first request subscribes to nothing."""
    sotw, delta = _new(legacy=False), _new(legacy=False)
    sotw.replace(())
    delta.change((), ())
    assert sotw.empty
    assert delta.empty


def test_an_unknown_name_is_dropped_silently() -> None:
    """X41: unsubscribing a name that was never subscribed is allowed."""
    subscription = _new()
    subscription.change(("A",), ())
    assert subscription.change((), ("B",)) == (frozenset(), False)


def test_too_many_names_change_nothing() -> None:
    """The bound on names holds per request and in total."""
    subscription = _new()
    subscription.change([str(n) for n in range(MAX_NAMES)], ())
    with pytest.raises(ProtocolError, match="names subscribed"):
        subscription.change(("one more",), ())
    with pytest.raises(ProtocolError, match="in one request"):
        subscription.replace([f"x{n}" for n in range(MAX_NAMES + 1)])
    assert len(subscription.names) == MAX_NAMES


def test_long_names_are_rejected() -> None:
    """The length of a name is bounded."""
    with pytest.raises(ProtocolError, match="characters"):
        _new().replace(("x" * (MAX_NAME_CHARS + 1),))


def test_an_empty_name_is_ignored() -> None:
    """It names nothing: no wildcard begins, and the other names count."""
    sotw, delta = Subscription(legacy_wildcard=True), Subscription(legacy_wildcard=True)
    sotw.replace(("", "a"))
    delta.change(("",), ())
    assert (sotw.wildcard, sotw.names) == (False, frozenset("a"))
    assert delta.empty
