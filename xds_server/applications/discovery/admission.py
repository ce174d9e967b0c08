"""Admission: which of the replicas that sources find are members of a pool. Pure.

Rules:

1. A replica that is found joins once its model is ready (``probed``), or at once where its variant
   has no active member, or with ``admit: found``. It is asked as long as it waits, whatever for. It
   joins with an incarnation of its own and is ramped in; the first members of a pool that never had
   any are warm.
2. A member that is no longer listed, or is listed as not serving or as terminating, *leaves*: it
   drains. It is removed once no requests are in flight on it, after ``drain`` at the latest; while
   it is still listed it stays. Back in the list it is active again, the same incarnation.
3. Members that vanish without being said to terminate are *held* if they are, with those that
   vanished in the ``WINDOW_S`` before, more than half of the pool's active replicas. They stay
   active until they are listed again, until ``confirm`` or ``drained`` names them, until ``hold``
   has passed, or until as many others are active, whose models were found ready.
4. The last active members of a variant are held when they vanish, also after ``hold``: only
   ``confirm`` or ``drained`` lets them go. Terminating ones that still serve stay until another is
   active. What is listed as not serving leaves at once, the last too, and so does what a source
   says to have been taken out (``Observation.final``).
5. A source that has not answered yet says nothing: its members of before stay as they are. What a
   source no longer in the pool had found leaves once all new sources have answered and nothing that
   they list waits, or ``WINDOW_S`` later; rule 4 holds. While one has not answered, it stays, after
   ``WINDOW_S`` as held. What they list with the same id at the same address stays as theirs.
6. A replica that has left or moved more than ``FREE_FLAPS`` times waits before it is active again,
   twice as long each time and at most ``damping``; ``CALM_S`` without a change ends this.
7. A member found at another address moves there once it is ready there, as a new incarnation.
8. At most ``MAX_MEMBERS`` replicas are known of a pool; the memory of those that left is bounded.

Times are monotonic seconds, except for those of members, which are Unix milliseconds.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from xds_server.applications.discovery.replica import (
    Flaps,
    Hold,
    Key,
    Missing,
    Tracked,
    adopt,
    counted,
    hold_of,
    last_of,
    places,
    with_address,
)
from xds_server.fleet.members.members import MAX_MEMBERS, Member
from xds_server.fleet.members.origins import Origin, Unfit, origins_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from xds_server.applications.discovery.values import Found, Observation
    from xds_server.fleet.model.fleet import EndpointSpec, PoolSpec

    Born = Callable[[EndpointSpec], tuple[int, int] | None]

WINDOW_S: Final = 30.0
"""Seconds in which disappearances count as one."""

LINGER_S: Final = 5.0
"""Least seconds for which a member drains: reports of requests in flight may be as old."""

MAX_UNFIT: Final = 20
"""Most reasons that are kept why replicas cannot join."""


class Admission:
    """The members of one pool; see the module's rules.

    Args:
        pool: The written pool.
        members: Its members before a restart.
    """

    def __init__(self, pool: PoolSpec, members: Sequence[Member] = ()) -> None:
        self.hold: Hold | None = None
        self.unfit: tuple[str, ...] = ()
        """Why found replicas cannot join, at most ``MAX_UNFIT`` reasons."""
        self._pool = pool
        self._origins: dict[str, Origin] = origins_of(pool)
        self._new = self._origins.keys() - {member.origin for member in members}
        """Origins that an edit brought, or that had no members before a restart."""
        self._replicas: dict[Key, Tracked] = {}
        self._past: OrderedDict[Key, Flaps] = OrderedDict()
        """Flaps of replicas that were removed."""
        self._vanished: dict[Key, float] = {}
        """When replicas left that were not said to terminate."""
        self._answered: set[str] = set()
        self._unfit: dict[str, list[str]] = {}
        self._members: tuple[Member, ...] = ()
        self._next: float | None = None
        self._twice = False
        """A replica did not join because another source has it."""
        self._newest = max((member.incarnation for member in members), default=0)
        for member in members[:MAX_MEMBERS]:
            found = Tracked(member=member)
            if member.spec.draining:
                found.left_at = float("-inf")
            self._replicas[member.origin, member.identity] = found
        self._had_members = bool(members)

    @property
    def members(self) -> tuple[Member, ...]:
        """The members as of the last ``settle``."""
        return self._members

    @property
    def next_at(self) -> float | None:
        """When ``settle`` must be called again, at the latest; ``None`` = after the next event."""
        return self._next

    def counts(self) -> Mapping[str, int]:
        """Return the number of replicas by state: active, draining, held, waiting."""
        return counted(self._replicas.values(), self.hold)

    def nothing(self) -> str:
        """Return why the pool has no replica that takes work, as of the last ``settle``.

        Empty if it has one, or if a source has not answered yet.
        """
        if self._active().total() or not self._origins.keys() <= self._answered:
            return ""
        found = [each for each in self._replicas.values() if each.found is not None]
        if not found:
            return "its sources list no replica"
        if self.unfit and not any(each.spec for each in found):
            return f"{len(found)} replicas are listed, and none fits: {self.unfit[0]}"
        ready = [each for each in found if each.wanted]
        if not ready:
            return f"{len(found)} replicas are listed, and none of them as able to serve"
        return f"{len(found)} replicas are listed, and none takes work yet"

    def waiting(self) -> Iterator[tuple[str, str, EndpointSpec]]:
        """Yield origin, identity and addresses of replicas that wait to join."""
        if self._pool.membership.admit == "found":
            return
        for (origin, identity), each in self._replicas.items():
            spec = each.spec if each.wanted and (each.member is None or each.moved) else None
            if spec is not None:
                yield origin, identity, spec

    # --- events ---------------------------------------------------------------------------------

    def configure(self, pool: PoolSpec) -> None:
        """Take another written pool of the same name."""
        before, self._pool, self._origins = self._origins, pool, origins_of(pool)
        self._answered &= self._origins.keys()
        self._new = self._origins.keys() - (before.keys() - self._new)
        for (origin, identity), each in self._replicas.items():
            known = self._origins.get(origin)
            if known is None:
                each.found = each.spec = None
            elif each.found is not None:
                each.spec = self._spec(known, identity, each.found, [])

    def observe(self, origin: str, observation: Observation) -> None:
        """Take the whole answer of a source; that of an unknown one is ignored."""
        known = self._origins.get(origin)
        if known is None:
            return
        self._answered.add(origin)
        unfit: list[str] = []
        listed = {each.identity: each for each in observation.endpoints}
        for identity, found in listed.items():
            key = (origin, identity)
            each = self._replicas.get(key)
            if each is None:
                if len(self._replicas) >= MAX_MEMBERS:
                    unfit.append(f"more than {MAX_MEMBERS} replicas; {identity} is left out")
                    continue
                each = self._replicas[key] = Tracked(flaps=self._past.pop(key, Flaps()))
            each.found = found
            each.spec = self._spec(known, identity, found, unfit)
        for (source, identity), each in list(self._replicas.items()):
            if source == origin and identity not in listed:
                each.found = each.spec = None
                each.confirmed = each.confirmed or observation.final
                if each.member is None:
                    self._remove((source, identity))
        self._unfit[origin] = unfit[:MAX_UNFIT]
        reasons = (reason for name in self._origins for reason in self._unfit.get(name, ()))
        self.unfit = tuple(reasons)[:MAX_UNFIT]

    def probed(self, origin: str, identity: str, spec: EndpointSpec, *, ready: bool) -> None:
        """Take the result of a look at the model of a replica that waits."""
        each = self._replicas.get((origin, identity))
        if each is not None:
            each.ready = places(spec) if ready else ""

    def confirm(self) -> int:
        """Let the held members go; return how many."""
        held = set() if self.hold is None else set(self.hold.ids)
        count = 0
        for each in self._replicas.values():
            if each.member is not None and each.member.spec.id in held:
                each.confirmed = True
                count += 1
        return count

    def settle(
        self,
        now: float,
        unix_ms: int,
        in_flight: Mapping[str, int] | None,
        born: Born = lambda _: None,
    ) -> tuple[Member, ...]:
        """Apply what is known; return the members, the same object if they are as before.

        Args:
            now: Monotonic seconds.
            unix_ms: The time, Unix milliseconds.
            in_flight: Requests in flight by endpoint id, as pickers report them; ``None`` =
                unknown, and members that leave drain as long as they may.
            born: Returns incarnation and joining of the same replica, as another source has it.
        """
        self._next = None
        before = self._active()
        total = sum(before.values())
        self._admit(now, unix_ms, born)
        self._part(now, total)
        self._finish(now, in_flight)
        held = set() if self.hold is None else set(self.hold.ids)
        found = []
        for each in self._replicas.values():
            member = each.member
            if member is not None:
                is_held = each.active and member.spec.id in held
                if member.held != is_held:
                    each.member = member = replace(member, held=is_held)
                found.append(member)
        members = tuple(found)
        if members != self._members:
            self._members = members
        return self._members

    # --- steps of ``settle`` --------------------------------------------------------------------

    def _active(self) -> Counter[str]:
        """Return the number of active replicas by variant, written ones included."""
        pool = self._pool
        active = Counter(
            pool.variant_of(each)
            for each in pool.endpoints
            if each.dns_name is None and not each.draining
        )
        drained = frozenset(pool.drained)
        for replica in self._replicas.values():
            member = replica.member
            if member is not None and replica.active and member.spec.id not in drained:
                active[pool.variant_of(member.spec)] += 1
        return active

    def _admit(self, now: float, unix_ms: int, born: Born) -> None:
        """Let listed replicas join, come back and move."""
        adopt(self._replicas, self._origins)
        pool, active = self._pool, self._active()
        warm = not self._had_members and not active.total()
        used = {
            each.member.spec.id for each in self._replicas.values() if each.member and each.active
        }
        for key, each in self._replicas.items():
            if each.spec is None or not each.wanted:
                continue
            each.confirmed, each.gone_at = False, None
            self._vanished.pop(key, None)
            alone = not active[pool.variant_of(each.spec)]
            calm = float("-inf") if alone else each.flaps.calm_at(pool.membership.damping)
            is_new = each.member is None or each.moved
            if now < calm and (is_new or not each.active):
                self._wake(calm)
                continue
            ready = pool.membership.admit == "found" or each.ready == places(each.spec)
            if not is_new:
                self._refresh(each, each.spec)
            elif ready or alone:
                self._join(key, each, each.spec, used, born, now, unix_ms, warm=warm)
        self._had_members = self._had_members or any(e.member for e in self._replicas.values())

    def _refresh(self, each: Tracked, spec: EndpointSpec) -> None:
        """Take what the source says of a member at the same address, which is active again."""
        member, each.left_at = each.member, None
        if member is not None:
            spec = spec.model_copy(update={"id": member.spec.id})
            each.member = member if spec == member.spec else replace(member, spec=spec)

    def _join(
        self,
        key: Key,
        each: Tracked,
        spec: EndpointSpec,
        used: set[str],
        born: Born,
        now: float,
        unix_ms: int,
        *,
        warm: bool,
    ) -> None:
        """Make a replica a member, or move a member to another address."""
        if each.member is not None:
            spec = spec.model_copy(update={"id": each.member.spec.id})
            each.flaps = each.flaps.more(now)
        elif spec.id in used:
            other = with_address(spec)
            if other is None or other.id in used:
                self._twice = True  # another source lists it; this one counts when that one ends
                return
            spec = other
        known = born(spec)
        if known is None:
            self._newest = max(unix_ms, self._newest + 1)
            known = (self._newest, 0 if warm else self._newest)
        each.member, each.left_at = Member(spec, *key, *known), None
        used.add(spec.id)

    def _part(self, now: float, total: int) -> None:
        """Let members go that are no longer listed as able to serve, or hold them."""
        if self.hold is not None and self.hold.until is not None:
            total = self.hold.of  # what has joined since does not end a hold
        else:
            self._vanished = {k: at for k, at in self._vanished.items() if now - at < WINDOW_S}
        missing = self._missing(now)
        vanished = missing.vanished
        recent = len(self._vanished)
        many = bool(vanished) and 2 * (recent + len(vanished)) > total + recent
        if many and self._pool.membership.admit == "ready":
            # Others were found ready in their place: this is a replacement, and no broken source.
            many = self._active().total() - len(vanished) - len(missing.ending) < total
        hold_s = self._pool.membership.hold
        due = {k: (self._replicas[k].gone_at or now) + hold_s for k in vanished}
        going = [key for key in vanished if not many or now >= due[key]]
        leaving = [*going, *missing.ending, *missing.replaced]
        about = {key: self._replicas[key] for key in leaving}
        staying = last_of(self._pool, self._active(), about)
        for key in leaving:
            if key not in staying:
                self._replicas[key].leave(now)
                if key in due and not many:
                    self._vanished[key] = now
        kept = [key for key in vanished if key not in going or key in staying]
        kept += [key for key in missing.replaced if key in staying]
        kept += missing.alone
        self._note_hold(kept, {*going, *missing.replaced, *missing.alone}, total)
        if self._twice and leaving:
            self._wake(now)
        self._twice = False

    def _missing(self, now: float) -> Missing:
        """Return the members that are not listed as able to serve."""
        found = Missing([], [], [], [])
        variants = {variant.name for variant in self._pool.variants}
        replaced = self._new <= self._answered
        new = (each for key, each in self._replicas.items() if key[0] in self._new)
        waits = any(each.wanted and each.member is None for each in new)
        for key, each in self._replicas.items():
            if each.member is None or not each.active or each.wanted:
                continue
            listed = key[0] in self._origins
            gone = not listed and self._pool.variant_of(each.member.spec) not in variants
            if each.confirmed or gone or (listed and self._goes(key[0], each)):
                each.leave(now)
            elif not listed:
                each.gone_at = now if each.gone_at is None else each.gone_at
                late = now - each.gone_at >= WINDOW_S
                if not late:
                    self._wake(each.gone_at + WINDOW_S)
                if replaced and (late or not waits):
                    found.replaced.append(key)
                elif late:
                    found.alone.append(key)
            elif key[0] in self._answered:
                each.gone_at = now if each.gone_at is None else each.gone_at
                (found.ending if each.ending else found.vanished).append(key)
        return found

    def _goes(self, origin: str, each: Tracked) -> bool:
        """Return whether a member that its source does not want leaves without a hold."""
        if each.found is not None and not each.found.serving:
            return True
        drained = each.member is not None and each.member.spec.id in self._pool.drained
        return drained and each.found is None and origin in self._answered

    def _note_hold(self, keys: list[Key], last: set[Key], total: int) -> None:
        """Describe the hold: ``keys`` stay, those of ``last`` until this is confirmed."""
        if not keys:
            self.hold = None
            return
        bounded = {self._replicas[key].gone_at or 0.0 for key in keys if key not in last}
        for at in bounded:
            self._wake(at + self._pool.membership.hold)
        until = min(bounded) + self._pool.membership.hold if bounded else None
        self.hold = hold_of([self._replicas[key] for key in keys], until, total)

    def _finish(self, now: float, in_flight: Mapping[str, int] | None) -> None:
        for key, each in list(self._replicas.items()):
            if each.left_at is None or each.member is None:
                continue
            if each.found is not None and key[0] in self._origins:
                continue
            if key[0] in self._origins and key[0] not in self._answered:
                continue
            earliest, latest = each.left_at + LINGER_S, each.left_at + self._pool.membership.drain
            idle = in_flight is not None and not in_flight.get(each.member.spec.id)
            if now >= latest or (idle and now >= earliest):
                self._remove(key)
            else:
                self._wake(max(now + 1.0, earliest) if now + 1.0 < latest else latest)

    def _remove(self, key: Key) -> None:
        flaps = self._replicas.pop(key).flaps
        if flaps.times:
            self._past[key] = flaps
            while len(self._past) > MAX_MEMBERS:
                self._past.popitem(last=False)

    def _wake(self, at: float) -> None:
        self._next = at if self._next is None else min(self._next, at)

    def _spec(
        self, origin: Origin, identity: str, found: Found, unfit: list[str]
    ) -> EndpointSpec | None:
        try:
            told = {"variant": found.variant, "zone": found.zone, "device": found.device}
            return origin.replica(identity, found.http, found.grpc, **told)
        except Unfit as error:
            unfit.append(f"{origin.key}: {identity}: {error}")
            return None
