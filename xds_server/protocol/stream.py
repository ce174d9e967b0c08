"""One client's ADS stream: takes requests and snapshots, returns responses.

Rules (X numbers: the conformance checklist that the tests cite):

1. Types are independent of each other in subscription, version, nonce and acknowledgement (X4),
   except for rules 3 and 4. Each type follows the rules of ``tracker``.
2. Responses sent together are ordered CDS, EDS, LDS, RDS, with RTDS before CDS, SDS and ECDS before
   LDS and all other types last (X50). EDS never waits for the ACK of CDS: Envoy withholds that ACK
   until its clusters are warm, and warming needs EDS.
3. A message that adds or changes a cluster is followed by that cluster's assignment, even if the
   assignment is unchanged (X53). Without it Envoy keeps the old cluster for 15 s; in the delta
   variant it reports no error.
4. Filters, listeners and routes that a client already has are updated only while CDS is neither in
   flight nor rejected (X51, X56), so that they never name a cluster that the client may lack. The
   first response of a type is not delayed.
5. Without a snapshot, and for a type that the snapshot does not serve, nothing is sent (X3, X9).
6. A request that exceeds a bound raises ``ProtocolError`` and changes nothing.
7. A client that does not subscribe to all layers of weights gets the ``plain`` form of its
   snapshot, whose routes contain the weights. Envoy asks for its layers before anything else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from tidegate_api.names import (
    CLUSTER_TYPE,
    ENDPOINT_TYPE,
    EXTENSION_TYPE,
    LISTENER_TYPE,
    ROUTE_TYPE,
    RUNTIME_TYPE,
    SECRET_TYPE,
    WEIGHT_LAYERS,
)
from xds_server.protocol.messages import (
    MAX_TYPES,
    AckVerdict,
    DeltaRequest,
    ProtocolError,
    ResourceResponse,
    ResourceView,
    SotwRequest,
    Standing,
)
from xds_server.protocol.tracker import MAX_NAMES, TypeTracker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from xds_server.protocol.messages import State, TypeView
    from xds_server.protocol.snapshot import Resource, Snapshot

_ORDER: Final = {
    RUNTIME_TYPE: 0,  # a cluster's limits arrive before the cluster
    CLUSTER_TYPE: 1,
    ENDPOINT_TYPE: 2,
    SECRET_TYPE: 3,
    EXTENSION_TYPE: 4,  # filters that a listener names
    LISTENER_TYPE: 5,
    ROUTE_TYPE: 6,
}
_FOLLOWS_CLUSTERS: Final = frozenset({EXTENSION_TYPE, LISTENER_TYPE, ROUTE_TYPE})
_BY_NAME: Final = frozenset({ENDPOINT_TYPE, EXTENSION_TYPE, ROUTE_TYPE, RUNTIME_TYPE, SECRET_TYPE})
"""Types that clients request by name: they have no legacy wildcard, and state-of-the-world messages
may carry a part of the set (X29). Messages of all other types carry the whole set (X28)."""

Request = TypeVar("Request", SotwRequest, DeltaRequest)


@dataclass(frozen=True, slots=True)
class Reaction:
    """The result of one request."""

    responses: list[ResourceResponse]
    verdict: AckVerdict | None = None
    """The ACK or NACK of the message in flight; ``None`` if the request contains neither."""


class _Stream(ABC, Generic[Request]):
    """Behaviour common to both variants."""

    _delta: bool

    def __init__(self, stream_id: str) -> None:
        self.adapt: Callable[[Snapshot], Snapshot] | None = None
        """Turns each snapshot into the one for this client's build; the same for an equal one."""
        self.given: Snapshot | None = None
        """The snapshot of the last ``on_snapshot``, before ``adapt``."""
        self._stream_id = stream_id
        self._snapshot: Snapshot | None = None
        self._has_layers = False
        self._trackers: dict[str, TypeTracker] = {}
        self._ordered: list[TypeTracker] = []
        self._nonces = 0
        self._nacks = 0

    def on_snapshot(self, snapshot: Snapshot, now: float) -> list[ResourceResponse]:
        """Set the snapshot that the client should hold; return the responses to send now."""
        if snapshot is self.given:
            return []  # what is due was sent after the last event
        self.given = snapshot
        if self.adapt is not None:
            snapshot = self.adapt(snapshot)
        before, self._snapshot = self._visible, snapshot
        after = self._visible
        for tracker in self._ordered:
            if before is None or after is None or before.differs(after, tracker.type_url):
                tracker.touch()
        return self._burst(now)

    def on_request(self, request: Request, now: float) -> Reaction:
        """Process a client's request.

        Raises:
            ProtocolError: The request names no type or exceeds a bound; nothing has changed.
        """
        if not request.type_url:
            raise ProtocolError("type_url is empty; on ADS every request must name its type")
        tracker = self._tracker(request.type_url)
        self._subscribe(tracker, request)
        if request.type_url == RUNTIME_TYPE:
            self._look_for_layers(tracker)
        verdict = tracker.answered(request.nonce, request.error, now)
        if verdict is not None and not verdict.accepted:
            self._nacks += 1
        return Reaction(self._burst(now), verdict)

    @property
    def snapshot(self) -> Snapshot | None:
        """The snapshot that the client should hold; ``None`` = none yet."""
        return self._snapshot

    @property
    def _visible(self) -> Snapshot | None:
        """The snapshot in the form for this client's bootstrap."""
        snapshot = self._snapshot
        return snapshot if snapshot is None or self._has_layers else snapshot.plain

    def has_requested(self, type_url: str) -> bool:
        """Return whether the client has requested this type."""
        tracker = self._trackers.get(type_url)
        return tracker is not None and tracker.requested

    @property
    def resumed(self) -> bool:
        """The client has stated that it holds resources from an earlier stream."""
        return any(tracker.resumed for tracker in self._ordered)

    @property
    def owes_answer(self) -> bool:
        """The client has a message that it has not answered."""
        return any(tracker.in_flight for tracker in self._ordered)

    def acknowledged(self, type_url: str) -> str:
        """Return the nonce of the type's last acknowledged response; empty if there is none."""
        tracker = self._trackers.get(type_url)
        return "" if tracker is None else tracker.acknowledged

    def standing(self) -> Standing:
        """Return the state of the client relative to its snapshot, over all types."""
        refused: TypeTracker | None = None
        pending: TypeTracker | None = None
        for tracker in self._ordered:
            if tracker.settled or not tracker.requested:
                continue
            if tracker.refused:
                refused = refused or tracker
            if tracker.state == "STALE" and not (
                self._clusters_refused() and self._held_back(tracker)
            ):
                pending = pending or tracker
        if pending is not None:
            return Standing("PENDING", pending.type_url, nacks=self._nacks)
        if refused is not None:
            return Standing("NACKED", refused.type_url, refused.refusal, self._nacks)
        return Standing("SYNCED", nacks=self._nacks)

    def views(self, now: float) -> tuple[TypeView, ...]:
        """Return one status cell per requested type, in the order in which types are sent."""
        return tuple(tracker.view(now) for tracker in self._ordered if tracker.requested)

    def resources(self) -> Iterator[ResourceView]:
        """Yield each resource that the client is to have or has, by type and name."""
        snapshot = self._visible
        for tracker in self._ordered:
            url = tracker.type_url
            wanted: Mapping[str, Resource] = {} if snapshot is None else snapshot.resources(url)
            held, refused = tracker.holdings()
            names = {name for name in wanted if tracker.subscription.wants(name)}
            names.update(name for name, version in held.items() if version)
            for name in sorted(names):
                found, acked = wanted.get(name), held.get(name) or ""
                version, packed = ("", b"") if found is None else (found.version, found.any)
                state: State = "NACKED" if name in refused else "STALE"
                state = "SYNCED" if acked == version else state
                yield ResourceView(url, name, version, acked, state, packed)

    @abstractmethod
    def _subscribe(self, tracker: TypeTracker, request: Request) -> None:
        """Apply the request's resource names to the subscription."""

    def _tracker(self, type_url: str) -> TypeTracker:
        tracker = self._trackers.get(type_url)
        if tracker is None:
            if len(self._trackers) >= MAX_TYPES and type_url != ENDPOINT_TYPE:
                raise ProtocolError(f"more than {MAX_TYPES} resource types on one stream")
            tracker = TypeTracker(
                type_url,
                full_set=not self._delta and type_url not in _BY_NAME,
                # A filter's settings serve the connections that drain, until Envoy no longer asks
                # for them. Told that they are gone, it would answer these with 500.
                reports_absence=self._delta and type_url != EXTENSION_TYPE,
                legacy_wildcard=type_url not in _BY_NAME,
            )
            self._trackers[type_url] = tracker
            self._ordered = sorted(
                self._trackers.values(), key=lambda t: (_ORDER.get(t.type_url, 9), t.type_url)
            )
        return tracker

    def _touch(self) -> None:
        for tracker in self._ordered:
            tracker.touch()

    def _look_for_layers(self, tracker: TypeTracker) -> None:
        has_layers = all(map(tracker.subscription.wants, WEIGHT_LAYERS))
        if has_layers != self._has_layers:
            self._has_layers = has_layers
            self._touch()

    def _burst(self, now: float) -> list[ResourceResponse]:
        responses: list[ResourceResponse] = []
        snapshot = self._visible
        if snapshot is None or not self._ordered:
            return responses
        if CLUSTER_TYPE in self._trackers:
            self._tracker(ENDPOINT_TYPE)  # records rule 3's assignments before EDS is requested
        for tracker in self._ordered:
            if tracker.settled or not tracker.requested:
                continue
            content = tracker.due(snapshot, now)
            if content is None or self._held_back(tracker):
                continue
            self._nonces += 1
            nonce = f"{self._stream_id}-{self._nonces}"
            version = snapshot.version(tracker.type_url)
            fresh = tracker.sent(content, nonce, version, now)
            if tracker.type_url == CLUSTER_TYPE:
                endpoints = self._trackers[ENDPOINT_TYPE]
                endpoints.force(snapshot.eds_name(cluster) for cluster in fresh)
                endpoints.unforce(snapshot)
            responses.append(
                ResourceResponse(
                    tracker.type_url, version, nonce, content.resources, content.removed
                )
            )
        return responses

    def _held_back(self, tracker: TypeTracker) -> bool:
        if tracker.type_url not in _FOLLOWS_CLUSTERS or not tracker.established:
            return False
        clusters = self._trackers.get(CLUSTER_TYPE)
        return clusters is not None and (clusters.in_flight or clusters.refused)

    def _clusters_refused(self) -> bool:
        clusters = self._trackers.get(CLUSTER_TYPE)
        return clusters is not None and clusters.refused


