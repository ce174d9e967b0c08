"""Pickers of a group over TLS in one loop, each with a clock of its own."""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import asynccontextmanager, suppress

import pytest
from structlog.testing import capture_logs

from ext_proc.routing.state.leases import LeaseKey
from ext_proc.routing.values.proposal import PlacedAs
from ext_proc.routing.values.reading import Reading
from ext_proc.routing.values.request import SequenceKey
from ext_proc.routing.values.ticket import Outcome
from ext_proc.telemetry.news import ReadingsUpdate, ScrapeFailed
from ext_proc.workers import bus, links
from ext_proc.workers.group.members import FIRST_NUMBER, GroupPlan
from ext_proc.workers.news import Listed, Probed
from ext_proc.workers.records import VERSION
from support.crew import POOL, decide, key, loads, request
from support.identities import Machines
from support.worker_groups import Worker
from tidegate.stack.processes.ports import HeldPorts
from tidegate_common.tls.contexts import client_context
from tidegate_common.tls.denied import DeniedPeers
from tidegate_common.tls.files import Identity, TlsFiles
from tidegate_common.tls.roles import table
from tidegate_common.tls.settings import Secured


@pytest.fixture(scope="module")
def machines(tmp_path_factory) -> Machines:
    """An authority."""
    return Machines(tmp_path_factory.mktemp("machines"))


def secured(machines: Machines, role: str, *ids: str) -> Secured:
    """Return the identity of a peer with a role."""
    shown = machines.client(role, *ids)
    files = TlsFiles(shown.pair.certificate, shown.pair.key, shown.ca)
    return Secured(Identity(files), table(()), "required", 3600.0)


def lease_key(number: int) -> LeaseKey:
    """Return the key of a sequence's lease."""
    return LeaseKey(POOL, SequenceKey("m", "", number))


class Group:
    """Pickers p1, p2 … that know each other's addresses."""

    def __init__(self, machines: Machines, addresses: list[str], *, learns: bool = False) -> None:
        self.machines = machines
        self.learns = learns
        self.addresses = addresses
        self.pickers: dict[int, Worker] = {}
        self.refused = DeniedPeers()

    def start(self, number: int, *, role: str = "picker", name: str = "") -> Worker:
        """Start a picker; its clock differs from those of the others by hours."""
        own = f"p{number + 1}"
        plan = GroupPlan(
            name or own,
            0,
            self.addresses[number],
            () if self.learns else tuple(self.addresses),
            secured(self.machines, role, own),
            self.refused,
            number,
        )
        clock = lambda: 100.0 + 10_000.0 * number  # noqa: E731 - a clock that stands
        made = self.pickers[number] = Worker(None, 0, 1, clock, plan)
        made.bus.open()
        return made

    async def until(self, true) -> None:
        """Let all run until a condition holds."""
        async with asyncio.timeout(30):
            while not true():
                for each in self.pickers.values():
                    each.bus.tick()
                    each.bus.flush()
                await asyncio.sleep(0.01)
                for each in self.pickers.values():
                    each.bus.catch_up()

    def joined(self) -> bool:
        """Return whether each knows all others, and that these do."""
        return all(
            sum(each.caught_up for each in picker.bus.members()) == len(self.pickers) - 1
            and picker.bus.owners.agreed
            for picker in self.pickers.values()
        )


@pytest.fixture
def addresses():
    """Three addresses that are kept for this test, also while no picker listens on one."""
    with HeldPorts() as ports:
        yield [ports.address() for _ in range(3)]


@asynccontextmanager
async def group_of(machines: Machines, addresses: list[str]):
    group = Group(machines, addresses)
    for number in range(len(addresses)):
        group.start(number)
    try:
        await group.until(group.joined)
        yield group
    finally:
        for picker in group.pickers.values():
            picker.bus.close()


async def test_members_decide_over_one_state(machines, addresses):
    """Load, prefix index and leases reach the others, and the end of a request does."""
    async with group_of(machines, addresses) as group:
        first, *others = group.pickers.values()
        made = decide(first.router, 100.0, (1, 2, 3))
        own = next(each for each in range(100) if first.bus.owners.places(lease_key(each)))
        leased = decide(first.router, 100.0, sequence_id=own)
        await group.until(lambda: all(len(each.router.peers) == 2 for each in others))
        for number, each in enumerate(others, 1):
            now = 101.0 + 10_000.0 * number
            assert loads(each.router) == loads(first.router)
            assert each.router.index.table.matched((1, 2, 3), made.ticket.endpoint) == 3
            again = decide(each.router, now, sequence_id=own)
            assert again.addresses == leased.addresses[:1]
            ((_, lease),) = each.router.peers.leases_in_force()
            assert 0.0 < lease.expires - now < 10_000.0
        first.router.settle(made.ticket, Outcome.DONE, 101.0)
        first.router.settle(leased.ticket, Outcome.DONE, 101.0)
        await group.until(lambda: all(each.bus.members()[0].open_tickets == 0 for each in others))


