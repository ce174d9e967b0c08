"""Admin service: converts operators' gRPC requests to calls of ``Control``, and errors to statuses.

Errors: ``xds_server.admin.answers.explained``. Who may call it: ``xds_server.admin.server``.
"""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Any, Final

from tidegate_api.admin.v1 import admin_pb2, admin_pb2_grpc
from xds_server.admin import found as found_part
from xds_server.admin.answers.canaries import CanaryCalls
from xds_server.admin.answers.copied import copied
from xds_server.admin.answers.explained import explained, options_of
from xds_server.admin.answers.operations import ModelCalls
from xds_server.admin.views import configs
from xds_server.fleet import change as edits
from xds_server.fleet.change import BadChange, UnknownName
from xds_server.fleet.members.members import found_ids
from xds_server.fleet.store import MAX_REVISIONS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from xds_server.admin.status import StatusBoard
    from xds_server.admin.stopping import Stopping
    from xds_server.applications.discovery.membership import Membership
    from xds_server.applications.keepers.canary_keeper import CanaryKeeper
    from xds_server.applications.loading.keeper import LoadKeeper
    from xds_server.applications.traffic.inquiry import FoundRequest
    from xds_server.control.ads import ClientDirectory
    from xds_server.control.fleet_control import Control
    from xds_server.control.operation import Change
    from xds_server.fleet.findings import Sick
    from xds_server.fleet.model.fleet import Fleet
    from xds_server.protocol.messages import ClientView, RefusedPeer

_DEFAULT_REVISIONS = 20

MAX_REQUEST_CHARS: Final = 128


def _changing(summary: str, edit: Callable[[Fleet, Any, Fleet], Fleet]) -> Any:
    """Return the method of a call that edits the fleet in force.

    Args:
        summary: What it does, a sentence.
        edit: Returns the new fleet from the one in force, the request and the published fleet.
    """

    async def call(self: AdminService, request: Any, _context: Any) -> admin_pb2.ChangeResult:
        control, options = self._control, options_of(request.options)
        change = await control.change(lambda live: edit(live, request, control.fleet), options)
        return self._result(change)

    call.__doc__ = summary
    return explained(call)


def _by(part: Callable[[AdminService], Any], answer: Callable[..., Awaitable[Any]]) -> Any:
    """Return the method of a call that a part of the service answers."""

    @functools.wraps(answer)
    async def call(self: AdminService, request: Any, context: Any) -> Any:
        return await answer(part(self), request, context)

    return call


