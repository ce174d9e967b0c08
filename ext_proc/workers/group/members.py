"""The members of a group as one of them sees the others: who they are, and the way to each.

Rules:

1. A member is known by its id, which it says first on each connection and which its certificate
   must name. A connection to this picker itself, its own workers included, or to a member that is
   connected already, is closed, so one list serves all.
2. A member that cannot be reached, or that ends a connection within ``LASTED_S``, is dialled again
   after a longer delay each time, at most ``LONGEST_S``. The log says once that it is gone.
3. Where the control server tells the addresses, one that it no longer tells is dialled until its
   connection ends: a control server that has just started does not know all.
4. Each host probes replicas and asks for their models by itself, since what one can reach says
   nothing about another. Of telemetry it takes what replicas push, and pages (``group.pages``).
5. A member whose records are of another version (``records.VERSION``) is as one that is away, for
   both, until one of them is upgraded. The log says so once for each of its versions.
"""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, Never

import structlog

from ext_proc.workers.group.clock import ClockOffset, moved
from ext_proc.workers.group.pages import PAGE_NEWS, PageReaders
from ext_proc.workers.group.port import GroupPort
from ext_proc.workers.links import UnwelcomeError
from ext_proc.workers.news import Hello, Listed, Looked, LookWanted, OtherVersion, Probed
from ext_proc.workers.plan import picker_of
from ext_proc.workers.records import VERSION, GarbledError
from tidegate_api.addresses import MAX_MEMBERS
from tidegate_common.backoff import Backoff
from tidegate_common.tls.roles import Peer

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterable, Iterator

    from ext_proc.workers.group.pages import Page
    from ext_proc.workers.links import Inlet, Outlet
    from ext_proc.workers.records import Message
    from tidegate_common.tls.denied import DeniedPeers
    from tidegate_common.tls.settings import Secured

FIRST_NUMBER: Final = 64
"""Number of the first member among peers; those below are workers of this host."""
LASTED_S: Final = 10.0
LONGEST_S: Final = 2.0
_OF_ONE_HOST: Final = frozenset({Probed, Looked, LookWanted})

_log = structlog.stdlib.get_logger("ext_proc.workers")


class GroupPlan(NamedTuple):
    """What a picker is told about its group."""

    own: str
    """Id of this picker, or of its worker."""
    number: int
    """Number of the worker on this host."""
    listen: str
    members: tuple[str, ...]
    """Addresses of members; this one's may be among them. Empty = the control server tells them."""
    secured: Secured
    refused: DeniedPeers
    life: int = 0
    """Unix nanoseconds of its start (``group.owners``)."""


class GroupPlace(NamedTuple):
    """How a picker stands in its group, as the control server is told."""

    address: str
    places: bool
    agrees: bool
    holds: Listed


@dataclass
class GroupMember:
    """One address of the group."""

    address: str
    backoff: Backoff = field(default_factory=lambda: Backoff(random.random, LONGEST_S))
    offset: ClockOffset = field(default_factory=ClockOffset)
    id: str | None = None
    """Id of who answers there; ``None`` = not connected."""
    is_own: bool = False
    """This picker itself answers there."""
    dialling: asyncio.Task[None] | None = None
    again_at: float = float("-inf")
    """When to dial next, loop time."""
    began_at: float = float("-inf")
    """When the connection began, loop time."""
    peer: Peer = field(default_factory=Peer)
    """Names in the certificate of who answers there."""
    lost: int = 0
    """Connections that ended."""
    why: str = ""
    """Why it is not connected; empty = it is, or has not been dialled yet."""
    gone_at: float = 0.0
    """Since when it is not, loop time."""
    said_gone: bool = False
    unwelcome: str = ""
    """Why this picker ended the connection; empty = it did not."""
    version: int | None = None
    """Version of its records if that is another one."""


