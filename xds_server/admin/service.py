"""Admin service: converts operators' gRPC requests to calls of ``Control``, and errors to statuses.

| error | status |
|---|---|
| the fleet or a value in the request is invalid | INVALID_ARGUMENT |
| a pool, variant, endpoint or revision does not exist | NOT_FOUND |
| too many changes wait | ABORTED |
| the revision cannot be stored | FAILED_PRECONDITION |
| an internal error, found before anything was published | INTERNAL |

The service has no authentication: bind it to loopback, or put an authenticating proxy in front.
"""

from __future__ import annotations

import asyncio
import functools
import math
from typing import TYPE_CHECKING, Any, TypeVar

import grpc
from envoy.service.status.v3 import csds_pb2_grpc

from tidegate_api.admin.v1 import admin_pb2, admin_pb2_grpc
from xds_server.control.operation import DEFAULT_TIMEOUT_S, MAX_TIMEOUT_S, Busy, ChangeOptions
from xds_server.fleet.change import BadChange, UnknownName
from xds_server.fleet.document import MAX_BYTES
from xds_server.fleet.load import FleetError
from xds_server.fleet.store import MAX_REVISIONS, StoreError, UnknownRevision
from xds_server.snapshots.check import Inconsistent

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from xds_server.admin.csds import ClientStatusService
    from xds_server.control.fleet_control import Control
    from xds_server.control.operation import Change
    from xds_server.control.publisher import ClientDirectory
    from xds_server.fleet.findings import Sick
    from xds_server.fleet.revision import Revision
    from xds_server.protocol.messages import ClientView, RefusedPeer
    from xds_server.protocol.publication import ClientProblem

MAX_MESSAGE_BYTES = MAX_BYTES + 64 * 1024
"""Largest request: the largest fleet file and its options."""

MAX_ANSWER_BYTES = 64 * 2**20
"""Largest answer. Answers may be larger than the file, because they contain all defaults."""

MAX_CONCURRENT_CALLS = 256
MAX_STATUS_BYTES = 4096
"""Longest status text. It is sent in a header, whose size peers bound (by default 8 KiB,
percent-encoded)."""

_DEFAULT_REVISIONS = 20
_STATUS: tuple[tuple[type[Exception], grpc.StatusCode], ...] = (
    (FleetError, grpc.StatusCode.INVALID_ARGUMENT),
    (UnknownName, grpc.StatusCode.NOT_FOUND),
    (UnknownRevision, grpc.StatusCode.NOT_FOUND),
    (BadChange, grpc.StatusCode.INVALID_ARGUMENT),
    (Busy, grpc.StatusCode.ABORTED),
    (StoreError, grpc.StatusCode.FAILED_PRECONDITION),
    (Inconsistent, grpc.StatusCode.INTERNAL),
)
_Method = TypeVar("_Method", bound="Callable[..., Awaitable[Any]]")


def _explained(method: _Method) -> _Method:
    """Convert the errors of ``_STATUS`` to gRPC statuses."""

    @functools.wraps(method)
    async def call(self: AdminService, request: Any, context: Any) -> Any:
        try:
            return await method(self, request, context)
        except tuple(kind for kind, _ in _STATUS) as error:
            status = next(status for kind, status in _STATUS if isinstance(error, kind))
            await context.abort(status, _shortened(str(error)))

    return call  # type: ignore[return-value]  # wraps() keeps the signature, mypy cannot see it