class AdminService(admin_pb2_grpc.AdminServicer):
    """``tidegate.admin.v1.Admin``.

    Args:
        control: Changes the fleet.
        observed: State of the clients.
        sick: Returns the replicas that pickers report as sick.
        refused: Returns the peers that the ADS port does not serve.
        passes: Returns requests without a pick, by picker and reason.
        found: What was found, and by which sources.
        board: What is known of the whole; ``None`` = nothing.
        find: Asks the pickers for a request; ``None`` = nobody can be asked.
        stopping: Says whether replicas may be stopped; ``None`` = nothing is known.
        loads: Runs operations on models; ``None`` = there are none.
        canaries: Runs rollouts; ``None`` = there are none.
    """

    def __init__(
        self,
        control: Control,
        observed: ClientDirectory,
        sick: Callable[[], Sequence[Sick]] = tuple,
        refused: Callable[[], Sequence[RefusedPeer]] = tuple,
        passes: Callable[[], Mapping[str, Mapping[str, int]]] = dict,
        found: Membership | None = None,
        board: StatusBoard | None = None,
        find: Callable[[str], Awaitable[FoundRequest]] | None = None,
        stopping: Stopping | None = None,
        loads: LoadKeeper | None = None,
        canaries: CanaryKeeper | None = None,
    ) -> None:
        self._control = control
        self._observed = observed
        self._sick = sick
        self._refused = refused
        self._passes = passes
        self._found = found
        self._board = board
        self._find = find
        self._stopping = stopping
        self._canaries = canaries
        self._models, self._rollouts = ModelCalls(loads), CanaryCalls(canaries)

    @explained
    async def Apply(  # noqa: N802 - gRPC's name
        self, request: admin_pb2.ApplyRequest, _context: Any
    ) -> admin_pb2.ChangeResult:
        """Make a fleet file the fleet in force."""
        options, source = options_of(request.options), request.source[:256] or "fleet"
        return self._result(await self._control.apply_text(request.fleet, source, options))

    @explained
    async def SetWeights(  # noqa: N802 - gRPC's name
        self, request: admin_pb2.SetWeightsRequest, _context: Any
    ) -> admin_pb2.ChangeResult:
        """Set variants' weights; of a pool with a rollout only if that is forced."""
        options = options_of(request.options)
        weights, canaries = dict(request.weights), self._canaries

        def edit(live: Fleet) -> Fleet:
            """Look for a rollout in the change's turn: it may have begun while the call waited."""
            if canaries is not None and not (options.force or options.dry_run):
                canaries.refuse_weights(request.pool)
            return edits.set_weights(live, request.pool, weights)

        return self._result(await self._control.change(edit, options))

    SetDraining = _changing(
        "Drain a replica, or end its drain.",
        lambda fleet, asked, published: edits.set_draining(
            fleet, asked.endpoint, asked.draining, found_ids(published)
        ),
    )
    SetStandby = _changing(
        "Make a replica a standby, or take it into use.",
        lambda fleet, asked, _: edits.set_standby(fleet, asked.endpoint, asked.standby),
    )
    SetBreaker = _changing(
        "Set limits of a pool.",
        lambda fleet, asked, _: edits.set_section(
            fleet, asked.pool, "circuit_breaker", _given(asked)
        ),
    )
    SetSlowStart = _changing(
        "Set the slow start of a pool.",
        lambda fleet, asked, _: edits.set_section(fleet, asked.pool, "slow_start", _given(asked)),
    )
    SetDropOverload = _changing(
        "Set the share of a pool's requests that Envoy rejects.",
        lambda fleet, asked, _: edits.set_drop_overload(fleet, asked.pool, asked.percent),
    )

    LoadModel = _by(lambda self: self._models, ModelCalls.load)
    UnloadModel = _by(lambda self: self._models, ModelCalls.unload)
    AbortModel = _by(lambda self: self._models, ModelCalls.abort)
    GetOperations = _by(lambda self: self._models, ModelCalls.operations)
    GetModelParity = _by(lambda self: self._models, ModelCalls.parity)
    GetCanaries = _by(lambda self: self._rollouts, CanaryCalls.rollouts)
    StartCanary = _by(lambda self: self._rollouts, CanaryCalls.start)
    ActOnCanary = _by(lambda self: self._rollouts, CanaryCalls.act)

    @explained
    async def Confirm(  # noqa: N802 - gRPC's name
        self, request: admin_pb2.ConfirmRequest, _context: Any
    ) -> admin_pb2.ConfirmResponse:
        """Let a pool's held replicas go."""
        if self._found is None:
            raise UnknownName("pool that finds replicas", request.pool, ())
        return admin_pb2.ConfirmResponse(endpoints=self._found.confirm(request.pool))

    @explained
    async def Diff(  # noqa: N802 - gRPC's name
        self, request: admin_pb2.DiffRequest, _context: Any
    ) -> admin_pb2.DiffResponse:
        """Compare two revisions."""
        changes = await self._control.difference(request.old_revision, request.new_revision)
        return admin_pb2.DiffResponse(changes=changes)

    @explained
    async def Rollback(  # noqa: N802 - gRPC's name
        self, request: admin_pb2.RollbackRequest, _context: Any
    ) -> admin_pb2.ChangeResult:
        """Make the fleet of an earlier revision the fleet in force."""
        options = options_of(request.options)
        return self._result(await self._control.rollback(request.revision, options))

    @explained
    async def GetFleet(  # noqa: N802 - gRPC's name
        self, _request: admin_pb2.GetFleetRequest, _context: Any
    ) -> admin_pb2.GetFleetResponse:
        """Return the fleet in force."""
        return admin_pb2.GetFleetResponse(
            revision=self._control.revision,
            fleet_json=await asyncio.to_thread(self._control.written.model_dump_json),
            in_flight=self._observed.in_flight(),
            found=found_part.replicas(self._control.fleet, self._control.members),
        )

    @explained
    async def GetStatus(  # noqa: N802 - gRPC's name
        self, _request: admin_pb2.GetStatusRequest, _context: Any
    ) -> admin_pb2.GetStatusResponse:
        """Return the status of each client."""
        found, control = self._found, self._control
        unfit = (
            []
            if found is None or not control.revision
            else list(found_part.left_out(control.written, control.members, found))
        )
        answer = admin_pb2.GetStatusResponse(
            revision=self._control.revision,
            settled=self._observed.settled,
            clients=list(map(_client, self._observed.clients())),
            file_error=self._control.file_error,
            refusal=self._control.refusal,
            sick=[
                copied(admin_pb2.SickReplica, each, told=each.published) for each in self._sick()
            ],
            sources=() if found is None else found_part.sources(found),
            held=() if found is None else found_part.held(found),
            left_out=unfit,
            store_error=self._control.journal.fault,
            unwritten=self._control.journal.held,
            refused=[copied(admin_pb2.RefusedPeer, each) for each in self._refused()],
            passes=[
                admin_pb2.PickerPasses(picker=picker, by_reason=reasons)
                for picker, reasons in self._passes().items()
            ],
        )
        if self._board is not None:
            self._board.fill(answer)
        return answer

    @explained
    async def GetReplicas(  # noqa: N802 - gRPC's name
        self, request: admin_pb2.GetReplicasRequest, _context: Any
    ) -> admin_pb2.GetReplicasResponse:
        """Return the state of each replica."""
        rows = () if self._board is None else self._board.replicas(request.pool)
        return admin_pb2.GetReplicasResponse(replicas=rows)

    @explained
    async def GetDrain(  # noqa: N802 - gRPC's name
        self, request: admin_pb2.GetDrainRequest, _context: Any
    ) -> admin_pb2.GetDrainResponse:
        """Say whether a replica may be stopped."""
        if self._stopping is None:
            raise UnknownName("endpoint", request.endpoint, ())
        found = self._stopping.state(self._stopping.ids(request.endpoint))
        return copied(admin_pb2.GetDrainResponse, found)

    @explained
    async def GetModels(  # noqa: N802 - gRPC's name
        self, request: admin_pb2.GetModelsRequest, _context: Any
    ) -> admin_pb2.GetModelsResponse:
        """Return which replica has which model."""
        rows = () if self._board is None else self._board.models(request.pool)
        return admin_pb2.GetModelsResponse(models=rows)

    @explained
    async def GetTraffic(  # noqa: N802 - gRPC's name
        self, request: admin_pb2.GetTrafficRequest, _context: Any
    ) -> admin_pb2.GetTrafficResponse:
        """Return the requests of the last hour."""
        rows = () if self._board is None else self._board.minutes(request.pool)
        return admin_pb2.GetTrafficResponse(minutes=rows)

    @explained
    async def GetConfig(  # noqa: N802 - gRPC's name
        self, request: admin_pb2.GetConfigRequest, _context: Any
    ) -> admin_pb2.GetConfigResponse:
        """Return the resources of each client."""
        found = configs.collected(request, self._observed.clients(), self._observed.resources)
        return await asyncio.to_thread(configs.answer, found, content=request.content)

    @explained
    async def GetRequest(  # noqa: N802 - gRPC's name
        self, request: admin_pb2.GetRequestRequest, _context: Any
    ) -> admin_pb2.GetRequestResponse:
        """Ask the pickers what became of a request."""
        return await _asked_for(self._find, request.request)

    @explained
    async def ListRevisions(  # noqa: N802 - gRPC's name
        self, request: admin_pb2.ListRevisionsRequest, _context: Any
    ) -> admin_pb2.ListRevisionsResponse:
        """Return the newest revisions, and the operations on models since the oldest of these."""
        limit = min(request.limit or _DEFAULT_REVISIONS, MAX_REVISIONS)
        found = await self._control.revisions(limit)
        since = found[-1].at_unix_ms if len(found) == limit else 0
        return admin_pb2.ListRevisionsResponse(
            revisions=[copied(admin_pb2.Revision, each) for each in found],
            operations=self._models.began_since(since, limit),
        )

    def _result(self, change: Change) -> admin_pb2.ChangeResult:
        result = admin_pb2.ChangeResult(
            revision=change.revision,
            changes=change.changes,
            kept=change.kept,
        )
        if change.outcome is None:
            result.clients = len(self._observed.clients())
        else:
            result.outcome = change.outcome.state
            result.clients = change.outcome.clients
            result.acked = change.outcome.acked
            result.channels.extend(change.outcome.channels)
            result.problems.extend(
                copied(admin_pb2.ClientProblem, each) for each in change.outcome.problems
            )
        if change.elapsed_s is not None:
            result.elapsed_ms = change.elapsed_s * 1000
        if change.preview is not None and self._board is not None:
            result.preview.CopyFrom(self._board.preview(change.preview))
        return result