async def test_a_new_sequence_is_placed_by_its_owner(machines, addresses):
    """Another member asks it, and gets the lease that it granted, or one that it granted before."""
    async with group_of(machines, addresses[:2]) as group:
        first, owner = group.pickers.values()
        number = next(each for each in range(100) if owner.bus.owners.places(lease_key(each)))
        assert first.bus.owners.agreed
        assert not first.bus.owners.places(lease_key(number))
        proposed = first.router.decide(request(sequence_id=number), 100.0, 100.0).proposed
        told: list[PlacedAs] = []
        first.router.place(proposed, lambda placed, *_: told.append(placed))
        first.router.place(proposed, lambda placed, *_: told.append(placed))
        await group.until(lambda: len(told) == 2)
        assert told == [PlacedAs.AS_PROPOSED, PlacedAs.EARLIER]
        found = decide(first.router, 100.0, sequence_id=number)
        same = decide(owner.router, 10_100.0, sequence_id=number)
        assert found.ticket.endpoint == same.ticket.endpoint == proposed.endpoint
        assert first.bus.owners.open == 0


async def test_members_are_those_that_the_control_server_tells(machines, addresses):
    """They connect, place sequences together, and drop an address once it is told no more."""
    group = Group(machines, addresses, learns=True)
    first, other = group.start(0), group.start(1)
    try:
        assert not first.bus.owners.places_any
        listed = Listed(1, 7, ("p1", "p2"))
        for each in (first, other):
            each.bus.take_list(listed, group.addresses)
        await group.until(lambda: group.joined() and first.bus.owners.places_any)
        assert first.bus.standing(places=True) == (group.addresses[0], True, True, listed)
        proposed = first.router.decide(request(sequence_id=1), 100.0, 100.0).proposed
        told: list[PlacedAs] = []
        first.router.place(proposed, lambda placed, *_: told.append(placed))
        await group.until(lambda: told)
        assert told == [PlacedAs.AS_PROPOSED]
        found = decide(first.router, 100.0, sequence_id=1)
        same = decide(other.router, 10_100.0, sequence_id=1)
        assert found.ticket.endpoint == same.ticket.endpoint == proposed.endpoint
        first.bus.take_list(listed, group.addresses[:2])
        assert [each.address for each in first.bus.members()] == [group.addresses[1]]
        first.bus.take_list(Listed(2, 7, ("p1",)), group.addresses[:1])
        await group.until(lambda: other.bus.owners.listed.number == 2)
        await group.until(lambda: first.bus.owners.places(lease_key(2)))
        assert not other.bus.owners.places(lease_key(2))
    finally:
        first.bus.close()
        other.bus.close()


async def test_a_member_that_is_gone_is_missing_with_the_reason(machines, addresses, monkeypatch):
    """The control server is told, once it has lasted for a while."""
    async with group_of(machines, addresses[:2]) as group:
        first, other = group.pickers.values()
        assert first.bus.missing() == []
        other.bus.close()
        del group.pickers[1]
        await group.until(lambda: first.bus.members()[0].why)
        assert first.bus.missing() == []
        monkeypatch.setattr(bus, "MISSING_S", 0.0)
        (told,) = first.bus.missing()
        assert told.startswith(f"{group.addresses[1]}: ")


async def test_members_of_two_versions_share_nothing(machines, addresses, monkeypatch):
    """Each is as one that is away to the other, says why once, and counts no failed connection."""
    group, listed = Group(machines, addresses[:2], learns=True), Listed(1, 7, ("p1", "p2"))
    with monkeypatch.context() as older:
        older.setattr(links, "HELLO", b"tidegate %d " % (VERSION - 1))
        old = group.start(1)
        old.bus.take_list(listed, group.addresses)
    new = group.start(0)
    try:
        with capture_logs() as logs:
            new.bus.take_list(listed, group.addresses)
            await group.until(lambda: new.bus.members()[0].connections_lost >= 2)
            await group.until(lambda: old.bus.members()[0].connections_lost >= 1)
        for each in (old, new):
            (other,) = each.bus.members()
            assert "runs another version (" in other.why
            assert other.connections_failed == 0
            assert not each.bus.owners.places_any
        assert f"({VERSION - 1}, this one {VERSION}); upgrade it" in new.bus.members()[0].why
        told = [each["version"] for each in logs if each["event"] == "group_member_version"]
        assert sorted(told) == [VERSION - 1, VERSION]
        old.bus.close()
        again = group.start(1)
        again.bus.take_list(listed, group.addresses)
        await group.until(lambda: group.joined() and new.bus.owners.places_any)
        assert again.bus.members()[0].why == new.bus.members()[0].why == ""
    finally:
        for each in (new, *group.pickers.values()):
            each.bus.close()


