"""Rules for tokens."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from support.fleets import endpoint, fleet, pool
from xds_server.fleet.model.fleet import Fleet
from xds_server.fleet.rules.fleet import problems

CORP: dict[str, Any] = {"name": "corp", "issuer": "a", "jwks_url": "https://a.example/keys"}
RBAC = {"@type": "envoy.extensions.filters.http.rbac.v3.RBACPerRoute"}
ASKS = {"any_of": ["corp"]}


def found(of: Fleet) -> list[str]:
    """Return the places of all problems."""
    return [problem.path for problem in problems(of)]


def test_providers_exist_and_have_names_of_their_own() -> None:
    """Otherwise Envoy would refuse the pool's requests, or take the wrong keys."""
    of = fleet(pool(default=True, jwt={"any_of": ["corp", "corp"]}), listener={"jwt": [CORP, CORP]})
    assert found(of) == ["listener.jwt[1].name", "pools[0].jwt.any_of[1]"]
    of = fleet(pool(default=True, jwt=ASKS))
    assert found(of) == ["pools[0].jwt.any_of[0]"]
    assert "there is none" in problems(of)[0].message
    assert found(fleet(pool(default=True, jwt=ASKS), listener={"jwt": [CORP]})) == []


@pytest.mark.parametrize("change", [{"jwt": {"any_of": ["x"]}}, {"http_filters": {"x": RBAC}}])
def test_a_changed_pool_is_judged_again(change: dict[str, Any]) -> None:
    """After a sound fleet only what has changed is looked at."""
    before = fleet(pool(default=True, jwt=ASKS), listener={"jwt": [CORP]})
    assert not problems(before)
    one = type(before.pools[0]).model_validate({**before.pools[0].model_dump(), **change})
    after = before.model_copy(update={"pools": (one,)})
    assert problems(after)


def test_a_replica_that_joins_a_pool_is_judged_again() -> None:
    """Elsewhere it may be in a pool that asks for nothing."""
    one = [{"name": "stable"}]
    a = pool("a", default=True, variants=one, endpoints=[endpoint(1)], jwt=ASKS)
    b = pool("b", variants=one, endpoints=[endpoint(2)])
    before = fleet(a, b, listener={"jwt": [CORP], "pools": ["a"]})
    assert not problems(before)
    joined = type(before.pools[1]).model_validate({**b, "endpoints": [endpoint(1), endpoint(2)]})
    after = before.model_copy(update={"pools": (before.pools[0], joined)})
    assert [each.path for each in problems(after)] == ["listener.pools", "pools[1].endpoints[0]"]


@pytest.mark.parametrize("theirs", [None, {"any_of": ["corp"], "audiences": ["b"]}])
def test_a_replica_is_not_in_a_pool_that_asks_for_less(theirs: dict[str, Any] | None) -> None:
    """A request to the other pool could name this pool's model, and the replica would serve it."""
    one = [{"name": "stable"}]
    made = [
        pool("a", default=True, variants=one, endpoints=[endpoint(1), endpoint(2)], jwt=ASKS),
        pool("b", variants=one, endpoints=[endpoint(3), endpoint(2)], jwt=theirs),
    ]
    of = fleet(*made, listener={"jwt": [CORP]})
    assert found(of) == ["pools[1].endpoints[1]"]
    made[1]["jwt"] = ASKS
    assert found(fleet(*made, listener={"jwt": [CORP]})) == []


