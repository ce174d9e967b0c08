"""What the control part needs of the ADS server, and nothing more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from xds_server.protocol.snapshot import Snapshot
    from xds_server.protocol.transaction import Audience, OnReject, Stage


class ClientProblem(Protocol):
    """Why a client did not take a publication over."""

    @property
    def client(self) -> str:
        """The client's node id."""

    @property
    def state(self) -> str:
        """``NACKED`` or ``STALLED``."""

    @property
    def type(self) -> str:
        """Short name of the resource type."""

    @property
    def message(self) -> str:
        """The client's own words, or what it has not answered."""


class PublicationOutcome(Protocol):
    """How far a publication has come."""

    @property
    def state(self) -> str:
        """``done``, ``superseded``, ``abandoned`` or ``waiting``."""

    @property
    def stage(self) -> str:
        """Label of the stage it waits in, or ended in; empty before the first."""

    @property
    def clients(self) -> int:
        """Clients it concerned."""

    @property
    def acked(self) -> int:
        """Clients that took all of it over."""

    @property
    def problems(self) -> Sequence[ClientProblem]:
        """Why the others did not."""

    @property
    def channels(self) -> Sequence[str]:
        """Short names of the resource types that were really sent."""

    @property
    def elapsed_s(self) -> float | None:
        """Seconds from the call to its end; ``None`` while it has none."""


class Publication(Protocol):
    """One walk through the stages."""

    @property
    def outcome(self) -> PublicationOutcome:
        """How it stands now, or how it ended."""

    async def wait(self, timeout_s: float) -> PublicationOutcome:
        """Return the outcome, at the latest after ``timeout_s``."""


class Publisher(Protocol):
    """What brings resources to clients."""

    def publish(self, plan: Callable[[], Sequence[Stage]], *, on_reject: OnReject) -> Publication:
        """Walk the stages; an earlier walk under way is superseded."""

    def in_force(self, audience: Audience) -> Snapshot | None:
        """Return what the audience should hold now; ``None`` = nothing was published yet."""


class TypeView(Protocol):
    """One resource type of one client."""

    @property
    def type_url(self) -> str:
        """The resource type."""

    @property
    def short(self) -> str:
        """Short name of the resource type."""

    @property
    def version_sent(self) -> str:
        """Version of the newest answer; empty before the first."""

    @property
    def version_acked(self) -> str:
        """Version that the client has in use; empty before the first."""

    @property
    def state(self) -> str:
        """``SYNCED``, ``STALE``, ``NACKED`` or ``NOT_SENT``."""

    @property
    def message(self) -> str:
        """The client's own words when it refused."""

    @property
    def pending_s(self) -> float:
        """Seconds since an answer is awaited; 0 where none is."""

    @property
    def resources(self) -> int:
        """Resources that the client is sent."""


class ClientView(Protocol):
    """One connected client."""

    @property
    def node(self) -> str:
        """Its node id."""

    @property
    def kind(self) -> str:
        """``envoy`` or ``picker``."""

    @property
    def protocol(self) -> str:
        """``sotw`` or ``delta``."""

    @property
    def peer(self) -> str:
        """Its address."""

    @property
    def connected_s(self) -> float:
        """Seconds since it connected."""

    @property
    def types(self) -> Sequence[TypeView]:
        """What it subscribes to."""


class Observed(Protocol):
    """What can be seen of the clients."""

    def clients(self) -> Sequence[ClientView]:
        """Return the connected clients."""

    def in_flight(self) -> dict[str, int]:
        """Return requests in flight per endpoint id, summed over the reporting pickers."""

    @property
    def settled(self) -> bool:
        """True when no publication is under way."""
