"""What the control part and the admin API need of the ADS server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from xds_server.protocol.messages import ClientView, ResourceView
    from xds_server.protocol.publication import Audience, OnReject, PublicationOutcome, Stage
    from xds_server.protocol.snapshot import Snapshot


class PublicationHandle(Protocol):
    """One publication, under way or ended."""

    @property
    def outcome(self) -> PublicationOutcome:
        """Its outcome, current or final."""

    async def wait(self, timeout_s: float) -> PublicationOutcome:
        """Wait for the end, at most ``timeout_s`` seconds, and return the outcome."""


class SnapshotPublisher(Protocol):
    """Brings snapshots to all clients, stage by stage."""

    def publish(
        self,
        plan: Callable[[], Sequence[Stage]],
        *,
        on_reject: OnReject,
        quorum: float = ...,
        waves: bool = ...,
    ) -> PublicationHandle:
        """Publish the stages; a publication under way is superseded."""

    def in_force(self, audience: Audience) -> Snapshot | None:
        """Return the newest snapshot for all of an audience; ``None`` = nothing was published."""


class ClientDirectory(Protocol):
    """The connected clients and what they report."""

    def clients(self) -> Sequence[ClientView]:
        """Return the connected clients."""

    def resources(self, number: int) -> Iterable[ResourceView]:
        """Return the resources of a client, by the ``number`` of its view; none if it is gone."""

    def in_flight(self) -> dict[str, int]:
        """Return requests in flight per endpoint id, summed over the reporting pickers."""

    @property
    def settled(self) -> bool:
        """No publication is running."""