async def test_who_asks_something_else_is_dropped(machines, addresses):
    """A reader may ask for leases only."""
    async with group_of(machines, addresses[:2]) as group:
        first, other = group.pickers.values()
        first.bus._inlets[FIRST_NUMBER + 1].ask(other.bus._hello())
        await group.until(lambda: first.bus.members()[0].connections_lost == 1)
        await group.until(group.joined)


async def test_a_member_that_comes_back_gets_a_snapshot(machines, addresses):
    """Its load is dropped when it ends, and the new one learns load and index."""
    async with group_of(machines, addresses[:2]) as group:
        first, other = group.pickers.values()
        made = decide(first.router, 100.0, (1, 2, 3))
        await group.until(lambda: len(other.router.peers) == 1)
        other.bus.close()
        again = group.start(1)
        await group.until(lambda: group.joined() and len(again.router.peers) == 1)
        await group.until(
            lambda: again.router.index.table.matched((1, 2, 3), made.ticket.endpoint) == 3
        )
        first.bus.close()
        del group.pickers[0]
        await group.until(lambda: len(again.router.peers) == 0)
        assert set(loads(again.router).values()) == {(0, 0.0)}


async def test_a_page_is_read_by_one_member_until_it_fails_or_is_gone(machines, addresses):
    """The other takes its readings, by its own clock, and its probes never."""
    async with group_of(machines, addresses[:2]) as group:
        first, other = group.pickers.values()
        page = ReadingsUpdate("r0", "page", (Reading(at=99.5, queued=3.0),), 99.5)
        for each in (Probed(POOL, key(0), ready=False), page):
            first.bus.publish(each)
        await group.until(lambda: other.left)
        assert other.left == {("r0", "page")}
        assert other.telemetry == [
            page._replace(readings=(Reading(at=10_099.5, queued=3.0),), at=10_099.5)
        ]
        first.bus.publish(ScrapeFailed("r0", 2))
        await group.until(lambda: not other.left)
        other.bus.publish(page._replace(at=10_100.0))
        first.bus.publish(page)
        await group.until(lambda: other.left)
        first.bus.close()
        del group.pickers[0]
        await group.until(lambda: not other.left)
        assert (first.telemetry, first.left, other.found) == ([], frozenset(), [])
        assert len(other.telemetry) == 2


@pytest.mark.parametrize(
    ("role", "name"), [("envoy", "p2"), ("picker", "p3")], ids=["another role", "another's id"]
)
async def test_who_is_no_picker_changes_nothing(machines, addresses, role, name):
    """A peer without the role, or with an id that its certificate does not name, is refused."""
    group = Group(machines, addresses[:2])
    first = group.start(0)
    other = group.start(1, role=role, name=name)
    decide(other.router, 100.0)
    try:
        await group.until(lambda: group.refused.count >= 2)
        assert len(first.router.peers) == 0
        assert not first.bus.members()[0].caught_up
    finally:
        first.bus.close()
        other.bus.close()


async def test_a_stranger_is_not_served(machines, addresses, tmp_path):
    """A certificate of another authority does not pass the handshake, and plain bytes do not."""
    async with group_of(machines, addresses[:1]) as group:
        address = group.addresses[0].rpartition(":")
        where = (address[0], int(address[2]))
        stranger = Machines(tmp_path, "other").client("picker", "p2")
        files = TlsFiles(stranger.pair.certificate, stranger.pair.key, machines.client("picker").ca)
        context = client_context(Identity(files).material)
        reader, writer = await asyncio.open_connection(
            *where, ssl=context, server_hostname="localhost"
        )
        writer.write(links.HELLO + links.WITH_INDEX)
        with suppress(ssl.SSLError, ConnectionError):
            assert await reader.read() == b""
        writer.transport.abort()
        await group.until(lambda: group.refused.count == 1)
        with socket.create_connection(where) as plain:
            plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
        await group.until(lambda: group.pickers[0].bus.state()["readers"] == 0)


async def test_rubbish_ends_a_connection_and_changes_nothing(machines, addresses):
    """A member that sends it is dropped and dialled again later; the log has it once."""
    async with group_of(machines, addresses[:2]) as group:
        first, other = group.pickers.values()
        decide(first.router, 100.0)
        await group.until(lambda: len(other.router.peers) == 1)
        first.bus._outlet.send(b"\x01\x00\x00\x00\x63")
        await group.until(lambda: other.bus.members()[0].connections_failed == 1)
        assert len(other.router.peers) == 0
        await group.until(lambda: len(other.router.peers) == 1)
        assert other.bus.members()[0].connections_lost == 1


async def test_too_much_ends_a_connection(machines, addresses, monkeypatch):
    """What a member may send in a second is bounded."""
    async with group_of(machines, addresses[:2]) as group:
        first, other = group.pickers.values()
        monkeypatch.setattr(links, "MAX_BYTES_PER_S", 50_000)
        first.bus._outlet.send(b"\x00\x00\x00\x00" * 25_000)
        await group.until(lambda: other.bus.members()[0].connections_failed >= 1)
        monkeypatch.undo()
        await group.until(group.joined)
