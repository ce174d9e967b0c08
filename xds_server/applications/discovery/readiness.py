"""Asks replicas that wait to join whether their model is ready.

Rules:

1. A replica with an HTTP address is asked by the path that health checks use (``ready_paths``); 200
   means ready.
2. One that speaks gRPC only is asked with KServe's ``ModelReady`` where the pool names a model, and
   with gRPC's health protocol where it does not or where ``ModelReady`` is not implemented.
3. Where the pool speaks TLS to its replicas, so do questions (``ReplicaClient``). What its files do
   not allow to ask is answered with "ready" and logged once per reason: health checks of Envoys see
   what is wrong.
4. A question takes at most the pool's ``health.timeout``, waiting for its turn not included; at
   most ``AT_ONCE`` are open. No body is read, and no redirect followed.

Sources: ``grpc/health/v1/health.proto``; ``ModelReady`` of the Open Inference Protocol,
``grpc_predict_v2.proto``: a request has ``name = 1`` and ``version = 2``, an answer ``ready = 1``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import grpc
import structlog

from tidegate_api.kserve.v1 import kserve_pb2
from tidegate_api.pools import ready_paths
from tidegate_common.upstream.client import (
    NOT_FOUND,
    OK,
    AskError,
    AskFault,
    ReplicaClient,
    url_at,
)
from tidegate_common.upstream.contexts import ReplicaTls
from xds_server.resources.clusters import probe_path

if TYPE_CHECKING:
    from tidegate_common.upstream.client import ReplicaTurn
    from xds_server.fleet.model.fields import UpstreamTls
    from xds_server.fleet.model.fleet import EndpointSpec, PoolSpec

AT_ONCE: Final = 32
"""Most questions at one time."""
MAX_SAID: Final = 64
"""Most reasons that are remembered as logged."""

_MODEL_READY: Final = "/inference.GRPCInferenceService/ModelReady"
_HEALTH: Final = "/grpc.health.v1.Health/Check"
_YES: Final = b"\x08\x01"
"""Both ``ready: true`` and ``status: SERVING``."""
_MAX_ANSWER: Final = 65_536

_log = structlog.get_logger(__name__)


class Question(NamedTuple):
    """What to ask a replica."""

    http: str | None
    """Its HTTP address; ``None`` = ask over gRPC."""
    grpc: str | None
    path: str
    """HTTP path."""
    model: str
    """Model of the pool; empty = it names none."""
    version: str
    """Version of the model; empty = any."""
    tls: UpstreamTls | None
    timeout_s: float


def question_of(pool: PoolSpec, spec: EndpointSpec) -> Question:
    """Return what to ask a replica of a pool."""
    wanted = pool.variant_of(spec)
    variant = next((each for each in pool.variants if each.name == wanted), pool.variants[0])
    return Question(
        http=spec.http,
        grpc=spec.grpc,
        path=probe_path(pool, variant),
        model=pool.match.models[0] if pool.match.models else "",
        version=variant.model_version or "",
        tls=pool.upstream_tls,
        timeout_s=pool.health.timeout,
    )


class Readiness(ReplicaClient):
    """Asks replicas; an asynchronous context manager. See the module's rules."""

    def __init__(self) -> None:
        super().__init__(AT_ONCE)
        self._said: set[str] = set()

    async def __call__(self, question: Question) -> bool:
        """Return whether the replica says that its model is ready.

        Raises:
            RuntimeError: The context was not entered.
        """
        tls = None if question.tls is None else ReplicaTls.of(question.tls)
        try:
            async with self.turn(question.timeout_s) as turn:
                if question.http is not None:
                    return await _over_http(turn, question.http, question.path, tls)
                return await _over_grpc(turn, question, tls)
        except AskError as error:
            if tls is None or error.fault is not AskFault.NO_FILES:
                return False
            self._say(tls, error)
            return True
        except grpc.aio.AioRpcError:
            return False

    def _say(self, tls: ReplicaTls, error: Exception) -> None:
        reason = f"{tls.ca or '-'} {tls.certificate or '-'} {tls.key or '-'}: {error}"[:400]
        if reason not in self._said and len(self._said) < MAX_SAID:
            self._said.add(reason)
            _log.warning("readiness_not_asked", files=reason)


async def _over_http(turn: ReplicaTurn, address: str, path: str, tls: ReplicaTls | None) -> bool:
    for each in ready_paths(path):
        answer = await turn.http("GET", url_at(address, each, tls), tls=tls)
        if answer.status != NOT_FOUND:
            return answer.status == OK
    return False


async def _over_grpc(turn: ReplicaTurn, question: Question, tls: ReplicaTls | None) -> bool:
    address = question.grpc or ""
    async with turn.channel(address, tls=tls, max_bytes=_MAX_ANSWER) as channel:
        if question.model:
            asked = kserve_pb2.ModelRequest(name=question.model, version=question.version)
            try:
                return await channel.call(_MODEL_READY, asked.SerializeToString()) == _YES
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.UNIMPLEMENTED:
                    raise
        return await channel.call(_HEALTH, b"") == _YES