class AdminService(admin_pb2_grpc.AdminServicer):
    """``tidegate.admin.v1.Admin``.

    Args:
        control: Changes the fleet.
        observed: State of the clients.
        sick: Returns the replicas that pickers report as sick.
        refused: Returns the peers that the ADS port does not serve.
    """

    def __init__(
        self,
        control: Control,
        observed: ClientDirectory,
        sick: Callable[[], Sequence[Sick]] = tuple,
        refused: Callable[[], Sequence[RefusedPeer]] = tuple,
    ) -> None:
        self._control = control
        self._observed = observed
        self._sick = sick
        self._refused = refused

    @_explained
    async def Apply(  # noqa: N802 - gRPC's name
        self, request: admin_pb2.ApplyRequest, _context: Any
    ) -> admin_pb2.ChangeResult:
        """Make a fleet file the fleet in force."""
        options, source = _options(request.options), request.source[:256] or "fleet"
        return self._result(await self._control.apply_text(request.fleet, source, options))

    @_explained
    async def SetWeights(  # noqa: N802 - gRPC's name
        self, request: admin_pb2.SetWeightsRequest, _context: Any
    ) -> admin_pb2.ChangeResult:
        """Set variants' weights."""
        options = _options(request.options)
        weights = dict(request.weights)
        return self._result(await self._control.set_weights(request.pool, weights, options))

    @_explained
    async def SetDraining(  # noqa: N802 - gRPC's name
        self, request: admin_pb2.SetDrainingRequest, _context: Any
    ) -> admin_pb2.ChangeResult:
        """Drain a replica, or end its drain."""
        options = _options(request.options)
        return self._result(
            await self._control.set_draining(request.endpoint, request.draining, options)
        )

    @_explained
    async def SetBreaker(  # noqa: N802 - gRPC's name
        self, request: admin_pb2.SetBreakerRequest, _context: Any
    ) -> admin_pb2.ChangeResult:
        """Set limits of a pool."""
        options, values = _options(request.options), _given(request)
        return self._result(
            await self._control.set_section(request.pool, "circuit_breaker", values, options)
        )

    @_explained
    async def SetSlowStart(  # noqa: N802 - gRPC's name
        self, request: admin_pb2.SetSlowStartRequest, _context: Any
    ) -> admin_pb2.ChangeResult:
        """Set the slow start of a pool."""
        options, values = _options(request.options), _given(request)
        return self._result(
            await self._control.set_section(request.pool, "slow_start", values, options)
        )

    @_explained
    async def SetDropOverload(  # noqa: N802 - gRPC's name
        self, request: admin_pb2.SetDropOverloadRequest, _context: Any
    ) -> admin_pb2.ChangeResult:
        """Set the share of a pool's requests that Envoy rejects."""
        options = _options(request.options)
        return self._result(
            await self._control.set_drop_overload(request.pool, request.percent, options)
        )

    @_explained
    async def Diff(  # noqa: N802 - gRPC's name
        self, request: admin_pb2.DiffRequest, _context: Any
    ) -> admin_pb2.DiffResponse:
        """Compare two revisions."""
        changes = await self._control.difference(request.old_revision, request.new_revision)
        return admin_pb2.DiffResponse(changes=changes)

    @_explained
    async def Rollback(  # noqa: N802 - gRPC's name
        self, request: admin_pb2.RollbackRequest, _context: Any
    ) -> admin_pb2.ChangeResult:
        """Make the fleet of an earlier revision the fleet in force."""
        options = _options(request.options)
        return self._result(await self._control.rollback(request.revision, options))

    @_explained
    async def GetFleet(  # noqa: N802 - gRPC's name
        self, _request: admin_pb2.GetFleetRequest, _context: Any
    ) -> admin_pb2.GetFleetResponse:
        """Return the fleet in force."""
        return admin_pb2.GetFleetResponse(
            revision=self._control.revision,
            fleet_json=await asyncio.to_thread(self._control.fleet.model_dump_json),
            in_flight=self._observed.in_flight(),
        )

    @_explained
    async def GetStatus(  # noqa: N802 - gRPC's name
        self, _request: admin_pb2.GetStatusRequest, _context: Any
    ) -> admin_pb2.GetStatusResponse:
        """Return the status of each client."""
        return admin_pb2.GetStatusResponse(
            revision=self._control.revision,
            settled=self._observed.settled,
            clients=[_client(client) for client in self._observed.clients()],
            file_error=self._control.file_error,
            refusal=self._control.refusal,
            sick=[
                admin_pb2.SickReplica(
                    pool=each.pool,
                    endpoint=each.endpoint,
                    conditions=each.conditions,
                    pickers=each.pickers,
                    told=each.published,
                )
                for each in self._sick()
            ],
            store_error=self._control.journal.fault,
            unwritten=self._control.journal.held,
            refused=[
                admin_pb2.RefusedPeer(
                    peer=each.peer,
                    node=each.node,
                    reason=each.reason,
                    count=each.count,
                    last_seconds=each.last_s,
                )
                for each in self._refused()
            ],
        )

    @_explained
    async def ListRevisions(  # noqa: N802 - gRPC's name
        self, request: admin_pb2.ListRevisionsRequest, _context: Any
    ) -> admin_pb2.ListRevisionsResponse:
        """Return the newest revisions."""
        limit = min(request.limit or _DEFAULT_REVISIONS, MAX_REVISIONS)
        return admin_pb2.ListRevisionsResponse(
            revisions=[_revision(revision) for revision in await self._control.revisions(limit)]
        )

    def _result(self, change: Change) -> admin_pb2.ChangeResult:
        result = admin_pb2.ChangeResult(
            revision=change.revision, changes=change.changes, clients=len(self._observed.clients())
        )
        if change.outcome is not None:
            result.outcome = change.outcome.state
            result.clients = change.outcome.clients
            result.acked = change.outcome.acked
            result.channels.extend(change.outcome.channels)
            result.problems.extend(_problems(change.outcome.problems))
        if change.elapsed_s is not None:
            result.elapsed_ms = change.elapsed_s * 1000
        return result


