"""Placement: which replica has which model, in which version and state.

Rules:

1. A replica's listing replaces its former one as a whole. One that is older than ``STALE_S`` is
   forgotten, and so is that of a replica that restarted or refuses connections: what is not known
   bars nothing.
2. A model is READY on a replica if the requested version is, or any version where a request names
   none. What a whole listing does not name is UNAVAILABLE.
3. A replica is barred from one model's requests only, and only while another replica of the pool
   has that model READY: a name that no replica has is answered by whichever replica is chosen. That
   holds beside a replica of which nothing is known, too: it may be dead, and engines serve names
   that they do not list.
4. A request may be repeated after a 404 if some replica has its model READY, if one came to the
   pool at most ``OWN_S`` ago and was not looked at yet, or if the model is *lost*: the last replica
   that had it READY has it no more, at most ``OWN_S`` ago, and not all others have been looked at
   since. A loss calls for looks at the others. Behind those that may
   have the model the list of a request names those that are barred (``Holders.maybe``): a model may
   have moved there since they were looked at. An engine's own model cannot go, so its 404 is about
   something else (an adapter, a path, a response that it does not know) and is not repeated.
5. A 404 for a model that was READY at the pick, and since before it, is a *miss*: it calls for one
   look at the replica, and until then bars it from the model, unless that would leave no replica.
   If the look finds the model READY as before, its 404s there to that client
   call for no further look for ``OWN_S``: so there is at most one for each change of a placement
   and each client. Either the model itself answers 404, or what the client asks for is missing (an
   adapter, a region of shared memory), or the model was unloaded and loaded again between two
   looks. What a client finds on ``OWN_REPLICAS`` replicas is its own: meanwhile its requests for
   the model are not repeated, and bar nothing. A request that names shared memory (``scheduler``)
   changes nothing at all.
6. Triton answers a request without a version by the highest version that is READY. Where that is
   not the version of the request's variant (``answering``), the replica is *wrong* for the model:
   it gets no such request, whether or not another replica is right. Versions that are no numbers,
   as of engines, are unknown and wrong for nothing.
7. Such requests that a replica was sent since its last listing but one may have been answered by
   another version if the next listing finds it wrong: ``moved`` counts them, each once. What is
   sent just before a listing may be answered after it.
8. A model that *leaves* a replica (``Endpoint.leaving``: it is about to be unloaded) bars it from
   the model, whether or not another replica is known to have it; only what every replica is barred
   from is sent there. When the mark ends, that lasts until the next look.
9. At most ``MAX_ROWS`` rows of a replica are kept, ``MAX_VIEWS`` models of a pool are precomputed,
   ``MAX_TICKETS`` picks, ``MAX_MISSES`` misses, ``MAX_OWN`` clients of each that is the model's own
   and ``MAX_SENT`` models that a replica was sent requests of are remembered, ``MAX_SENT`` variants
   whose requests were moved, and ``MAX_MISSES`` lost models. A loss calls for at most ``MAX_LOOKS``
   looks in a pool.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from ext_proc.routing.values.listing import OWN_MODEL, Listing, PlacementState, Row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from ext_proc.routing.values.pool import EndpointKey, Pool

STALE_S: Final = 60.0
OWN_S: Final = 10.0
OWN_REPLICAS: Final = 2
MAX_VIEWS: Final = 4096
MAX_TICKETS: Final = 16_384
MAX_MISSES: Final = 4096
MAX_OWN: Final = 64
MAX_SENT: Final = 1024
MAX_LOOKS: Final = 64
_GENERATION: Final = MAX_TICKETS // 2
_NONE: Final[frozenset[EndpointKey]] = frozenset()
_NO_CLIENTS: Final[Mapping[str | None, float]] = MappingProxyType({})
_READY: Final = PlacementState.READY

_Name = str | tuple[str, str]
"""A model, or a model and its version."""


class Unversioned(NamedTuple):
    """Requests for a model that name no version, and are to be answered by one version."""

    model: str
    """Empty = one of the pool's models, which is not known."""
    version: str
    kind: Literal["unversioned"] = "unversioned"
    """Makes it unequal to a model and its version."""


