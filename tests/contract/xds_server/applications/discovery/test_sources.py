"""Sources of replicas: DNS names, asked of a real server, and watched files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.names import NameServer
from xds_server.applications.discovery.sources import dns
from xds_server.applications.discovery.sources.listed import Unreadable, read_endpoints
from xds_server.applications.discovery.sources.resolver import Resolver
from xds_server.applications.discovery.values import MAX_ENDPOINTS, Found, Observation
from xds_server.fleet.model.discovery import DnsSource
from xds_server.fleet.model.fleet import EndpointSpec


@pytest.fixture
async def server() -> AsyncIterator[NameServer]:
    """Return a name server on loopback."""
    async with NameServer() as made:
        yield made


class Seen:
    """What a source has reported."""

    def __init__(self) -> None:
        self.observations: list[Observation] = []
        self.troubles: list[str] = []

    async def step(self, source: dns.DnsNames) -> float:
        """Let the source look once; return the seconds until the next look."""
        return await source.step(self.observations.append, self.troubles.append)

    @property
    def hosts(self) -> list[str]:
        """The addresses of the newest observation."""
        return [each.http or each.grpc or "" for each in self.observations[-1].endpoints]


def source(server: NameServer, chance: float = 0.0, **fields: object) -> dns.DnsNames:
    """Return the source of a name."""
    spec = DnsSource.model_validate({"name": "t.example", "http": 8000, **fields})
    return dns.of_source(spec, Resolver([server.address], 0.5), lambda: chance)


async def test_both_families_are_found(server: NameServer) -> None:
    """A and AAAA, with both ports."""
    server.set("t.example.", "A", ["10.0.0.1"], ttl=60)
    server.set("t.example.", "AAAA", ["fd00::1"], ttl=30)
    seen = Seen()
    await seen.step(source(server, grpc=8001))
    assert seen.observations[0].endpoints == (
        Found("10.0.0.1:8001", "10.0.0.1:8000", "10.0.0.1:8001"),
        Found("[fd00::1]:8001", "[fd00::1]:8000", "[fd00::1]:8001"),
    )


@pytest.mark.parametrize(
    ("ttl", "chance", "wait"), [(60, 0.0, 45), (60, 1.0, 57), (0, 0.5, 5), (86_400, 0.0, 225)]
)
async def test_a_name_is_asked_for_again_before_it_expires(
    server: NameServer, ttl: int, chance: float, wait: float
) -> None:
    """At a random time, within the bounds of the source."""
    server.set("t.example.", "A", ["10.0.0.1"], ttl=ttl)
    assert await Seen().step(source(server, chance)) == pytest.approx(wait)


@pytest.mark.parametrize("fault", ["lost", "refused", "empty", "missing", "garbage"])
async def test_a_failed_look_is_no_observation(server: NameServer, fault: str) -> None:
    """What was found before stays, and the next look is sooner."""
    server.set("t.example.", "A", ["10.0.0.1"], ttl=60)
    seen, names = Seen(), source(server)
    await seen.step(names)
    server.fault = fault
    waits = [await seen.step(names) for _ in range(2)]
    assert len(seen.observations) == 1
    assert "what was found before stays" in seen.troubles[-1]
    assert waits == [0.25, 0.5]
    server.fault = ""
    await seen.step(names)
    assert len(seen.observations) == 2
    assert seen.troubles[-1] == ""


async def test_one_family_that_fails_fails_the_look(server: NameServer) -> None:
    """Half an answer would make the other half vanish."""
    server.set("t.example.", "A", ["10.0.0.1"], ttl=60)
    server.fault, server.fault_kind = "refused", "AAAA"
    seen = Seen()
    await seen.step(source(server))
    assert not seen.observations


async def test_an_answer_too_large_for_a_datagram_is_read(server: NameServer) -> None:
    """The resolver asks again over TCP."""
    server.set("t.example.", "A", [f"10.0.{i // 250}.{i % 250 + 1}" for i in range(600)], ttl=60)
    seen, patient = Seen(), Resolver([server.address], 30.0)
    spec = DnsSource.model_validate({"name": "t.example", "http": 8000})
    await seen.step(dns.of_source(spec, patient, lambda: 0.0))
    assert len(seen.hosts) == 600


async def test_srv_targets_are_replicas_by_target_and_port(server: NameServer) -> None:
    """Their identity does not depend on the address."""
    server.set("_h._tcp.t.example.", "SRV", ["0 0 8000 a.t.example.", "0 0 8010 b.t.example."])
    server.set("a.t.example.", "A", ["10.0.0.1"])
    server.set("b.t.example.", "A", ["10.0.0.2"])
    names = source(server, name="_h._tcp.t.example", http=None, grpc=8001, srv="http")
    seen = Seen()
    await seen.step(names)
    assert seen.observations[-1].endpoints == (
        Found("a.t.example:8000", "10.0.0.1:8000", "10.0.0.1:8001"),
        Found("b.t.example:8010", "10.0.0.2:8010", "10.0.0.2:8001"),
    )
    server.set("a.t.example.", "A", ["10.0.0.9"])
    await seen.step(names)
    assert seen.observations[-1].endpoints[0].identity == "a.t.example:8000"


async def test_an_endpoint_keeps_its_id_while_its_name_has_one_address(server: NameServer) -> None:
    """Further addresses have ids of their own, and a known address keeps its id."""
    spec = EndpointSpec.model_validate({"id": "r1", "http": "t.example:8000"})
    names = dns.of_endpoint(spec, Resolver([server.address], 0.5), lambda: 0.0)
    seen = Seen()
    ids = []
    for hosts in (["10.0.0.1"], ["10.0.0.2"], ["10.0.0.2", "10.0.0.3"], ["10.0.0.3"]):
        server.set("t.example.", "A", hosts)
        await seen.step(names)
        ids.append([each.identity for each in seen.observations[-1].endpoints])
    assert ids == [["r1"], ["r1"], ["r1", "r1-10.0.0.3"], ["r1-10.0.0.3"]]


def test_a_file_lists_endpoints() -> None:
    """YAML or JSON, a list or a mapping."""
    text = """