class AdminServer:
    """Serves ``AdminService`` and ``ClientStatusService``.

    Args:
        service: Serves operators.
        status: Serves the clients' status to tools (CSDS).
    """

    def __init__(self, service: AdminService, status: ClientStatusService) -> None:
        self._server = grpc.aio.server(
            options=(
                ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
                ("grpc.max_send_message_length", MAX_ANSWER_BYTES),
                ("grpc.so_reuseport", 0),  # a port in use must be an error
            ),
            maximum_concurrent_rpcs=MAX_CONCURRENT_CALLS,
        )
        admin_pb2_grpc.add_AdminServicer_to_server(service, self._server)
        csds_pb2_grpc.add_ClientStatusDiscoveryServiceServicer_to_server(status, self._server)

    def bind(self, address: str) -> str:
        """Bind ``ip:port`` (port 0 = a free port) and return the address with the actual port.

        Raises:
            OSError: The address cannot be bound.
        """
        try:
            port = self._server.add_insecure_port(address)
        except RuntimeError as error:
            raise OSError(f"cannot listen on {address}: {error}") from error
        return f"{address.rpartition(':')[0]}:{port}"

    async def start(self) -> None:
        """Start to serve."""
        await self._server.start()

    async def stop(self, grace_s: float) -> None:
        """Stop; running calls may end within ``grace_s`` seconds."""
        await self._server.stop(grace_s)


def _options(options: admin_pb2.ChangeOptions) -> ChangeOptions:
    timeout_s = options.timeout_seconds or DEFAULT_TIMEOUT_S
    if not (math.isfinite(timeout_s) and 0 < timeout_s <= MAX_TIMEOUT_S):
        raise BadChange(f"timeout_seconds must be between 0 and {MAX_TIMEOUT_S:g}")
    return ChangeOptions(options.author, options.reason, options.dry_run, options.wait, timeout_s)


def _problems(problems: Sequence[ClientProblem]) -> list[admin_pb2.ClientProblem]:
    return [
        admin_pb2.ClientProblem(client=p.client, state=p.state, type=p.type, message=p.message)
        for p in problems
    ]


def _client(client: ClientView) -> admin_pb2.ClientStatus:
    return admin_pb2.ClientStatus(
        node=client.node,
        kind=client.kind,
        protocol=client.protocol,
        peer=client.peer,
        connected_seconds=client.connected_s,
        build=client.build,
        lost=client.lost,
        group=client.group,
        quarantine=client.quarantine,
        twins=client.twins,
        types=[
            admin_pb2.TypeStatus(
                type=view.short,
                version_sent=view.version_sent,
                version_acked=view.version_acked,
                state=view.state,
                message=view.message,
                pending_seconds=view.pending_s,
                resources=view.resources,
            )
            for view in client.types
        ],
    )


def _revision(revision: Revision) -> admin_pb2.Revision:
    return admin_pb2.Revision(
        number=revision.number,
        at_unix_ms=revision.at_unix_ms,
        author=revision.author,
        reason=revision.reason,
        changes=revision.changes,
        outcome=revision.outcome,
    )


def _given(request: admin_pb2.SetBreakerRequest | admin_pb2.SetSlowStartRequest) -> dict[str, Any]:
    """Return the fields that the request sets, by name."""
    return {
        field.name: value
        for field, value in request.ListFields()
        if field.name not in {"pool", "options"}
    }


def _shortened(text: str) -> str:
    encoded = text.encode(errors="replace")
    if len(encoded) <= MAX_STATUS_BYTES:
        return text
    return encoded[:MAX_STATUS_BYTES].decode(errors="ignore") + " ..."