@pytest.mark.parametrize(
    ("ours", "theirs", "same"),
    [
        ({"file": "/a"}, {"file": "/a"}, True),
        ({"file": "/a:1/2"}, {"file": "/b:1/2"}, False),
        ({"dns": {"name": "t", "http": 1}}, {"dns": {"name": "t", "http": 1}}, True),
        ({"dns": {"name": "t", "http": 1}}, {"dns": {"name": "t", "http": 1, "grpc": 2}}, True),
        ({"dns": {"name": "t", "http": 1}}, {"dns": {"name": "t", "http": 2}}, False),
        ({"dns": {"name": "t", "http": 1}}, {"dns": {"name": "u", "http": 1}}, False),
        ({"dns": {"name": "t", "srv": "http"}}, {"dns": {"name": "t", "srv": "http"}}, True),
        (
            {"kubernetes": {"namespace": "n", "service": "s"}},
            {"kubernetes": {"namespace": "n", "service": "s", "ports": {"grpc": None}}},
            True,
        ),
        (
            {"kubernetes": {"namespace": "n", "service": "s"}},
            {"kubernetes": {"namespace": "n", "service": "t"}},
            False,
        ),
    ],
)
def test_sources_of_the_same_replicas_ask_for_the_same(
    ours: dict[str, Any], theirs: dict[str, Any], *, same: bool
) -> None:
    """Also where they look for other ports of the same machines besides."""
    one = [{"name": "stable"}]
    a = pool("a", default=True, variants=one, endpoints=[endpoint(1)], endpoints_from=[ours])
    b = pool("b", variants=one, endpoints=[endpoint(2)], endpoints_from=[theirs])
    listener = {"jwt": [CORP]}
    places = found(fleet({**a, "jwt": ASKS}, b, listener=listener))
    assert places == (["pools[1].endpoints_from[0]"] if same else [])
    assert found(fleet({**a, "jwt": ASKS}, {**b, "jwt": ASKS}, listener=listener)) == []
    # Nor are they told apart by a host name or an address.
    assert found(fleet(a, b, listener={"pools": ["a"]})) == (["listener.pools"] if same else [])


@pytest.mark.parametrize(
    "keys", ["", "{}", "[]", '{"keys": 1}', '{"keys": []}', "[" * 9999, '{"keys": [}']
)
def test_keys_are_a_set_of_keys(keys: str) -> None:
    """Envoy would refuse them, and answer every request with 500 until it has others."""
    provider = {"name": "own", "issuer": "a", "jwks": keys or "x"}
    assert found(fleet(listener={"jwt": [provider]})) == ["listener.jwt[0].jwks"]


def test_a_token_is_in_a_header_that_reaches_the_filter() -> None:
    """Reserved ones are stripped from clients' requests."""
    provider = {**CORP, "header": "x-tidegate-token"}
    assert found(fleet(listener={"jwt": [provider]})) == ["listener.jwt[0].header"]


@pytest.mark.parametrize(
    "more",
    [
        {"jwks_url": None},
        {"jwks": '{"keys": []}'},
        {"jwks_file": "/keys.json"},
        {"jwks_url": "ftp://a.example/keys"},
        {"jwks_url": "https://user@a.example/keys"},
        {"jwks_url": "https://a.example/keys#x"},
        {"jwks_url": "https://"},
        {"issuer": ""},
        {"header": "Authorization"},
        {"jwks_refresh": "10ms"},
    ],
)
def test_a_provider_has_one_source_of_keys(more: dict[str, Any]) -> None:
    """A URL has no user in it: it is written to logs."""
    with pytest.raises(ValidationError):
        fleet(listener={"jwt": [{**CORP, **more}]})


@pytest.mark.parametrize(
    "listener",
    [
        {"cors": {"origins": ["*"], "credentials": True}},
        {"cors": {"origins": []}},
        {"cors": {"origins": ["https://a.example/path"]}},
        {"cors": {"origins": ["https://*"]}},
        {"compression": {"content_types": ["text/event-stream"]}},
        {"compression": {"content_types": ["application/grpc"]}},
        {"compression": {"algorithms": []}},
        {"rate_limit": {"requests": 0}},
        {"rate_limit": {"requests": 10, "burst": 5}},
        {"rate_limit": {"requests": 10, "per": "10ms"}},
        {"connections": {"h2_keepalive_timeout": 0}},
    ],
)
def test_what_would_open_or_break_the_edge_is_refused(listener: dict[str, Any]) -> None:
    """Any page as its visitor, streams held back by a compressor, limits that limit nothing."""
    with pytest.raises(ValidationError):
        fleet(listener=listener)
