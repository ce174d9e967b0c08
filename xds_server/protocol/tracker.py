"""State of one type on one stream: subscription, known content, message in flight, rejections.

Rules:

1. At most one message is in flight. Changes in the meantime are not queued: after the answer, the
   difference to the newest snapshot is sent.
2. The client is known to hold a resource only after the ACK of its message, and not if it
   unsubscribed the name before the ACK: it may have discarded the resource unread.
3. After a NACK the client's content for the names of that message is unknown (Envoy may have
   applied the valid part), so these names count as different from every version. The rejected
   content itself is *parked*: it is not sent again.
4. A parked message is released as soon as one of its resources changes. The changed resources are
   sent first, the remaining ones (*suspects*) in a separate message. Valid resources are thus
   freed from a message that was rejected because of another one, and only the invalid ones stay
   parked.
5. A whole set (``full_set``) is sent, compared and parked as a whole.
6. A subscribed name that does not exist stays subscribed. The delta variant answers it once; the
   state-of-the-world variant sends nothing until the resource exists.
7. Nothing is sent for a type that the snapshot does not serve, nor for names that are not
   subscribed.
8. Only names that differ between the set that the client holds and the new set are looked at. The
   comparison of two sets is made once for all clients.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from xds_server.protocol.messages import MAX_ERROR_CHARS, AckVerdict, ProtocolError, TypeView
from xds_server.protocol.snapshot import changed_names

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from xds_server.protocol.messages import State
    from xds_server.protocol.snapshot import Resource, Snapshot, TypeSet

WILDCARD: Final = "*"
MAX_NAMES: Final = 65_536
"""Most names to which one client may subscribe per type."""

MAX_NAME_CHARS: Final = 2048
"""Most characters in a name."""


class Subscription:
    """One client's subscription to one type.

    Source: xDS protocol, "How the client specifies what resources to return".

    Rules:

    1. An empty first request is the legacy wildcard if the type allows it. ``*`` is the explicit
       wildcard, alone or together with names. A list of names alone ends a wildcard in the
       state-of-the-world variant; in the delta variant the names are added to it.
    2. After a state-of-the-world client has sent any name, an empty list means no resources.
    3. Names of resources that do not exist stay subscribed.
    4. A client subscribes to at most ``MAX_NAMES`` names per type; a request above this bound
       changes nothing.

    Attributes:
        wildcard: The client subscribes to every resource of the type.
        names: The names to which it subscribes, without ``*``.
    """

    __slots__ = ("_legacy", "_named_before", "_started", "names", "wildcard")

    def __init__(self, *, legacy_wildcard: bool) -> None:
        self.wildcard = False
        self.names: frozenset[str] = frozenset()
        self._legacy = legacy_wildcard
        self._named_before = False
        self._started = False

    @property
    def empty(self) -> bool:
        """No resource is subscribed."""
        return not self.wildcard and not self.names

    def wants(self, name: str) -> bool:
        """Return whether the client subscribes to this name."""
        return self.wildcard or name in self.names

    def replace(self, names: Collection[str]) -> None:
        """Replace the subscription by the list of a state-of-the-world request.

        Raises:
            ProtocolError: The list exceeds a bound; nothing has changed.
        """
        wanted = _checked(names)
        if names:
            self._named_before = True
            self.wildcard = WILDCARD in wanted
        else:
            self.wildcard = self._legacy and not self._named_before
        self.names = wanted - {WILDCARD}
        self._started = True

    def change(
        self, subscribe: Collection[str], unsubscribe: Collection[str]
    ) -> tuple[frozenset[str], bool]:
        """Apply a delta request.

        Returns:
            The names for which the client expects an answer, even if the server believes that it
            holds them (names subscribed by this request, and names unsubscribed by it that a
            wildcard still covers), and whether a wildcard began with this request.

        Raises:
            ProtocolError: The lists exceed a bound; nothing has changed.
        """
        added, dropped = _checked(subscribe), _checked(unsubscribe)
        legacy = not self._started and self._legacy and not subscribe
        names = (self.names | added) - dropped - {WILDCARD}
        if len(names) > MAX_NAMES:
            raise ProtocolError(f"more than {MAX_NAMES} names subscribed; use the wildcard *")
        before = self.wildcard
        self.wildcard = (before or legacy or WILDCARD in added) and WILDCARD not in dropped
        expected = (added - dropped) | (dropped & self.names if self.wildcard else frozenset())
        self.names = names
        self._started = True
        return expected - {WILDCARD}, self.wildcard and not before


def _checked(names: Iterable[str]) -> frozenset[str]:
    """Return the names; an empty one names nothing, and is ignored.

    Raises:
        ProtocolError: The names exceed a bound.
    """
    found = frozenset(names) - {""}
    if len(found) > MAX_NAMES:
        raise ProtocolError(f"more than {MAX_NAMES} names in one request; use the wildcard *")
    for name in found:
        if len(name) > MAX_NAME_CHARS:
            raise ProtocolError(f"a resource name must have at most {MAX_NAME_CHARS} characters")
    return found


_UNSURE: Final = ""
"""Version of a resource in a rejected message; differs from every real version."""

_MISSING: Final = "missing"
"""Version of a name of which nothing is known; real versions have 32 characters."""


@dataclass(frozen=True, slots=True)
class Content:
    """Content of a message: resources, and names that do not exist (any more)."""

    resources: tuple[Resource, ...] = ()
    removed: tuple[str, ...] = ()

    def versions(self) -> dict[str, str | None]:
        """Return name -> version; ``None`` = removed."""
        found: dict[str, str | None] = {r.name: r.version for r in self.resources}
        found.update(dict.fromkeys(self.removed))
        return found


@dataclass(frozen=True, slots=True)
class _InFlight:
    nonce: str
    version: str
    sent_at: float
    content: Content


@dataclass(slots=True)
class _Due:
    """Difference between the client's content and the snapshot."""

    content: Content | None = None
    """The message to send; ``None`` = nothing is due."""
    withheld: bool = False
    """Some resources are not sent because the client rejected them."""
    since: float = field(default=0.0)
    """Since when a message is due, monotonic seconds."""