class SotwStream(_Stream[SotwRequest]):
    """A stream of the state-of-the-world variant; see the module's rules.

    The first request of a type is always answered, even if a reconnecting client states the current
    version: Envoy reports its last *accepted* version although it may hold parts of a message that
    it rejected, and receiving an unchanged resource costs it nothing.

    Args:
        stream_id: Prefix of each nonce; nonces of other streams are invalid here (X5).
    """

    _delta = False

    def _subscribe(self, tracker: TypeTracker, request: SotwRequest) -> None:
        subscription = tracker.subscription
        first, was_wildcard = not tracker.requested, subscription.wildcard
        before = (subscription.wildcard, subscription.names)
        subscription.replace(request.names)
        if first and request.holds:
            tracker.resumed = True
        if first or before != (subscription.wildcard, subscription.names):
            tracker.subscribed(wildcard_began=subscription.wildcard and not was_wildcard)


class DeltaStream(_Stream[DeltaRequest]):
    """A stream of the delta (incremental) variant; see the module's rules.

    Args:
        stream_id: Prefix of each nonce; nonces of other streams are invalid here (X5).
    """

    _delta = True

    def _subscribe(self, tracker: TypeTracker, request: DeltaRequest) -> None:
        first = not tracker.requested
        if len(request.initial_versions) > MAX_NAMES:
            raise ProtocolError(f"more than {MAX_NAMES} initial resource versions")
        if not first and not request.subscribe and not request.unsubscribe:
            return
        expected, began = tracker.subscription.change(request.subscribe, request.unsubscribe)
        tracker.subscribed(
            expected=() if first else expected,
            wildcard_began=began,
            initial_versions=request.initial_versions if first else None,
        )
