"""The calls of the admin service about models: operations on them, and their comparison."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tidegate_api.admin.v1 import admin_pb2
from xds_server.admin.answers.copied import copied
from xds_server.admin.answers.explained import explained, options_of
from xds_server.applications.loading.keeper import (
    DEFAULT_PARALLEL,
    MAX_KEPT,
    LoadKeeper,
    WantedOperation,
)
from xds_server.fleet.change import BadChange

if TYPE_CHECKING:
    from xds_server.applications.loading.acting import ReplicaParity
    from xds_server.applications.loading.operation import Operation
    from xds_server.control.operation import ChangeOptions

DEFAULT_OPERATIONS: Final = 20


class ModelCalls:
    """The part of ``tidegate.admin.v1.Admin`` that is about models.

    Args:
        loads: Runs operations on models; ``None`` = there are none.
    """

    def __init__(self, loads: LoadKeeper | None) -> None:
        self._loads = loads

    @explained
    async def load(
        self, request: admin_pb2.LoadModelRequest, _context: Any
    ) -> admin_pb2.ModelOperation:
        """Begin to load a model on replicas."""
        options = options_of(request.options)
        wanted = _wanted(request, "load", options)
        return await self._begun(
            wanted._replace(
                version=request.version, warmup=tuple(each.encode() for each in request.warmup)
            ),
            options,
        )

    @explained
    async def unload(
        self, request: admin_pb2.UnloadModelRequest, _context: Any
    ) -> admin_pb2.ModelOperation:
        """Begin to unload a model from replicas."""
        options = options_of(request.options)
        return await self._begun(_wanted(request, "unload", options), options)

    @explained
    async def abort(
        self, request: admin_pb2.AbortModelRequest, _context: Any
    ) -> admin_pb2.ModelOperation:
        """Give an operation on a model up."""
        options = options_of(request.options)
        keeper = self._keeper()
        found = await keeper.abort(request.operation, options.author)
        if options.wait:
            await keeper.ended(found.number, options.timeout_s)
        return operation_message(found)

    @explained
    async def operations(
        self, request: admin_pb2.GetOperationsRequest, _context: Any
    ) -> admin_pb2.GetOperationsResponse:
        """Return the newest operations on models."""
        limit = min(request.limit or DEFAULT_OPERATIONS, MAX_KEPT)
        found = self._keeper().operations(request.pool, request.operation, limit)
        return admin_pb2.GetOperationsResponse(operations=map(operation_message, found))

    @explained
    async def parity(
        self, request: admin_pb2.GetModelParityRequest, _context: Any
    ) -> admin_pb2.GetModelParityResponse:
        """Ask replicas for a model and say in what it differs."""
        endpoints = tuple(each for each in request.endpoints.split(",") if each)
        found, told = await self._keeper().actions.parity(request.pool, request.model, endpoints)
        return admin_pb2.GetModelParityResponse(replicas=map(_compared, found), differences=told)

    def began_since(self, unix_ms: int, limit: int) -> list[admin_pb2.ModelOperation]:
        """Return the newest operations that began then or later, as they stand in the history."""
        every = [] if self._loads is None else self._loads.operations("", 0, MAX_KEPT)
        found = [e for e in every if e.began_unix_ms >= unix_ms and not e.dry_run]
        return [operation_message(each, whole=False) for each in found[:limit]]

    async def _begun(
        self, wanted: WantedOperation, options: ChangeOptions
    ) -> admin_pb2.ModelOperation:
        keeper = self._keeper()
        made = await keeper.begin(wanted)
        if options.wait:
            await keeper.ended(made.number, options.timeout_s)
        return operation_message(made)

    def _keeper(self) -> LoadKeeper:
        if self._loads is None:
            raise BadChange("this control server runs no operations on models")
        return self._loads


def _wanted(
    request: admin_pb2.LoadModelRequest | admin_pb2.UnloadModelRequest,
    kind: Any,
    options: ChangeOptions,
) -> WantedOperation:
    return WantedOperation(
        kind,
        request.pool,
        request.model,
        endpoints=tuple(request.endpoints),
        parallel=request.parallel or DEFAULT_PARALLEL,
        author=options.author,
        reason=options.reason,
        force=options.force,
        dry_run=options.dry_run,
    )


def operation_message(operation: Operation, *, whole: bool = True) -> admin_pb2.ModelOperation:
    """Return an operation as a message; unless it is whole, without replicas and steps."""
    message = copied(admin_pb2.ModelOperation, operation, replicas=(), steps=(), left_out=0)
    if whole:
        message.left_out = operation.left_out
        for target in operation.targets:
            message.replicas.add(endpoint=target.id, state=target.place)
        for step in operation.steps:
            message.steps.append(copied(admin_pb2.ModelOperationStep, step))
    return message


def _compared(found: ReplicaParity) -> admin_pb2.ComparedReplica:
    answer = admin_pb2.ComparedReplica(endpoint=found.endpoint, error=found.fault)
    if found.description is not None:
        answer.digest = found.description.digest
        answer.versions.extend(found.description.versions)
        answer.platform = found.description.platform
        answer.tensors.extend(found.description.tensors)
    return answer