class Sent(NamedTuple):
    """A variant of which a replica was sent requests that name no version."""

    pool: str
    variant: str
    model: str
    version: str
    """The version of the variant."""


class Holders(NamedTuple):
    """Which replicas of a pool have one model."""

    barred: frozenset[EndpointKey]
    """Replicas that do not have it READY, if another one has."""
    ready: frozenset[EndpointKey]
    """Replicas that have it READY."""
    repeats: bool
    """Whether another replica may have the model when one answers 404 (rule 4)."""
    wrong: Mapping[EndpointKey, str] = MappingProxyType({})
    """Replicas that answer by another version than is wanted, and by which one (rule 6)."""
    version: str = ""
    """The version that is wanted of requests that name none; empty = any."""
    maybe: tuple[EndpointKey, ...] = ()
    """Barred replicas that may have it since, the likeliest first; those that it leaves last."""


_UNKNOWN: Final = Holders(_NONE, _NONE, repeats=False)


class Placed(NamedTuple):
    """A row of the table, with its age."""

    key: EndpointKey
    row: Row
    since: float
    """When it was first seen in this state, monotonic seconds."""
    at: float
    """When it was last seen, monotonic seconds."""


class _Held:
    """The listing of one replica."""

    __slots__ = ("answers", "at", "own", "ready", "rows", "since", "whole")

    def __init__(self, listing: Listing, before: _Held | None) -> None:
        self.at, self.rows, self.whole = listing
        earlier: dict[Row, float] = {} if before is None else before.since
        self.since: dict[Row, float] = {row: earlier.get(row, listing.at) for row in self.rows}
        """When each row was first seen like this."""
        self.ready: dict[_Name, float] = {}
        """Models, and versions of models, that are READY, and since when."""
        for row, since in self.since.items():
            if row.state is _READY:
                for name in (row.model, (row.model, row.version)):
                    self.ready[name] = min(since, self.ready.get(name, since))
        self.own = {row.model for row in self.rows if row.reason == OWN_MODEL}
        """Names of the engine's own model."""
        self.answers = _answers(self.rows)
        """By which version it answers requests that name none, by model."""

    def state(self, name: _Name) -> PlacementState | None:
        if name in self.ready or (isinstance(name, tuple) and (name[0], "") in self.ready):
            return _READY
        model, version = name if isinstance(name, tuple) else (name, None)
        listed = [
            row.state for row in self.rows if row.model == model and version in (None, row.version)
        ]
        if listed:
            loads = PlacementState.LOADING in listed
            return PlacementState.LOADING if loads else PlacementState.UNAVAILABLE
        return PlacementState.UNAVAILABLE if self.whole else None


def _answers(rows: Iterable[Row]) -> dict[str, str]:
    """Return the highest version that is READY, by model; versions that are no numbers: none."""
    found: dict[str, str] = {}
    for row in rows:
        if row.state is _READY and row.version.isdecimal():
            found[row.model] = max(row.version, found.get(row.model, row.version), key=int)
    return found