def _given(request: admin_pb2.SetBreakerRequest | admin_pb2.SetSlowStartRequest) -> dict[str, Any]:
    """Return the fields that the request sets, by name."""
    return {
        field.name: value
        for field, value in request.ListFields()
        if field.name not in {"pool", "options"}
    }


def _client(view: ClientView) -> admin_pb2.ClientStatus:
    """Return the status of a connected client."""
    types = [copied(admin_pb2.TypeStatus, each, type=each.short) for each in view.types]
    return copied(admin_pb2.ClientStatus, view, types=types)


async def _asked_for(
    ask: Callable[[str], Awaitable[FoundRequest]] | None, request: str
) -> admin_pb2.GetRequestResponse:
    """Ask for a request.

    Raises:
        BadChange: The id is empty, too long, or has characters that cannot be printed.
    """
    if not 0 < len(request) <= MAX_REQUEST_CHARS or not request.isprintable():
        raise BadChange(f"a request's id must have 1 to {MAX_REQUEST_CHARS} printable characters")
    if ask is None:
        return admin_pb2.GetRequestResponse()
    found = await ask(request)
    return admin_pb2.GetRequestResponse(
        records=[
            admin_pb2.RequestRecord(picker=each.picker, record_json=record)
            for each in found.told
            for record in each.records
        ],
        pickers=[copied(admin_pb2.PickerAnswer, each) for each in found.told],
        silent=found.silent,
    )
