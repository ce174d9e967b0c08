"""gRPC health (``grpc.health.v1``): ``Check`` and ``Watch``.

Law:

1. A watcher hears the present status at once, then each change; where changes come faster than
   it reads, it hears the last one. Nothing is queued, so a slow watcher costs one flag.
2. Watchers do not know of each other: one that leaves ends nobody else's watch.
3. A service that nobody set is NOT_FOUND for ``Check`` and SERVICE_UNKNOWN for ``Watch``, which
   stays open, as the protocol has it (grpc: ``doc/health-checking.md``).
4. At most `MAX_WATCHERS` watch at one time; a further one is RESOURCE_EXHAUSTED.

grpcio-health-checking's own asyncio servicer is not used: the first watcher of a service that
leaves makes it forget all others.
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


class Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # the library is untyped
    """The status of each service."""

    def __init__(self) -> None:
        self._statuses: dict[str, int] = {}
        self._watchers: set[asyncio.Event] = set()

    @property
    def watchers(self) -> int:
        """How many watch."""
        return len(self._watchers)

    def set(self, service: str, *, serving: bool) -> None:
        """Set a service's status and tell who watches."""
        self._statuses[service] = SERVING if serving else NOT_SERVING
        for changed in self._watchers:
            changed.set()

    async def Check(self, request: Any, context: Any) -> Any:  # noqa: N802 - the protocol's name
        """Answer with the present status."""
        status = self._statuses.get(request.service)
        if status is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no service {request.service!r:.80}")
        return health_pb2.HealthCheckResponse(status=status)

    async def Watch(self, request: Any, context: Any) -> None:  # noqa: N802 - the protocol's name
        """Write the present status and each change, until the caller leaves."""
        if len(self._watchers) >= MAX_WATCHERS:
            await context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED, f"{MAX_WATCHERS} watch already; use Check"
            )
        changed = asyncio.Event()
        self._watchers.add(changed)
        try:
            told: int | None = None
            while True:
                changed.clear()
                status = self._statuses.get(request.service, _STATUS.SERVICE_UNKNOWN)
                if status != told:
                    told = status
                    await context.write(health_pb2.HealthCheckResponse(status=status))
                await changed.wait()
        finally:
            self._watchers.discard(changed)
