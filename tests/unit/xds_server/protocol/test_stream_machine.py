"""Random sequences of a client's actions against a model, in both variants.

The model is a client as the specification describes it: it applies what it accepts, rejects
messages that contain poison, changes its subscriptions, answers late and reconnects.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from support.tries import tries
from tidegate_api.names import CLUSTER_TYPE, ENDPOINT_TYPE, LISTENER_TYPE, ROUTE_TYPE
from xds_server.protocol.messages import DeltaRequest, SotwRequest
from xds_server.protocol.snapshot import Snapshot
from xds_server.protocol.stream import DeltaStream, SotwStream

if TYPE_CHECKING:
    from xds_server.protocol.messages import ResourceResponse

POISON = b"bad"
NAMES = ("a", "b", "c")
WILD = (CLUSTER_TYPE, LISTENER_TYPE)
NAMED = (ENDPOINT_TYPE, ROUTE_TYPE)
TYPES = WILD + NAMED

bodies = st.sampled_from([b"1", b"2", b"3", POISON, None])
contents = st.dictionaries(st.sampled_from(NAMES), st.sampled_from([b"1", b"2", b"3", POISON]))
snapshots = st.fixed_dictionaries(dict.fromkeys(TYPES, contents))
subsets = st.frozensets(st.sampled_from(NAMES))


class ClientMachine(RuleBasedStateMachine):
    """Rules and checks common to both variants."""

    keeps_deleted: tuple[str, ...] = ()

    def __init__(self) -> None:
        super().__init__()
        self.stream: Any = None
        self.snapshot: Snapshot | None = None
        self.streams = 0
        self.held: dict[str, dict[str, str]] = {}
        self.held.update((type_url, {}) for type_url in TYPES)
        self.before: frozenset[str] | None = None
        self.content: dict[str, dict[str, bytes]] = {}
        self.open_stream()

    @abstractmethod
    def make_stream(self, stream_id: str) -> Any:
        """Return a new stream of the variant."""

    def open_stream(self) -> None:
        self.streams += 1
        self.stream = self.make_stream(str(self.streams))
        self.wanted: dict[str, frozenset[str] | None] = {}
        self.queue: list[ResourceResponse] = []
        self.nonces: dict[str, str] = {}
        self.refused: dict[str, set[tuple[str, ...]]] = {t: set() for t in TYPES}
        self.current: dict[str, str] = {}
        if self.snapshot is not None:
            assert self.stream.on_snapshot(self.snapshot, 0.0) == []

    # --- what happens ---------------------------------------------------------------------------

    @initialize(content=snapshots, names=subsets, early=st.booleans())
    def begin(
        self, content: dict[str, dict[str, bytes]], names: frozenset[str], early: bool
    ) -> None:
        """The client subscribes like Envoy, before or after resources exist."""
        if early:
            self.publish(content)
        for type_url in TYPES:
            self.subscribe(type_url, names)
        if not early:
            self.publish(content)

    @rule(type_url=st.sampled_from(TYPES), name=st.sampled_from(NAMES), body=bodies)
    def edit(self, type_url: str, name: str, body: bytes | None) -> None:
        """One resource is set or removed."""
        messages = {n: m for n, m in self.content[type_url].items() if n != name}
        if body is not None:
            messages[name] = body
        self.publish({**self.content, type_url: messages})

    @rule()
    def take_all(self) -> None:
        """The client reads all messages received so far."""
        for _ in range(len(self.queue)):
            self.answer()

    def publish(self, content: dict[str, dict[str, bytes]]) -> None:
        self.content = content
        self.snapshot = Snapshot.of(content, previous=self.snapshot)
        for type_url in TYPES:
            version = self.snapshot.version(type_url)
            if self.current.get(type_url) != version:
                self.current[type_url] = version
                self.refused[type_url].clear()
        self.receive(self.stream.on_snapshot(self.snapshot, 0.0))

    @rule(type_url=st.sampled_from(NAMED), names=subsets)
    def subscribe(self, type_url: str, names: frozenset[str]) -> None:
        """The client subscribes, or changes its subscription."""
        before = self.wanted.get(type_url)
        first = type_url not in self.wanted
        new = None if type_url in WILD else names
        self.wanted[type_url] = new
        if new is not None:
            self.held[type_url] = {n: v for n, v in self.held[type_url].items() if n in new}
            self.refused[type_url].clear()
        self.before = None if first else before or frozenset()
        self.receive(self.request_names(type_url))

    @precondition(lambda self: self.queue)
    @rule()
    def take(self) -> None:
        """The client reads a message."""
        self.answer()

    def answer(self) -> None:
        """The client processes the oldest message: it applies and ACKs it, or NACKs it."""
        response = self.queue.pop(0)
        bodies = [resource.any for resource in response.resources]
        poisoned = any(body.endswith(POISON) for body in bodies)
        if poisoned:
            self.refused[response.type_url].add(_identity(response))
        else:
            self.apply(response)
        self.nonces[response.type_url] = response.nonce
        self.receive(self.request_answer(response, "poison" if poisoned else None))

    @rule(dice=st.integers(0, 9))
    def reconnect(self, dice: int) -> None:
        """The stream breaks from time to time; the client keeps its resources."""
        if dice == 9:
            self.open_stream()

    # --- what must hold -------------------------------------------------------------------------

    def receive(self, responses: list[ResourceResponse]) -> None:
        """Check each message as it arrives."""
        kinds = [TYPES.index(t) for t in (r.type_url for r in responses) if t == CLUSTER_TYPE]
        if kinds:
            assert responses[0].type_url == CLUSTER_TYPE, "clusters go first"
        for response in responses:
            names = [r.name for r in response.resources] + list(response.removed)
            assert len(names) == len(set(names)), "X26: no name twice"
            assert response.nonce, "X5: a nonce"
            assert response.type_url in self.wanted, "X25: asked for"
            assert _identity(response) not in self.refused[response.type_url], "X12: not again"
            wanted = self.wanted[response.type_url]
            if wanted is not None:
                assert {r.name for r in response.resources} <= wanted, "X25: wanted"
        self.queue += responses

    @invariant()
    def one_message_in_flight(self) -> None:
        """X63: at most one unanswered message per type."""
        kinds = [response.type_url for response in self.queue]
        assert len(kinds) == len(set(kinds))

    def settle(self) -> None:
        """Answer messages until none is left."""
        for _ in range(200):
            if not self.queue:
                break
            self.answer()
        assert not self.queue, "it settles"

    def teardown(self) -> None:
        """Everything settles; after the next good state the client holds exactly that (X13)."""
        self.settle()
        assert self.stream.standing().state != "PENDING"
        if self.snapshot is None:
            return
        good = {
            type_url: {n: b"3" if body == POISON else body for n, body in messages.items()}
            for type_url, messages in self.content.items()
        }
        self.publish(good)
        self.settle()
        assert self.stream.standing().state == "SYNCED"
        for type_url, wanted in self.wanted.items():
            target = {
                name: resource.version
                for name, resource in self.snapshot.resources(type_url).items()
                if wanted is None or name in wanted
            }
            held = self.held[type_url]
            if type_url in self.keeps_deleted:
                held = {name: version for name, version in held.items() if name in target}
            assert held == target, type_url

    # --- the variants ---------------------------------------------------------------------------

    @abstractmethod
    def apply(self, response: ResourceResponse) -> None:
        """Take a response as the client does."""

    @abstractmethod
    def request_names(self, type_url: str) -> list[ResourceResponse]:
        """Request the names of a type that the client wants; return the responses."""

    @abstractmethod
    def request_answer(
        self, response: ResourceResponse, error: str | None
    ) -> list[ResourceResponse]:
        """Acknowledge or reject a response; return the responses."""


class SotwMachine(ClientMachine):
    """A client of the state-of-the-world variant."""

    def make_stream(self, stream_id: str) -> Any:
        return SotwStream(stream_id)

    def apply(self, response: ResourceResponse) -> None:
        held = self.held[response.type_url]
        if response.type_url in WILD:
            held.clear()
        wanted = self.wanted[response.type_url]
        for resource in response.resources:
            if wanted is None or resource.name in wanted:
                held[resource.name] = resource.version

    keeps_deleted = NAMED  # X29: absence is not deletion

    def _names(self, type_url: str) -> tuple[str, ...]:
        return tuple(self.wanted[type_url] or ())

    def request_names(self, type_url: str) -> list[ResourceResponse]:
        request = SotwRequest(type_url, self._names(type_url), "", self.nonces.get(type_url, ""))
        return self.stream.on_request(request, 0.0).responses

    def request_answer(
        self, response: ResourceResponse, error: str | None
    ) -> list[ResourceResponse]:
        names = self._names(response.type_url)
        request = SotwRequest(response.type_url, names, response.version, response.nonce, error)
        return self.stream.on_request(request, 0.0).responses


class DeltaMachine(ClientMachine):
    """A client of the delta variant."""

    def make_stream(self, stream_id: str) -> Any:
        return DeltaStream(stream_id)

    def apply(self, response: ResourceResponse) -> None:
        held = self.held[response.type_url]
        wanted = self.wanted[response.type_url]
        for resource in response.resources:
            if wanted is None or resource.name in wanted:
                held[resource.name] = resource.version
        for name in response.removed:
            held.pop(name, None)

    def request_names(self, type_url: str) -> list[ResourceResponse]:
        wanted, old = self.wanted[type_url] or frozenset(), self.before or frozenset()
        request = DeltaRequest(
            type_url,
            tuple(wanted - old),
            tuple(old - wanted),
            dict(self.held[type_url]) if self.before is None else {},
        )
        return self.stream.on_request(request, 0.0).responses

    def request_answer(
        self, response: ResourceResponse, error: str | None
    ) -> list[ResourceResponse]:
        request = DeltaRequest(response.type_url, nonce=response.nonce, error=error)
        return self.stream.on_request(request, 0.0).responses


def _identity(response: ResourceResponse) -> tuple[str, ...]:
    versions = [f"{r.name}={r.version}" for r in response.resources]
    return tuple(sorted(versions + [f"-{name}" for name in response.removed]))


_SETTINGS = settings(
    max_examples=tries(60), stateful_step_count=40, deadline=None, derandomize=True
)

TestSotw = SotwMachine.TestCase
TestSotw.settings = _SETTINGS
TestDelta = DeltaMachine.TestCase
TestDelta.settings = _SETTINGS
