"""Rules of the headers that clients may send and of the pools' own paths."""

from __future__ import annotations

from typing import Any

import pytest

from support.fleets import fleet, pool
from xds_server.fleet.rules.fleet import problems

PINNED = [
    {"name": "stable", "weight": 90},
    {"name": "canary", "weight": 10, "match": {"headers": {"x-ab": "b"}}},
]


def found(*headers: str, **of_pool: Any) -> list[tuple[str, str]]:
    """Return place and message of each broken rule."""
    made = fleet(pool(variants=PINNED, **of_pool), listener={"client_headers": headers})
    return [(problem.path, problem.message) for problem in problems(made)]


def test_other_headers_need_not_be_listed() -> None:
    """A misspelled name would silently forbid the one that was meant."""
    ((where, message),) = found("x-ab", "tidegate-pol")
    assert where == "listener.client_headers[1]"
    assert "tidegate-pool" in message


def test_no_header_is_listed_twice() -> None:
    """A repetition hides a missing one."""
    assert found("x-ab", "x-ab")[0][0] == "listener.client_headers[1]"


def test_the_session_header_is_not_stripped() -> None:
    """Stripped, it could not keep a session in its variant."""
    ((where, _),) = found("tidegate-model", routing={"session_header": "x-ab"})
    assert where == "pools[0].routing.session_header"
    assert found("x-ab", routing={"session_header": "x-ab"}) == []


@pytest.mark.parametrize(
    "path", ["/v1//completions", "/v1/../x", "/v1/.", "/v1%2fx", "/v1%2E", "/%76", "/a\\b", "/%5a"]
)
def test_a_path_that_no_request_has_is_refused(path: str) -> None:
    """Envoy normalises a request's path before it is compared."""
    ((where, message),) = found(match={"models": ["m"], "paths": [path]})
    assert where == "pools[0].match.paths[0]"
    assert "normalises" in message


def test_a_gateway_is_told_no_more_names_than_fit_into_a_header() -> None:
    """All pools need no list."""
    pools = [
        pool(
            f"{'p' * 50}-{n}",
            default=not n,
            endpoints=[{"id": f"r{n}", "http": f"127.0.0.1:{n + 1}"}],
            variants=[{"name": "stable"}],
        )
        for n in range(90)
    ]
    gateway = {"http": ["127.0.0.1:1000"], "grpc": ["127.0.0.1:1001"]}
    assert problems(fleet(*pools, gateway=gateway)) == []
    names = [each["name"] for each in pools]
    (found,) = problems(fleet(*pools, gateway=gateway, listener={"pools": names}))
    assert found.location == ("gateway",)


PORTS = {"http": ["127.0.0.1:3"], "grpc": ["127.0.0.1:4"]}
GATEWAY = {"http": ["127.0.0.1:1"], "grpc": ["127.0.0.1:2"], "operators": PORTS}
TO = {"ca": "/ca.pem"}
ASKS = {"certificate": "/c.pem", "key": "/k.pem", "client_ca": "/ca.pem"}


@pytest.mark.parametrize(
    ("gateway", "address", "tls", "words"),
    [
        (GATEWAY, "127.0.0.1:9", None, None),
        (GATEWAY, "[::1]:9", None, None),
        ({**GATEWAY, "tls": TO}, "0.0.0.0:9", ASKS, None),
        (None, "127.0.0.1:9", None, "no gateway takes these calls"),
        ({**GATEWAY, "operators": None}, "127.0.0.1:9", None, "gateway.operators"),
        (GATEWAY, "0.0.0.0:9", None, "whoever reaches 0.0.0.0:9 could change replicas"),
        (GATEWAY, "0.0.0.0:9", {**ASKS, "client_ca": None}, "whoever reaches 0.0.0.0:9"),
        (GATEWAY, "127.0.0.1:9", ASKS, "a gateway without TLS knows no roles"),
        ({**GATEWAY, "tls": TO}, "127.0.0.1:9", None, "the gateway has TLS and asks who calls"),
    ],
)
def test_a_listener_for_operators_knows_its_callers(
    gateway: Any, address: str, tls: Any, words: str | None
) -> None:
    """By loopback, or by certificates whose roles the gateway knows."""
    further = {"name": "ops", "address": address, "operators": True, "tls": tls}
    made = fleet(gateway=gateway, listener={"address": "127.0.0.1:8", "further": [further]})
    broken = [each for each in problems(made) if each.path.endswith("operators")]
    if words is None:
        assert list(problems(made)) == []
    else:
        (problem,) = broken
        assert problem.path == "listener.further[0].operators"
        assert words in problem.message
