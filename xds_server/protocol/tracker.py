"""One type on one stream: what the client wants, is known to hold, was sent, and refused.

Rules:

1. At most one message is in flight. What changes meanwhile is not queued: after the answer the
   difference to the newest snapshot is sent.
2. Sent is not known: a resource becomes held with the ACK of its message, not before, and not if
   the client dropped its name meanwhile: it may have thrown the resource away unread.
3. After a NACK nobody knows what the client holds of that message (Envoy may have applied the good
   part), so those names count as different from every version, except that the refused content
   itself is parked: it is not sent again.
4. A parked message is released as soon as one of its parts has changed. The changed part then goes
   first and by itself, the rest ("suspects") in a message of their own: good resources come out
   of a message that was refused for a bad neighbour, and the bad one is left parked alone.
5. A whole set (``full_set``) is sent, compared and parked as a whole.
6. A name that was asked for and does not exist is answered once in the delta variant and stays
   subscribed; the state-of-the-world variant is silent until it exists.
7. Nothing is sent for a type that the snapshot does not serve, and nothing that is not wanted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from xds_server.protocol.messages import MAX_ERROR_CHARS, AckVerdict, TypeView
from xds_server.protocol.subscription import Subscription

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from xds_server.protocol.messages import State
    from xds_server.protocol.snapshot import Resource, Snapshot

_UNSURE: Final = ""
"""Version of a resource in a refused message: unlike every real one."""

_MISSING: Final = "missing"
"""Stands for "never heard of"; no version has seven letters."""


@dataclass(frozen=True, slots=True)
class Content:
    """What a message says: resources, and names that do not exist (any more)."""

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
    """What the difference to the snapshot comes to."""

    content: Content | None = None
    withheld: bool = False
    """Something is not sent because the client refused it."""
    since: float = field(default=0.0)


class TypeTracker:
    """State of one type on one stream; see the module's rules.

    Args:
        type_url: The type.
        full_set: Each message carries the whole set (state-of-the-world CDS, LDS).
        tells_absence: Messages can say that a name does not exist (delta).
        legacy_wildcard: An empty first request means everything.
    """

    def __init__(
        self, type_url: str, *, full_set: bool, tells_absence: bool, legacy_wildcard: bool
    ) -> None:
        self.type_url = type_url
        self.subscription = Subscription(legacy_wildcard=legacy_wildcard)
        self.requested = False
        self.resumed = False
        """The client told that it holds something from an earlier stream."""
        self._full_set = full_set
        self._tells_absence = tells_absence
        self._held: dict[str, str | None] = {}
        self._forced: set[str] = set()
        self._greet = False
        self._in_flight: _InFlight | None = None
        self._lost: set[str] = set()
        self._parked: list[dict[str, str | None]] = []
        self._suspects: dict[str, str | None] = {}
        self._due = _Due()
        self._dirty = True
        self._version_sent = ""
        self._version_acked = ""
        self._nonce_acked = ""
        self._refusal = ""
        self._refused_at = 0.0

    # --- what the client says -------------------------------------------------------------------

    def subscribed(
        self,
        *,
        expected: Iterable[str] = (),
        greet: bool = False,
        initial_versions: Mapping[str, str] | None = None,
    ) -> None:
        """Take note that the subscription changed.

        Args:
            expected: Names that must be answered whatever is held (X40, X42).
            greet: A wildcard began: even an empty set is to be told (X47).
            initial_versions: What a delta client holds from an earlier stream (X45).
        """
        wants = self.subscription.wants
        if initial_versions:
            self._held = {n: v for n, v in initial_versions.items() if wants(n)}
            self.resumed = True
        else:
            self._held = {n: v for n, v in self._held.items() if wants(n)}
            self._greet = self._greet or greet
        self._forced = {name for name in self._forced if wants(name)}
        self._forced.update(expected)
        if self._in_flight is not None:
            self._lost.update(n for n in self._in_flight.content.versions() if not wants(n))
        self._unpark(lambda name, _: wants(name))
        self.requested = True
        self._dirty = True

    def answered(self, nonce: str, error: str | None, now: float) -> AckVerdict | None:
        """Take an ACK or NACK; ``None`` where it is not about the message in flight (X14)."""
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
            self._held.clear()
            self._parked.clear()
        for name, version in flight.content.versions().items():
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
        if self._full_set:
            self._parked.clear()
            self._held.update(dict.fromkeys(self._held, _UNSURE))
        self._parked.append(refused)
        for name in refused:
            self._suspects.pop(name, None)
            if self.subscription.wants(name):
                self._held[name] = _UNSURE

    # --- what is due ----------------------------------------------------------------------------

    def touch(self) -> None:
        """Take note that the snapshot changed."""
        self._dirty = True

    def force(self, names: Iterable[str]) -> None:
        """Send these again although nothing about them changed, where they are wanted."""
        for name in names:
            if not self.requested or self.subscription.wants(name):
                self._forced.add(name)
                self._dirty = True

    def unforce(self, snapshot: Snapshot) -> None:
        """Forget forced names that are gone, so that debts never outgrow the snapshot."""
        if not self.requested:
            self._forced.intersection_update(snapshot.resources(self.type_url))

    def due(self, snapshot: Snapshot, now: float) -> Content | None:
        """Return what should be sent now; ``None`` while a message is in flight or all is said."""
        if self._in_flight is not None:
            return None
        if self._dirty:
            since = self._due.since if self._due.content is not None else now
            content, withheld = self._difference(snapshot)
            self._due = _Due(content, withheld, since)
            self._dirty = False
        return self._due.content

    def sent(self, content: Content, nonce: str, version: str, now: float) -> tuple[str, ...]:
        """Put ``content`` in flight; return the names whose version the client did not hold."""
        self._in_flight = _InFlight(nonce, version, now, content)
        self._lost.clear()
        self._version_sent = version
        self._greet = False
        self._due = _Due()
        self._forced.difference_update(content.removed)
        fresh = []
        for resource in content.resources:
            self._forced.discard(resource.name)
            if self._held.get(resource.name) != resource.version:
                fresh.append(resource.name)
        return tuple(fresh)

    def _difference(self, snapshot: Snapshot) -> tuple[Content | None, bool]:
        if self.subscription.empty or not snapshot.serves(self.type_url):
            return None, False
        resources = snapshot.resources(self.type_url)
        return self._whole(resources) if self._full_set else self._parts(resources)

    def _whole(self, resources: Mapping[str, Resource]) -> tuple[Content | None, bool]:
        content = Content(tuple(r for n, r in resources.items() if self.subscription.wants(n)))
        versions = content.versions()
        if versions in self._parked:
            return None, True
        self._parked.clear()
        unheard = not versions and not self._held and not self._greet
        same = versions == self._held and not self._greet and not self._forced
        return (None if same or unheard else content), False

    def _parts(self, resources: Mapping[str, Resource]) -> tuple[Content | None, bool]:
        self._release(resources)
        parked = {name for group in self._parked for name in group}
        wanted = set(self.subscription.names)
        if self.subscription.wildcard:
            wanted.update(resources, self._held)
        owed = [
            name
            for name in sorted(wanted)
            if name not in parked and self._owes(name, resources.get(name))
        ]
        fresh = [name for name in owed if name not in self._suspects]
        chosen = fresh or owed
        if not chosen and not (self._greet and not resources):
            self._greet = False
            return None, bool(parked)
        return Content(
            tuple(resources[name] for name in chosen if name in resources),
            tuple(name for name in chosen if name not in resources),
        ), bool(parked)

    def _owes(self, name: str, resource: Resource | None) -> bool:
        held = self._held.get(name, _MISSING)
        if resource is not None:
            return held != resource.version or name in self._forced
        if not self._tells_absence:
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
        """Release the refused messages of which a part is no longer due as it was."""
        parked = []
        for group in self._parked:
            kept = {name: version for name, version in group.items() if unchanged(name, version)}
            if len(kept) == len(group):
                parked.append(group)
            elif not self._full_set:
                self._suspects.update(kept)
        self._parked = parked

    # --- what people see ------------------------------------------------------------------------

    @property
    def in_flight(self) -> bool:
        """A message waits for its answer, and the client still wants something."""
        return self._in_flight is not None and not self.subscription.empty

    @property
    def refused(self) -> bool:
        """The client refused what it should hold now; as of the last call of ``due``."""
        return not self.subscription.empty and self._in_flight is None and self._due.withheld

    @property
    def refusal(self) -> str:
        """The client's words when it last refused."""
        return self._refusal

    @property
    def acknowledged(self) -> str:
        """The nonce of the last response that the client accepted; empty where there was none."""
        return self._nonce_acked

    @property
    def established(self) -> bool:
        """The client holds an answer, of this stream or of an earlier one."""
        return self.resumed or bool(self._version_acked)

    @property
    def state(self) -> State:
        """Where the type stands; as of the last call of ``due``."""
        if not self.subscription.empty:
            if self._in_flight is not None or self._due.content is not None:
                return "STALE"
            if self._due.withheld:
                return "NACKED"
        return "SYNCED" if self._version_sent or self._held else "NOT_SENT"

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