class GroupMembers:
    """Dials members and judges what they send; see the module's rules.

    Args:
        plan: What the picker is told.
        outlet: Sends to those who dial.
        on_left: Called with the pages that others read, see ``PageReaders``.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        plan: GroupPlan,
        outlet: Outlet,
        on_left: Callable[[frozenset[Page]], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._plan = plan
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._outlet = outlet
        self._port = GroupPort(plan.secured, plan.refused.note, self._admit, outlet.drop)
        self.members = {
            FIRST_NUMBER + number: GroupMember(address)
            for number, address in enumerate(plan.members)
        }
        self.pages = PageReaders(plan.own, on_left)
        self.address = plan.listen
        self.learns = not plan.members
        """The control server tells the addresses."""
        self._last = FIRST_NUMBER + len(plan.members)

    def known(
        self, addresses: Iterable[str], up: Callable[[int], bool]
    ) -> tuple[list[int], list[int]]:
        """Take the addresses that the control server tells.

        Args:
            addresses: Addresses of all members; this one's is among them.
            up: Returns whether a member is connected, by its number.

        Returns:
            The numbers of new members, and of those that were dropped.
        """
        told = set(addresses) - {self.address}
        have = {each.address: number for number, each in self.members.items()}
        gone = [number for at, number in have.items() if at not in told and not up(number)]
        for number in gone:
            dialling = self.members.pop(number).dialling
            if dialling is not None:
                dialling.cancel()
        new = []
        for address in sorted(told - have.keys())[: MAX_MEMBERS - len(self.members)]:
            self.members[self._last] = GroupMember(address)
            new.append(self._last)
            self._last += 1
        return new, gone

    def open(self) -> None:
        """Listen.

        Raises:
            OSError: The address cannot be bound.
        """
        self.address = self._port.open(self._plan.listen)

    def _admit(self, sock: socket.socket) -> None:
        """Serve a picker; who dials is there, so that members not connected are dialled soon."""
        for member in self.members.values():
            member.again_at = float("-inf")
        self._outlet.admit(sock)

    def close(self) -> None:
        """Stop listening and dialling."""
        for member in self.members.values():
            if member.dialling is not None:
                member.dialling.cancel()
        self._port.close()

    def dial(self, number: int, inlet: Inlet, taken: Callable[[bool], None]) -> None:
        """Begin to connect to a member unless that is under way or too early.

        Args:
            number: Its number.
            inlet: Receives from it.
            taken: Called at the end, with whether it is connected.
        """
        member = self.members[number]
        if member.is_own or member.dialling is not None or self._loop.time() < member.again_at:
            return

        async def connect() -> None:
            connected = False
            try:
                sock, member.peer = await self._port.connect(member.address)
                member.began_at = self._loop.time()
                member.id, member.offset, member.unwelcome = None, ClockOffset(), ""
                connected = inlet.adopt(sock, with_index=True)
            except (OSError, TimeoutError) as error:
                self._gone(member, str(error) or "it does not answer")
            finally:
                member.dialling = None
                if not connected:
                    member.again_at = self._loop.time() + member.backoff.delay_s()
                taken(connected)

        member.dialling = self._loop.create_task(connect(), name=f"dial {member.address}")

    def lost(self, number: int) -> None:
        """Note that a member's connection has ended."""
        member, now = self.members[number], self._loop.time()
        self.pages.lost(member.id)
        if not member.is_own:
            member.lost += 1
            self._gone(member, member.unwelcome or "its connection ended")
        if now - member.began_at >= LASTED_S:
            member.backoff.reset()
        member.again_at = now + member.backoff.delay_s()
        member.id = None

    def heard(self, number: int, message: Message) -> Message | None:
        """Return a member's message by this machine's clock; ``None`` = it is not to be applied.

        Raises:
            UnwelcomeError: Its connection must end.
            GarbledError: It has not said who it is.
        """
        member = self.members[number]
        if isinstance(message, Hello):
            if member.id is None:
                self._greeted(member, message.member)
            elif member.id != message.member:
                raise GarbledError(f"{member.id} calls itself {message.member:.80} now")
            member.offset.note(message.at, self._clock())
            return None
        if member.id is None:
            if isinstance(message, OtherVersion):
                self._differs(member, message.version)
            raise GarbledError("a member must say first who it is")
        if type(message) in _OF_ONE_HOST:
            return None
        now = self._clock()
        news = moved(message, member.offset.seconds, now)
        if isinstance(news, PAGE_NEWS) and not self.pages.heard(member.id, news, now):
            return None
        return news

    def _greeted(self, member: GroupMember, given: str) -> None:
        plan = self._plan
        own = picker_of(plan.own, plan.number)
        if given == plan.own or given.startswith(f"{own}.w"):
            member.is_own = True
            raise UnwelcomeError
        reason = plan.secured.table.not_named(member.peer, "picker", given)
        if reason is not None:
            plan.refused.note(member.address, member.peer, reason)
            self._refuse(member, reason)
        if any(each.id == given for each in self.members.values()):
            self._refuse(member, f"{given:.80} is connected at another address too")
        member.id, member.version = given, None
        member.said_gone, member.why = False, ""
        _log.info("group_member_joined", member=given, address=member.address)

    def _differs(self, member: GroupMember, version: int) -> Never:
        """End the connection to a member with records of another version."""
        if version != member.version:
            member.version = version
            _log.warning(
                "group_member_version", address=member.address, version=version, own=VERSION
            )
            if not member.said_gone:
                member.said_gone, member.gone_at = True, self._loop.time()
        older = "it" if version < VERSION else "this one"
        self._refuse(
            member, f"runs another version ({version}, this one {VERSION}); upgrade {older}"
        )

    def _refuse(self, member: GroupMember, reason: str) -> Never:
        """End the connection to a member for a reason that lasts."""
        member.unwelcome = reason
        self._gone(member, reason)
        raise UnwelcomeError

    def _gone(self, member: GroupMember, reason: str) -> None:
        member.why = reason
        if not member.said_gone:
            member.said_gone, member.gone_at = True, self._loop.time()
            _log.warning(
                "group_member_gone", member=member.id, address=member.address, reason=reason
            )

    def others(self) -> Iterator[tuple[int, GroupMember]]:
        """Yield the members that are not this picker, with their numbers."""
        return ((number, each) for number, each in self.members.items() if not each.is_own)
