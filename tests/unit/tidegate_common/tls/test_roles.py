"""Roles by the names in certificates."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate_common.tls.roles import (
    ADMINS,
    EVERY,
    MAX_NAME_CHARS,
    MAX_NAMES,
    READERS,
    TRUST_DOMAIN,
    CallPolicy,
    MethodRoles,
    Peer,
    RoleTable,
    parse,
    table,
)

ACCESS = MethodRoles({"/a.B/Read": READERS, "/a.B/Change": ADMINS})


def test_a_role_comes_from_the_name_that_is_mapped() -> None:
    """A URI as it is, a DNS name without regard to case."""
    found = table(["envoy=spiffe://prod/edge", "viewer=grafana.example"])
    assert found.of(Peer(("spiffe://prod/edge",), ())) == {"envoy"}
    assert found.of(Peer((), ("Grafana.Example",))) == {"viewer"}
    assert found.of(Peer(("spiffe://PROD/edge",), ())) == frozenset()


def test_a_certificate_with_several_names_has_all_their_roles() -> None:
    """A sidecar may be reporter and viewer."""
    found = table(["reporter=spiffe://a/r", "viewer=v.example"])
    assert found.of(Peer(("spiffe://a/r",), ("v.example",))) == {"reporter", "viewer"}


def test_a_dns_name_does_not_match_a_uri_of_the_same_text() -> None:
    """Who may sign DNS names must not thereby give SPIFFE identities, and the other way round."""
    found = table(["admin=spiffe://a/admin", "viewer=v.example"])
    assert found.of(Peer((), ("spiffe://a/admin",))) == frozenset()
    assert found.of(Peer(("v.example",), ())) == frozenset()


def test_a_uri_with_a_star_stands_for_all_below_it() -> None:
    """Each Envoy may have a name of its own; the name above, and longer siblings, do not count."""
    found = table(["envoy=spiffe://a/edge/*"])
    assert found.of(Peer(("spiffe://a/edge/envoy-1",), ())) == {"envoy"}
    assert found.of(Peer(("spiffe://a/edge",), ())) == frozenset()
    assert found.of(Peer(("spiffe://a/edges/1",), ())) == frozenset()


def test_a_wildcard_in_a_certificate_gives_nothing() -> None:
    """It is compared as it is."""
    assert table(["admin=a.example"]).of(Peer((), ("*.example",))) == frozenset()


def test_without_names_the_usual_ones_count() -> None:
    """Each role has the trust domain's name; a given name replaces all of them."""
    usual = Peer(("spiffe://tidegate/admin",), ())
    assert table([]).of(usual) == {"admin"}
    assert table([]).of(Peer(("spiffe://tidegate/envoy/edge-7",), ())) == {"envoy"}
    assert table(["viewer=v.example"]).of(usual) == frozenset()


@pytest.mark.parametrize(
    "given_",
    ["", "admin", "admin=", "root=a.example", "=a", "admin=*", "admin=*.example", "admin=a b"],
)
def test_a_wrong_name_is_refused(given_: str) -> None:
    """Nothing is guessed about who may act."""
    with pytest.raises(ValueError, match=r"ROLE=NAME|the name is|may end in"):
        parse(given_)


def test_names_are_bounded() -> None:
    """In number and length."""
    parse(f"admin={'a' * MAX_NAME_CHARS}")
    with pytest.raises(ValueError, match="at most"):
        parse(f"admin={'a' * (MAX_NAME_CHARS + 1)}")
    table(["admin=a"] * MAX_NAMES)
    with pytest.raises(ValueError, match="at most"):
        table(["admin=a"] * (MAX_NAMES + 1))


def test_a_method_that_is_not_listed_is_for_no_role() -> None:
    """A new call is closed until the table says who may make it."""
    assert "not served" in str(ACCESS.refusal("/a.B/New", Peer(), EVERY))


def test_a_refusal_says_who_is_needed_and_who_asks() -> None:
    """So that the reader knows which certificate or mapping to change."""
    policy = CallPolicy(ACCESS, table([]))
    assert policy.refusal("/a.B/Change", Peer(("spiffe://tidegate/viewer",), ())) == (
        "/a.B/Change needs the role admin; this peer (spiffe://tidegate/viewer) is viewer"
    )
    assert "have no role" in str(policy.refusal("/a.B/Read", Peer((), ("x.example",))))
    assert policy.refusal("/a.B/Read", Peer(("spiffe://tidegate/viewer",), ())) is None


def test_a_peer_without_certificate_has_only_the_roles_given_to_such() -> None:
    """Where gateways have no certificates they are Envoys, and nothing else."""
    policy = CallPolicy(MethodRoles({"/p": frozenset({"envoy"})}), table([]), frozenset({"envoy"}))
    assert policy.refusal("/p", Peer()) is None
    assert policy.roles(Peer((), ("unknown.example",))) == frozenset()


@given(st.lists(st.text(max_size=30), max_size=5), st.lists(st.text(max_size=30), max_size=5))
def test_no_name_gives_a_role_that_was_not_mapped(uris: list[str], dns: list[str]) -> None:
    """Whatever a certificate contains."""
    found = RoleTable([("admin", "spiffe://only/this")]).of(Peer(tuple(uris), tuple(dns)))
    assert found == ({"admin"} if "spiffe://only/this" in uris else frozenset())


def test_a_certificate_names_whom_it_speaks_for() -> None:
    """By the rest of its URI, or by a table for names that have none."""
    names = table(["reporter=spiffe://a/gpu/*", "reporter=gpu.example"], ["GPU.example=r7"])
    assert names.not_named(Peer(("spiffe://a/gpu/r1",)), "reporter", "r1") is None
    assert names.not_named(Peer((), ("gpu.example",)), "reporter", "r7") is None
    wrong = names.not_named(Peer(("spiffe://a/gpu/r1",)), "reporter", "r2")
    assert wrong is not None
    assert "names the reporter r1" in wrong
    assert "--speaks spiffe://a/gpu/r1=r2" in wrong
    assert names.not_named(Peer(("spiffe://a/gpu/r1",)), "picker", "r1") is not None


@pytest.mark.parametrize(
    ("wanted", "may"),
    [
        ("p1", True),
        ("p1.w0", True),
        ("p1.w12", True),
        ("p1.wx", False),
        ("p11", False),
        ("p2", False),
    ],
)
def test_workers_of_a_picker_have_its_name(wanted: str, may: bool) -> None:
    """No certificate of their own is needed, and no other picker's id is theirs."""
    found = table(()).not_named(Peer((f"{TRUST_DOMAIN}/picker/p1",)), "picker", wanted)
    assert (found is None) is may


def test_a_star_speaks_for_all() -> None:
    """Where all pickers of a cluster have one certificate."""
    names = table((), [f"{TRUST_DOMAIN}/picker=*"])
    assert names.not_named(Peer((f"{TRUST_DOMAIN}/picker",)), "picker", "any") is None


@pytest.mark.parametrize("given", ["", "r1", "=r1", "spiffe://a/b=", "a b=r1"])
def test_what_is_no_speaker_is_refused(given: str) -> None:
    """With what would be right."""
    with pytest.raises(ValueError, match=r"NAME=ID|ROLE=NAME|the name is"):
        table((), [given])