endpoints:
- {id: a, http: "10.0.0.1:80", variant: canary, zone: z, device: d}
- {grpc: "10.0.0.2:81", serving: false, terminating: true}
"""
    assert read_endpoints(text).endpoints == (
        Found("a", "10.0.0.1:80", None, "canary", "z", "d"),
        Found("10.0.0.2:81", None, "10.0.0.2:81", serving=False, terminating=True),
    )
    assert read_endpoints('[{"http": "10.0.0.1:80"}]').endpoints[0].identity == "10.0.0.1:80"
    assert read_endpoints("[]").endpoints == ()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty"),
        ("endpoints:", "line 1"),
        ("other: []", "no other key"),
        ("- {http: '10.0.0.1:80'", "YAML"),
        ("- {http: '10.0.0.1:80'}\n- {http: 'x'}", "line 2"),
        ("- {id: a}", "needs"),
        ("- {http: '10.0.0.1:80'}\n- {http: '10.0.0.1:80'}", "twice"),
        ("- 7", "line 1"),
        ("[" * 100, "deep"),
    ],
)
def test_a_broken_file_is_refused_as_a_whole(text: str, reason: str) -> None:
    """And the message says where."""
    with pytest.raises(Unreadable, match=reason):
        read_endpoints(text)


def test_the_length_of_a_file_is_bounded() -> None:
    """Above the bound nothing is taken."""
    entries = [f"- {{http: '10.{i >> 16}.{i >> 8 & 255}.{i & 255}:80'}}" for i in range(4097)]
    with pytest.raises(Unreadable):
        read_endpoints("\n".join(entries))
    assert len(read_endpoints("\n".join(entries[:MAX_ENDPOINTS])).endpoints) == MAX_ENDPOINTS


@given(st.text(max_size=200) | st.text(alphabet="[]{}-:,'\" \nhttpendois0.8", max_size=120))
def test_any_text_is_read_or_refused(text: str) -> None:
    """No content of a file ends its watch."""
    try:
        found = read_endpoints(text)
    except Unreadable:
        return
    assert all(each.http or each.grpc for each in found.endpoints)


@given(st.integers(1, 1499))
def test_no_half_of_a_json_file_is_taken(cut: int) -> None:
    """A half-written file changes nothing."""
    entries = ", ".join(f'{{"http": "10.0.0.{i}:8000"}}' for i in range(1, 55))
    text = f'{{"endpoints": [{entries}]}}'
    with pytest.raises(Unreadable):
        read_endpoints(text[: min(cut, len(text) - 1)])


async def test_cancelling_a_source_ends_it(server: NameServer) -> None:
    """The control server stops, or another revision has other sources."""
    server.set("t.example.", "A", ["10.0.0.1"], ttl=60)
    found = asyncio.Event()
    run = source(server).run(lambda _: found.set(), lambda _: None)
    task = asyncio.create_task(run)
    await found.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