class Placement:
    """The placement of all pools whose replicas are asked for it."""

    def __init__(self) -> None:
        self.on_look: Callable[[EndpointKey], object] = lambda _: None
        """Called with a replica that should be asked at once; set by the picker."""
        self._held: dict[EndpointKey, _Held] = {}
        self._unseen: dict[EndpointKey, float] = {}
        """Replicas that came and were not looked at yet, and when they came (rule 4)."""
        self._members: dict[str, tuple[EndpointKey, ...]] = {}
        self._pools: dict[EndpointKey, list[str]] = {}
        self._models: dict[str, frozenset[str]] = {}
        """The models that each pool lists."""
        self.views: dict[str, dict[_Name | Unversioned, Holders]] = {}
        """By pool and model; pools of which nothing is known are absent."""
        self._sent: dict[EndpointKey, dict[Sent, int]] = {}
        """Requests since the replica's last listing (rule 7)."""
        self._sent_before: dict[EndpointKey, dict[Sent, int]] = {}
        """Requests between its last two listings that the last one was right for."""
        self.moved: dict[tuple[str, str], int] = {}
        """Requests that another version may have answered, since the start, by pool and variant
        (rule 7)."""
        self.moved_at: dict[EndpointKey, int] = {}
        """The same by replica."""
        self._younger: dict[int, tuple[str, str | None, float]] = {}
        self._older: dict[int, tuple[str, str | None, float]] = {}
        """Model, client and time of the latest picks of replicas that had it READY, by ticket."""
        self._missed: dict[tuple[EndpointKey, str], tuple[str | None, float]] = {}
        """Misses that await a look: the client, and when they were noticed."""
        self._own: dict[tuple[EndpointKey, str], dict[str | None, float]] = {}
        """Clients whose misses left the model READY as before, and when they were noticed."""
        self.leaving: dict[EndpointKey, frozenset[str]] = {}
        """The models that leave each replica (rule 8); replicas without any are absent."""
        self._left: dict[tuple[EndpointKey, str], float] = {}
        """Marks that have ended, and when; until the next look."""
        self._lost: dict[tuple[str, str], float] = {}
        """Pools and the models that no replica of theirs has any more, and since when (rule 4)."""
        self._latest = 0.0
        """The newest time that was heard of, monotonic seconds."""
        self.looks = 0
        """Looks that misses and losses called for, since the start."""
        self.changes = 0
        """Number of changes of what is known."""

    def __repr__(self) -> str:
        return f"<Placement replicas={len(self._held)}>"

    def set_pools(self, pools: Mapping[str, Pool], now: float = 0.0) -> None:
        """Replace the pools; listings of replicas that stay are kept.

        Args:
            pools: All pools, by name.
            now: Monotonic seconds.
        """
        self._latest = max(self._latest, now)
        self._members = {
            name: tuple([endpoint.key for endpoint in pool.endpoints])
            for name, pool in pools.items()
            if pool.repository
        }
        self._models = {name: pools[name].models for name in self._members}
        before, self._pools = self._pools, {}
        for name, keys in self._members.items():
            for key in keys:
                self._pools.setdefault(key, []).append(name)
        for key in [each for each in self._held if each not in self._pools]:
            self._drop(key)
        came = self._pools.keys() - before.keys()
        self._unseen = {key: at for key, at in self._unseen.items() if key in self._pools}
        self._unseen |= dict.fromkeys(came, self._latest)
        self._sent = {key: each for key, each in self._sent.items() if key in self._pools}
        kept = {key: each for key, each in self._sent_before.items() if key in self._pools}
        self._sent_before = kept
        self.moved_at = {key: each for key, each in self.moved_at.items() if key in self._pools}
        self._lost = {each: at for each, at in self._lost.items() if each[0] in self._members}
        leaves = self._leave(pools)
        self.views = {}
        for key in {*self._held, *self.leaving, *self._unseen}:
            self._changed(key)
        for key, model in leaves:
            self._look_at_others(key, (model,))

    def _leave(self, pools: Mapping[str, Pool]) -> list[tuple[EndpointKey, str]]:
        """Take which models leave which replicas; return what is new."""
        leaving: dict[EndpointKey, frozenset[str]] = {}
        for name in self._members:
            for each in pools[name].endpoints:
                if each.leaving:
                    leaving[each.key] = leaving.get(each.key, frozenset()) | each.leaving
        before = {(key, model) for key, models in self.leaving.items() for model in models}
        now = {(key, model) for key, models in leaving.items() for model in models}
        for place in before - now:
            if place[0] in self._pools and len(self._left) < MAX_MISSES:
                self._left[place] = self._latest
                self.on_look(place[0])
        self.leaving = leaving
        return sorted(now - before)

    # --- Listings -------------------------------------------------------------------------------

    def take(self, key: EndpointKey, listing: Listing) -> bool:
        """Take a replica's listing; an unknown replica, or an earlier listing, is ignored.

        Returns:
            Whether it differs from what was known.
        """
        before = self._held.get(key)
        if key not in self._pools or (before is not None and listing.at < before.at):
            return False
        listing = listing.cut()
        self._latest = max(self._latest, listing.at)
        self._see(key)
        same = before is not None and (before.rows, before.whole) == listing[1:]
        if before is not None and same:
            before.at = listing.at
            if self._lost:
                self._forget_views(key)
        else:
            self._held[key] = held = _Held(listing, before)
            self._changed(key)
            if before is not None:
                self._note_lost(key, before.ready.keys() - held.ready.keys())
        self._judge_misses(key)
        self._judge_left(key, listing.at)
        self._judge_sent(key)
        return not same

    def forget(self, key: EndpointKey) -> bool:
        """Forget what a replica told, as it is gone; return whether anything was known."""
        self._see(key)
        return self._drop(key)

    def restarted(self, key: EndpointKey) -> None:
        """Forget what a replica told before its process was replaced, and have it asked."""
        if key in self._pools:
            self._drop(key)
            self.on_look(key)

    def sweep(self, now: float) -> None:
        """Forget what is too old; call about once a second."""
        for key in [each for each, held in self._held.items() if now - held.at > STALE_S]:
            self._drop(key)
        for key in [each for each, at in self._unseen.items() if now - at > OWN_S]:
            self._see(key)
        for place, clients in list(self._own.items()):
            kept = {client: at for client, at in clients.items() if now - at <= OWN_S}
            if kept:
                self._own[place] = kept
            else:
                del self._own[place]
        self._latest = max(self._latest, now)
        for lost in [each for each, at in self._lost.items() if now - at > OWN_S]:
            del self._lost[lost]
            if lost[0] in self.views:
                self.views[lost[0]] = {}
        for place in [each for each, miss in self._missed.items() if now - miss[1] > OWN_S]:
            del self._missed[place]
            self._forget_views(place[0])
        for place in [each for each, at in self._left.items() if now - at > STALE_S]:
            del self._left[place]
            self._forget_views(place[0])

    def _drop(self, key: EndpointKey) -> bool:
        before = self._held.pop(key, None)
        known = before is not None
        if before is not None:
            self._note_lost(key, before.ready.keys())
            self._missed = {each: miss for each, miss in self._missed.items() if each[0] != key}
            self._own = {each: found for each, found in self._own.items() if each[0] != key}
            self._changed(key)
        return known

    def _see(self, key: EndpointKey) -> None:
        """Note that a replica was looked at, or that its look is not waited for any more."""
        if self._unseen.pop(key, None) is not None:
            self._forget_views(key)

    def _changed(self, key: EndpointKey) -> None:
        self.changes += 1
        self._forget_views(key)

    def _forget_views(self, key: EndpointKey) -> None:
        known = self._held, self.leaving, self._unseen
        for pool in self._pools.get(key, ()):
            if any(each in one for each in self._members[pool] for one in known):
                self.views[pool] = {}
            else:
                self.views.pop(pool, None)

    def _note_lost(self, key: EndpointKey, names: Iterable[_Name]) -> None:
        """Note which models a replica has no more, and have the others asked (rule 4)."""
        self._look_at_others(key, [each for each in names if isinstance(each, str)], lost=True)

    def _look_at_others(
        self, key: EndpointKey, models: Iterable[str], *, lost: bool = False
    ) -> None:
        """Have the others of a replica's pools asked, where none of them has a model READY."""
        wanted: dict[EndpointKey, None] = {}
        for model in models:
            for pool in self._pools.get(key, ()):
                others = [each for each in self._members[pool] if each != key]
                if any(self._may_serve(each, model) for each in others):
                    continue
                if lost and len(self._lost) < MAX_MISSES:
                    self._lost[pool, model] = self._latest
                wanted.update(dict.fromkeys(others[:MAX_LOOKS]))
        for each in wanted:
            self.looks += 1
            self.on_look(each)

    def _may_serve(self, key: EndpointKey, model: str) -> bool:
        held, place = self._held.get(key), (key, model)
        return (
            held is not None
            and model in held.ready
            and model not in self.leaving.get(key, ())
            and place not in self._missed
        )

    # --- Decisions ------------------------------------------------------------------------------

    def holders(self, pool: str, model: str, version: str | None) -> Holders | None:
        """Return a model's placement in a pool; ``None`` if nothing is known of the pool."""
        views = self.views.get(pool)
        if views is None:
            return None
        name = (model, version) if version else model
        found = views.get(name)
        return self._viewed(pool, name) if found is None else found

    def answering(self, pool: str, model: str | None, version: str) -> Holders | None:
        """Return which replicas answer requests that name no version by this version (rule 6).

        Args:
            pool: The pool.
            model: The model; ``None`` = unknown: wrong is what is wrong for a model of the pool
                that another replica has right.
            version: The version of the variant.

        Returns:
            ``None`` if nothing is known of the pool.
        """
        views = self.views.get(pool)
        if views is None:
            return None
        name = Unversioned(model or "", version)
        found = views.get(name)
        return self._viewed(pool, name) if found is None else found

    def _viewed(self, pool: str, name: _Name | Unversioned) -> Holders:
        views = self.views[pool]
        if len(views) >= MAX_VIEWS:
            views.clear()
        if not isinstance(name, Unversioned):
            found = self._seen(pool, name)
        elif name.model:
            found = self._right(pool, name)
        else:
            found = self._right_for_any(pool, name.version)
        views[name] = found
        return found

    def _right(self, pool: str, name: Unversioned) -> Holders:
        model, version = name.model, name.version
        wrong: dict[EndpointKey, str] = {}
        for key in self._members[pool]:
            held = self._held.get(key)
            answers = version if held is None else held.answers.get(model, version)
            if answers != version:
                wrong[key] = answers
        held_by = self._seen(pool, (model, version))
        ready = held_by.ready.difference(wrong)
        barred = _NONE if held_by.ready else held_by.barred
        if ready:
            barred = held_by.barred.union(wrong)
        repeats = held_by.repeats and (bool(ready) or not held_by.ready)
        maybe = tuple([each for each in held_by.maybe if each not in wrong])
        return Holders(barred, ready, repeats, wrong, version, maybe)

    def _right_for_any(self, pool: str, version: str) -> Holders:
        models = self._models[pool] or {
            row.model
            for key in self._members[pool]
            if (held := self._held.get(key)) is not None
            for row in held.rows
        }
        wrong: dict[EndpointKey, str] = {}
        for model in models:
            found = self._right(pool, Unversioned(model, version))
            if found.ready or len(models) == 1:
                wrong |= found.wrong
        return Holders(_NONE, _NONE, repeats=False, wrong=wrong, version=version)

    def _seen(self, pool: str, name: _Name) -> Holders:
        model = name if isinstance(name, str) else name[0]
        leaving: list[EndpointKey] = []
        doubted: list[EndpointKey] = []
        ready: list[EndpointKey] = []
        lacking: list[tuple[bool, float, EndpointKey]] = []
        for key in self._members[pool]:
            held, place = self._held.get(key), (key, model)
            if model in self.leaving.get(key, ()) or place in self._left:
                leaving.append(key)
                continue
            state = None if held is None else held.state(name)
            if held is None or state is None:
                continue
            if state is not _READY:
                lacking.append((state is not PlacementState.LOADING, held.at, key))
            else:
                (doubted if place in self._missed else ready).append(key)
        if not ready:  # what they are said to lack is said of all of them
            ready, doubted = doubted, ready
        maybe = [key for *_, key in sorted(lacking)] + doubted + leaving
        if ready:
            own = all(model in self._held[key].own for key in ready)
            return Holders(frozenset(maybe), frozenset(ready), not own, maybe=tuple(maybe))
        new = any(each in self._unseen for each in self._members[pool])
        repeats = bool(leaving) or new or self._is_lost(pool, model)
        return Holders(frozenset(leaving), _NONE, repeats, maybe=tuple(leaving))

    def _is_lost(self, pool: str, model: str) -> bool:
        at = self._lost.get((pool, model))
        if at is None:
            return False
        known = [self._held.get(each) for each in self._members[pool]]
        return any(held is None or held.at <= at for held in known)

    def is_own(self, holders: Holders, model: str, client: str | None) -> bool:
        """Return whether a client's 404s for a model are its own or the model's (rule 5).

        Args:
            holders: The placement of the model.
            model: The model.
            client: The client; ``None`` = not known.
        """
        if not self._own:
            return False
        found = sum(client in self._own.get((key, model), _NO_CLIENTS) for key in holders.ready)
        return found >= OWN_REPLICAS

    def note(self, ticket_id: int, model: str, client: str | None, now: float) -> None:
        """Keep that a client's request was sent to a replica that had its model READY."""
        younger = self._younger
        younger[ticket_id] = model, client, now
        if len(younger) >= _GENERATION:
            self._older, self._younger = younger, {}

    def sent(self, key: EndpointKey, what: Sent) -> None:
        """Count a request without a version that was sent to a replica (rule 7)."""
        counts = self._sent.setdefault(key, {})
        if what in counts or len(counts) < MAX_SENT:
            counts[what] = counts.get(what, 0) + 1

    def _judge_sent(self, key: EndpointKey) -> None:
        sent, before = self._sent.pop(key, {}), self._sent_before.pop(key, {})
        if not sent and not before:
            return
        answers = self._held[key].answers
        for what in {**before, **sent}:
            if answers.get(what.model, what.version) == what.version:
                if what in sent:
                    self._sent_before.setdefault(key, {})[what] = sent[what]
            else:
                count = before.get(what, 0) + sent.get(what, 0)
                group = what.pool, what.variant
                self.moved_at[key] = self.moved_at.get(key, 0) + count
                if group in self.moved or len(self.moved) < MAX_SENT:
                    self.moved[group] = self.moved.get(group, 0) + count
                self.changes += 1

    # --- Misses ---------------------------------------------------------------------------------

    def missed(self, ticket_id: int, key: EndpointKey, now: float) -> bool:
        """Take a replica's 404 to a picked request; return whether it called for a look."""
        noted = self._younger.get(ticket_id) or self._older.get(ticket_id)
        held = self._held.get(key)
        if noted is None or held is None:
            return False
        model, client, picked_at = noted
        place = (key, model)
        own = self._own.get(place, _NO_CLIENTS)
        if held.ready.get(model, now) > picked_at or place in self._missed or client in own:
            return False
        if len(self._missed) >= MAX_MISSES or len(own) >= MAX_OWN:
            return False
        self._missed[place] = client, now
        self._forget_views(key)
        self.looks += 1
        self.on_look(key)
        self._look_at_others(key, (model,))
        return True

    def _judge_misses(self, key: EndpointKey) -> None:
        held = self._held[key]
        for place, (client, at) in [each for each in self._missed.items() if each[0][0] == key]:
            if held.at < at:
                continue
            del self._missed[place]
            self._forget_views(key)
            known = place in self._own or len(self._own) < MAX_MISSES
            if held.ready.get(place[1], at) < at and known:
                self._own.setdefault(place, {})[client] = at

    def _judge_left(self, key: EndpointKey, at: float) -> None:
        """Forget the ended marks of a replica that was looked at since."""
        for place in [e for e, left in self._left.items() if e[0] == key and left < at]:
            del self._left[place]
            self._forget_views(key)

    # --- Reports --------------------------------------------------------------------------------

    def state(self, key: EndpointKey, model: str, version: str = "") -> PlacementState | None:
        """Return a model's state on a replica; ``None`` = unknown."""
        held = self._held.get(key)
        return None if held is None else held.state((model, version) if version else model)

    def listing(self, key: EndpointKey) -> Listing | None:
        """Return what is known of a replica."""
        held = self._held.get(key)
        return None if held is None else Listing(held.at, held.rows, held.whole)

    def table(self) -> Iterator[Placed]:
        """Yield all rows."""
        for key, held in self._held.items():
            for row, since in held.since.items():
                yield Placed(key, row, since, held.at)

    def replicas(self) -> Iterator[EndpointKey]:
        """Yield the replicas of which anything is known."""
        yield from self._held

    def of(self, key: EndpointKey, now: float) -> dict[str, object] | None:
        """Return what a replica has, ready for JSON; ``None`` = unknown."""
        held = self._held.get(key)
        if held is None:
            return None
        models: dict[str, dict[str, object]] = {}
        for row, since in held.since.items():
            models.setdefault(row.model, {})[row.version] = {
                "state": str(row.state),
                "for_s": round(now - since, 1),
                **({"reason": row.reason} if row.reason else {}),
            }
        return {"age_s": round(now - held.at, 1), "whole": held.whole, "models": models}