class TypeTracker:
    """State of one type on one stream; see the module's rules.

    Args:
        type_url: The type.
        full_set: Each message carries the whole set (state-of-the-world CDS, LDS).
        reports_absence: Messages can state that a name does not exist (delta).
        legacy_wildcard: An empty first request subscribes to all resources.
    """

    def __init__(
        self, type_url: str, *, full_set: bool, reports_absence: bool, legacy_wildcard: bool
    ) -> None:
        self.type_url = type_url
        self.subscription = Subscription(legacy_wildcard=legacy_wildcard)
        self.requested = False
        self.resumed = False
        """The client has stated that it holds resources from an earlier stream."""
        self._full_set = full_set
        self._reports_absence = reports_absence
        self._held: dict[str, str | None] = {}
        self._forced: set[str] = set()
        self._wildcard_began = False
        self._in_flight: _InFlight | None = None
        self._lost: set[str] = set()
        self._parked: list[dict[str, str | None]] = []
        self._suspects: dict[str, str | None] = {}
        self._level: TypeSet | None = None
        """A set that the client holds, except for the names in ``_touched`` and ``_forced``."""
        self._touched: set[str] = set()
        self._due = _Due()
        self._dirty = True
        self._version_sent = ""
        self._version_acked = ""
        self._nonce_acked = ""
        self._refusal = ""
        self._refused_at = 0.0

    # --- requests -------------------------------------------------------------------------------

    def subscribed(
        self,
        *,
        expected: Iterable[str] = (),
        wildcard_began: bool = False,
        initial_versions: Mapping[str, str] | None = None,
    ) -> None:
        """Record that the subscription has changed.

        Args:
            expected: Names that must be answered even if the client holds them (X40, X42).
            wildcard_began: A wildcard began, so that even an empty set must be sent (X47).
            initial_versions: Resources that a delta client holds from an earlier stream (X45).
        """
        wants = self.subscription.wants
        if initial_versions:
            self._held = {n: v for n, v in initial_versions.items() if wants(n)}
            self.resumed = True
        else:
            self._held = {n: v for n, v in self._held.items() if wants(n)}
            self._wildcard_began = self._wildcard_began or wildcard_began
        self._forced = {name for name in self._forced if wants(name)}
        self._forced.update(expected)
        if self._in_flight is not None:
            self._lost.update(n for n in self._in_flight.content.versions() if not wants(n))
        self._unpark(lambda name, _: wants(name))
        self._level = None
        self.requested = True
        self._dirty = True

    def answered(self, nonce: str, error: str | None, now: float) -> AckVerdict | None:
        """Process an ACK or NACK.

        Returns:
            The verdict; ``None`` if the nonce is not that of the message in flight (X14).
        """
        flight = self._in_flight
        if flight is None or nonce != flight.nonce:
            return None
        self._in_flight = None
        self._dirty = True
        waited_s = now - flight.sent_at
        if error is None:
            self._accept(flight)
            return AckVerdict(self.type_url, accepted=True, waited_s=waited_s)
        self._refusal, self._refused_at = error[:MAX_ERROR_CHARS], now
        self._refuse(flight)
        return AckVerdict(self.type_url, accepted=False, waited_s=waited_s, message=self._refusal)

    def _accept(self, flight: _InFlight) -> None:
        if self._full_set:
            self._level = None
            self._held.clear()
            self._parked.clear()
        for name, version in flight.content.versions().items():
            self._touched.add(name)
            self._suspects.pop(name, None)
            named = name in self.subscription.names
            if name in self._lost:
                self._held.pop(name, None)
            elif version is not None and (named or self.subscription.wildcard):
                self._held[name] = version
            elif version is None and named:
                self._held[name] = None
            else:
                self._held.pop(name, None)
        self._version_acked = flight.version
        self._nonce_acked = flight.nonce

    def _refuse(self, flight: _InFlight) -> None:
        refused = flight.content.versions()
        self._level = None
        if self._full_set:
            self._parked.clear()
            self._held.update(dict.fromkeys(self._held, _UNSURE))
        self._parked.append(refused)
        for name in refused:
            self._suspects.pop(name, None)
            if self.subscription.wants(name):
                self._held[name] = _UNSURE

    # --- responses ------------------------------------------------------------------------------

    def touch(self) -> None:
        """Record that the snapshot has changed."""
        self._dirty = True

    def force(self, names: Iterable[str]) -> None:
        """Send these names again, if they are subscribed, although they have not changed."""
        for name in names:
            if not self.requested or self.subscription.wants(name):
                self._forced.add(name)
                self._dirty = True

    def unforce(self, snapshot: Snapshot) -> None:
        """Drop forced names that no longer exist, so that their number stays bounded."""
        if not self.requested:
            self._forced.intersection_update(snapshot.resources(self.type_url))

    def due(self, snapshot: Snapshot, now: float) -> Content | None:
        """Return the content to send now; ``None`` if a message is in flight or nothing is due."""
        if self._in_flight is not None:
            return None
        if self._dirty:
            since = self._due.since if self._due.content is not None else now
            content, withheld = self._difference(snapshot)
            self._due = _Due(content, withheld, since)
            self._dirty = False
        return self._due.content

    def sent(self, content: Content, nonce: str, version: str, now: float) -> tuple[str, ...]:
        """Record that ``content`` is in flight; return the names that are new or changed."""
        self._in_flight = _InFlight(nonce, version, now, content)
        self._lost.clear()
        self._version_sent = version
        self._wildcard_began = False
        self._due = _Due()
        self._forced.difference_update(content.removed)
        fresh = []
        for resource in content.resources:
            self._forced.discard(resource.name)
            if self._held.get(resource.name) != resource.version:
                fresh.append(resource.name)
        return tuple(fresh)

    def _difference(self, snapshot: Snapshot) -> tuple[Content | None, bool]:
        target = snapshot.type_set(self.type_url)
        if self.subscription.empty or target is None:
            return None, False
        pending = self._touched or self._forced or self._wildcard_began
        if target is self._level and not pending:
            return None, False
        content, withheld = self._whole(target.resources) if self._full_set else self._parts(target)
        if content is None and not withheld:
            self._level = target
            self._touched.clear()
        return content, withheld

    def _whole(self, resources: Mapping[str, Resource]) -> tuple[Content | None, bool]:
        content = Content(tuple(r for n, r in resources.items() if self.subscription.wants(n)))
        versions = content.versions()
        if versions in self._parked:
            return None, True
        self._parked.clear()
        empty = not versions and not self._held and not self._wildcard_began
        same = versions == self._held and not self._wildcard_began and not self._forced
        return (None if same or empty else content), False

    def _candidates(self, target: TypeSet) -> set[str]:
        """Return the names among which those are that differ; all that are wanted if unknown."""
        names, wildcard = self.subscription.names, self.subscription.wildcard
        if self._level is None:
            wanted = set(names)
            if wildcard:
                wanted.update(target.resources, self._held)
            return wanted
        return {
            name
            for name in {*changed_names(self._level, target), *self._touched, *self._forced}
            if name in names or (wildcard and (name in target.resources or name in self._held))
        }

    def _parts(self, target: TypeSet) -> tuple[Content | None, bool]:
        resources = target.resources
        self._release(resources)
        parked = {name for group in self._parked for name in group}
        due = [
            name
            for name in sorted(self._candidates(target))
            if name not in parked and self._is_due(name, resources.get(name))
        ]
        fresh = [name for name in due if name not in self._suspects]
        chosen = fresh or due
        if not chosen and not (self._wildcard_began and not resources):
            self._wildcard_began = False
            return None, bool(parked)
        return Content(
            tuple(resources[name] for name in chosen if name in resources),
            tuple(name for name in chosen if name not in resources),
        ), bool(parked)

    def _is_due(self, name: str, resource: Resource | None) -> bool:
        held = self._held.get(name, _MISSING)
        if resource is not None:
            return held != resource.version or name in self._forced
        if not self._reports_absence:
            self._held.pop(name, None)
            return False
        if held == _MISSING:
            return name in self.subscription.names or name in self._forced
        return held is not None or name in self._forced

    def _release(self, resources: Mapping[str, Resource]) -> None:
        def current(name: str) -> str | None:
            found = resources.get(name)
            return None if found is None else found.version

        self._unpark(lambda name, version: current(name) == version)
        self._suspects = {n: v for n, v in self._suspects.items() if current(n) == v}

    def _unpark(self, unchanged: Callable[[str, str | None], bool]) -> None:
        """Release the parked messages of which at least one resource has changed."""
        parked = []
        for group in self._parked:
            kept = {name: version for name, version in group.items() if unchanged(name, version)}
            if len(kept) == len(group):
                parked.append(group)
            elif not self._full_set:
                self._suspects.update(kept)
        self._parked = parked

    # --- status ---------------------------------------------------------------------------------

    @property
    def settled(self) -> bool:
        """Nothing was sent or is to be sent, and nothing was refused, since the last ``touch``."""
        due = self._due
        return not (self._dirty or self._in_flight or due.content or due.withheld)

    @property
    def in_flight(self) -> bool:
        """A message is in flight and the client still subscribes to something."""
        return self._in_flight is not None and not self.subscription.empty

    @property
    def refused(self) -> bool:
        """The client rejected the snapshot's content; as of the last call of ``due``."""
        return not self.subscription.empty and self._in_flight is None and self._due.withheld

    @property
    def refusal(self) -> str:
        """The client's error message of its last NACK."""
        return self._refusal

    @property
    def acknowledged(self) -> str:
        """The nonce of the last acknowledged response; empty if there is none."""
        return self._nonce_acked

    @property
    def established(self) -> bool:
        """The client has accepted a response, on this stream or an earlier one."""
        return self.resumed or bool(self._version_acked)

    @property
    def state(self) -> State:
        """State of the type; as of the last call of ``due``."""
        if not self.subscription.empty:
            if self._in_flight is not None or self._due.content is not None:
                return "STALE"
            if self._due.withheld:
                return "NACKED"
        return "SYNCED" if self._version_sent or self._held else "NOT_SENT"

    def holdings(self) -> tuple[Mapping[str, str | None], frozenset[str]]:
        """Return the versions that the client holds by name, and the names that it has rejected."""
        return self._held, frozenset(name for group in self._parked for name in group)

    def view(self, now: float) -> TypeView:
        """Return the type's cell of a status table."""
        state = self.state
        since = {
            "STALE": self._due.since if self._in_flight is None else self._in_flight.sent_at,
            "NACKED": self._refused_at,
        }.get(state, now)
        return TypeView(
            self.type_url,
            state,
            self._version_sent,
            self._version_acked,
            self._refusal if state == "NACKED" else "",
            max(0.0, now - since),
            sum(1 for version in self._held.values() if version),
        )
