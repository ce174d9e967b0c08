"""gRPC health (``grpc.health.v1``): ``Check`` and ``Watch``, for the picker and the control server.

Rules:

1. A watcher gets the current status at once, then each change. If changes come faster than it
   reads, it gets only the last one. Nothing is queued: a slow watcher costs one flag.
2. Watchers are independent: the end of one watch ends no other, and a slow watcher delays no other.
3. ``Check`` answers NOT_FOUND for a service whose status was never set. ``Watch`` answers
   SERVICE_UNKNOWN and stays open, as the protocol requires (grpc: ``doc/health-checking.md``).
4. At most ``MAX_WATCHERS`` watches are open at a time; further ones get RESOURCE_EXHAUSTED.

This replaces the asyncio servicer of grpcio-health-checking (``grpc_health.v1._async``, private),
which drops all watchers of a service as soon as the first of them leaves.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

MAX_WATCHERS: Final = 1_000

_STATUS: Final = health_pb2.HealthCheckResponse
SERVING: Final = _STATUS.SERVING
NOT_SERVING: Final = _STATUS.NOT_SERVING


class HealthService(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # the library is untyped
    """The status of each service of one server."""

    def __init__(self) -> None:
        self._statuses: dict[str, int] = {}
        self._watchers: set[asyncio.Event] = set()

    @property
    def watchers(self) -> int:
        """The number of open watches."""
        return len(self._watchers)

    def set(self, service: str, *, serving: bool) -> None:
        """Set a service's status and wake its watchers."""
        self._statuses[service] = SERVING if serving else NOT_SERVING
        for changed in self._watchers:
            changed.set()

    async def Check(self, request: Any, context: Any) -> Any:  # noqa: N802 - the protocol's name
        """Answer with the current status."""
        status = self._statuses.get(request.service)
        if status is None:
            await context.abort(
                grpc.StatusCode.NOT_FOUND, f"unknown service {request.service!r:.80}"
            )
        return health_pb2.HealthCheckResponse(status=status)

    async def Watch(self, request: Any, context: Any) -> None:  # noqa: N802 - the protocol's name
        """Send the current status, then each change, until the caller cancels."""
        if len(self._watchers) >= MAX_WATCHERS:
            await context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"{MAX_WATCHERS} watches are open already; use Check",
            )
        changed = asyncio.Event()
        self._watchers.add(changed)
        try:
            sent: int | None = None
            while True:
                changed.clear()
                status = self._statuses.get(request.service, _STATUS.SERVICE_UNKNOWN)
                if status != sent:
                    sent = status
                    await context.write(health_pb2.HealthCheckResponse(status=status))
                await changed.wait()
        finally:
            self._watchers.discard(changed)
