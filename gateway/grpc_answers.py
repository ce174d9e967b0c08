"""Answers over gRPC, in Triton's messages.

Source: ``grpc_service.proto`` of triton-inference-server/common, and ``grpc.health.v1``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from google.protobuf import json_format
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2

from gateway.http_answers import expected_in, silence
from gateway.merge import index, parity, statistics
from gateway.targets import UnknownReplicaError
from tidegate_api.kserve.v1 import kserve_pb2 as pb
from tidegate_api.names import GATEWAY_SERVICE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from gateway.questions import Heard, Questions, Scope

NOT_FOUND: Final = 5
INTERNAL: Final = 13
UNAVAILABLE: Final = 14
HEALTH: Final = "/grpc.health.v1.Health/Check"
_HEALTH = health_pb2.HealthCheckResponse


class GrpcReply(NamedTuple):
    """An answer to a client."""

    status: int = 0
    """Number of the gRPC status; 0 = OK."""
    message: bytes = b""
    details: str = ""
    note: str = ""
    """On the replicas, for the trailing metadata."""


class GrpcAnswers:
    """Answers calls.

    Args:
        questions: Asks the replicas.
    """

    def __init__(self, questions: Questions) -> None:
        self._questions = questions
        self._methods: dict[str, Callable[[str, bytes, Scope], Awaitable[GrpcReply]]] = {
            "ServerLive": self._live,
            "ServerReady": self._ready,
            "ServerMetadata": self._server,
            "ModelReady": self._model_ready,
            "ModelMetadata": self._model,
            "ModelConfig": self._config,
            "ModelStatistics": self._statistics,
            "RepositoryIndex": self._index,
        }

    @property
    def methods(self) -> tuple[str, ...]:
        """Methods of ``inference.GRPCInferenceService``."""
        return tuple(self._methods)

    async def answer(self, method: str, message: bytes, scope: Scope) -> GrpcReply:
        """Return the answer to a call of one of ``methods``."""
        try:
            if scope.endpoint and method != "ServerLive":
                return relayed(await self._ask(method, message, scope))
            return await self._methods[method](method, message, scope)
        except UnknownReplicaError as error:
            return GrpcReply(NOT_FOUND, details=f"no replica {error} of these pools speaks gRPC")

    async def health(self, message: bytes, scope: Scope) -> GrpcReply:
        """Return the answer to ``grpc.health.v1.Health/Check``."""
        try:
            service = health_pb2.HealthCheckRequest.FromString(message).service
        except DecodeError:
            service = ""
        if service == GATEWAY_SERVICE:
            return GrpcReply(message=_HEALTH(status=_HEALTH.SERVING).SerializeToString())
        verdict = await self._questions.ready(scope._replace(endpoint=""))
        status = _HEALTH.SERVING if verdict.ready else _HEALTH.NOT_SERVING
        return GrpcReply(message=_HEALTH(status=status).SerializeToString(), note=verdict.note)

    async def _ask(
        self, method: str, message: bytes, scope: Scope, name: str = "", unversioned: str = ""
    ) -> Heard:
        pools = self._questions.pools_about(scope, name)
        return await self._questions.grpc(pools, scope, method, message, unversioned)

    async def _ask_model(self, method: str, message: bytes, scope: Scope) -> Heard:
        try:
            asked = pb.ModelRequest.FromString(message)
        except DecodeError:
            return await self._ask(method, message, scope)  # replicas say what is wrong
        unversioned = "" if asked.version else asked.name
        return await self._ask(method, message, scope, asked.name, unversioned)

    # --- merged answers -------------------------------------------------------------------------

    async def _live(self, *_: object) -> GrpcReply:
        return GrpcReply(message=pb.ServerLiveResponse(live=True).SerializeToString())

    async def _ready(self, _: str, __: bytes, scope: Scope) -> GrpcReply:
        verdict = await self._questions.ready(scope)
        message = pb.ReadyResponse(ready=verdict.ready).SerializeToString()
        return GrpcReply(message=message, note=verdict.note)

    async def _model_ready(self, method: str, message: bytes, scope: Scope) -> GrpcReply:
        heard = await self._ask_model(method, message, scope)
        yes = pb.ReadyResponse(ready=True).SerializeToString()
        if any(each.body == yes for each in heard.good):
            not_ready = {each.replica: "not-ready" for each in heard.good if each.body != yes}
            return GrpcReply(message=yes, note=heard.note(not_ready))
        return relayed(heard)

    async def _server(self, method: str, message: bytes, scope: Scope) -> GrpcReply:
        heard = await self._ask(method, message, scope)
        return _described(heard, pb.ServerMetadataResponse, "extensions", parity.common)

    async def _model(self, method: str, message: bytes, scope: Scope) -> GrpcReply:
        heard = await self._ask_model(method, message, scope)
        return _described(heard, pb.ModelMetadataResponse, "versions", parity.versions_of)

    async def _config(self, method: str, message: bytes, scope: Scope) -> GrpcReply:
        heard = await self._ask_model(method, message, scope)
        if heard.same() is not None or not heard.good:
            return relayed(heard)
        forms, broken = parity.read_all(_bodies(heard), parity.form_of_config)
        heard = heard.with_malformed(broken)
        if not forms:
            return relayed(heard)
        first, others = parity.usual(forms)
        body = next(each.body for each in heard.good if each.replica == first)
        return GrpcReply(message=body, note=heard.note(dict.fromkeys(others, "differs")))

    async def _statistics(self, method: str, message: bytes, scope: Scope) -> GrpcReply:
        heard = await self._ask_model(method, message, scope)
        if not heard.good:
            return relayed(heard)
        rows: dict[str, list[dict[str, Any]]] = {}
        broken = set()
        for each in heard.good:
            try:
                answer = json_format.MessageToDict(
                    pb.ModelStatisticsResponse.FromString(each.body),
                    preserving_proto_field_name=True,
                )
                rows[each.replica] = statistics.rows_of({"model_stats": [], **answer})
            except (DecodeError, statistics.StatisticsError):
                broken.add(each.replica)
        heard = heard.with_malformed(frozenset(broken))
        if not rows:
            return relayed(heard)
        total = {"model_stats": self._questions.sums(heard, rows)}
        made = json_format.ParseDict(
            total, pb.ModelStatisticsResponse(), ignore_unknown_fields=True
        )
        return GrpcReply(message=made.SerializeToString(), note=heard.note())

    async def _index(self, method: str, message: bytes, scope: Scope) -> GrpcReply:
        try:
            asked = pb.RepositoryIndexRequest.FromString(message)
        except DecodeError:
            return relayed(await self._ask(method, message, scope))
        every = pb.RepositoryIndexRequest(repository_name=asked.repository_name)
        heard = await self._ask(method, every.SerializeToString(), scope)
        if not heard.good:
            return relayed(heard)
        read, broken = parity.read_all(_bodies(heard), _entries)
        heard = heard.with_malformed(broken)
        if not read:
            return relayed(heard)
        entries = {each.replica: read.get(each.replica) for each in heard.said}
        found = index.merged(entries, expected_in(heard.pools))
        answer = pb.RepositoryIndexResponse()
        for each in found:
            if not asked.ready or each.state == index.READY:
                answer.models.add(
                    name=each.name, version=each.version, state=each.state, reason=each.reason
                )
        return GrpcReply(message=answer.SerializeToString(), note=heard.note())


def _entries(body: bytes) -> list[index.IndexEntry]:
    answer = pb.RepositoryIndexResponse.FromString(body)
    rows = [
        {"name": each.name, "version": each.version, "state": each.state, "reason": each.reason}
        for each in answer.models
    ]
    try:
        return index.entries_of(rows)
    except index.UnreadableIndexError as error:
        raise parity.DescriptionError from error


def _described(
    heard: Heard,
    kind: Any,
    listed: str,
    together: Callable[[dict[str, list[str]]], list[str]],
) -> GrpcReply:
    """Return the usual description; ``listed`` is a list that may differ."""
    if heard.same() is not None or not heard.good:
        return relayed(heard)
    read, broken = parity.read_all(_bodies(heard), kind.FromString)
    heard = heard.with_malformed(broken)
    if not read:
        return relayed(heard)
    forms = {replica: parity.form_without(each, listed) for replica, each in read.items()}
    first, others = parity.usual(forms)
    lists = {replica: list(getattr(each, listed)) for replica, each in read.items()}
    chosen = read[first]
    getattr(chosen, listed)[:] = together(lists)
    note = heard.note(dict.fromkeys(others, "differs"))
    return GrpcReply(message=chosen.SerializeToString(), note=note)


def _bodies(heard: Heard) -> dict[str, bytes]:
    return {each.replica: each.body for each in heard.good}


def relayed(heard: Heard) -> GrpcReply:
    """Return the first good answer, or the usual error."""
    good = heard.good
    if good:
        return GrpcReply(message=good[0].body, note=heard.note())
    error = heard.error
    if error is None:
        return GrpcReply(UNAVAILABLE, details=silence(heard), note=heard.note())
    return GrpcReply(error.status, details=error.text, note=heard.note())
