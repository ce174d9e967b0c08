"""Replicas of a fleet, asked as Envoy and the picker would ask them.

Rules:

1. Each replica is asked once for each pool that has it, within the pool's ``health.timeout`` and
   at most ``AT_ONCE`` at one time. Nothing on it is changed.
2. What does not answer is asked nothing further: one finding tells its cause.
3. Models are asked for by the exact names of the pool's ``match``; a pool without names by the
   server's own readiness.
4. Replicas that a source finds (``endpoints_from``) are not asked.
"""

from __future__ import annotations

import asyncio
import socket
from collections import defaultdict
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import quote

import grpc
import orjson

from ext_proc.telemetry.dialects import read_all
from ext_proc.telemetry.dialects.page import BadPage
from tidegate.doctor.diagnosis import Diagnosis, fault, risk
from tidegate_api.kserve.v1 import kserve_pb2
from tidegate_api.pools import ready_paths
from tidegate_common.upstream.client import OK, AskError, AskFault, ReplicaClient, url_at
from tidegate_common.upstream.contexts import ReplicaTls
from xds_server.applications.discovery.readiness import question_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tidegate_common.upstream.client import ReplicaTurn
    from xds_server.applications.discovery.readiness import Question
    from xds_server.fleet.model.fleet import EndpointSpec, Fleet, PoolSpec

AT_ONCE: Final = 32
"""Most replicas that are asked at one time."""
MAX_PAGE: Final = 8 * 2**20
"""Most bytes of a page."""
_MAX_ANSWER: Final = 2**20
_NOT_FOUND: Final = (400, 404)
"""Statuses of Triton's and of engines' answers about a model that they do not have."""
_MODEL_READY: Final = "/inference.GRPCInferenceService/ModelReady"
_SERVER_METADATA: Final = "/inference.GRPCInferenceService/ServerMetadata"
_YES: Final = b"\x08\x01"
"""Both ``ready: true`` and ``status: SERVING``."""
_HEALTH: Final = "/grpc.health.v1.Health/Check"


class Asked(NamedTuple):
    """What came of asking one replica of one pool."""

    pool: str
    variant: str
    replica: str
    findings: list[Diagnosis]
    version: str | None
    """The server's own version; ``None`` = it does not tell."""


async def examine(fleet: Fleet) -> list[Diagnosis]:
    """Ask all replicas of a fleet, and return what is wrong with them."""
    async with ReplicaClient(AT_ONCE) as client:
        asked = await asyncio.gather(
            *(_ask(client, pool, spec) for pool in fleet.pools for spec in pool.endpoints)
        )
    found = [finding for one in asked for finding in one.findings]
    return [*dict.fromkeys([*found, *judge_versions(asked)])]


def judge_versions(asked: Iterable[Asked]) -> Iterator[Diagnosis]:
    """Yield variants whose replicas run different versions of their server."""
    versions: dict[tuple[str, str], dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for one in asked:
        if one.version:
            versions[one.pool, one.variant][one.version].append(one.replica)
    for (pool, variant), by_version in versions.items():
        if len(by_version) > 1:
            told = "; ".join(
                f"{version} on {', '.join(sorted(replicas))}"
                for version, replicas in sorted(by_version.items())
            )
            yield risk(
                f"pool {pool}, variant {variant}",
                f"has servers of different versions: {told}",
                "run one version in a variant, or give each its own variant",
            )


async def _ask(client: ReplicaClient, pool: PoolSpec, spec: EndpointSpec) -> Asked:
    question = question_of(pool, spec)
    tls = None if question.tls is None else ReplicaTls.of(question.tls)
    found: list[Diagnosis] = []
    version = None
    name = spec.dns_name
    if name is not None and not await _resolves(name):
        found.append(
            fault(spec.id, f"has the name {name}, which does not resolve", "correct the name")
        )
        return Asked(pool.name, pool.variant_of(spec), spec.id, found, None)
    if question.http is not None:
        said, version = await _over_http(client, pool, spec, question, tls)
        found += said
    if question.grpc is not None:
        said, told = await _over_grpc(client, spec, question, tls)
        found += said
        version = version or told
    if spec.metrics is not None:
        found += await _page(client, spec.id, spec.metrics, question.timeout_s)
    else:
        found.append(
            risk(
                spec.id,
                "has no `metrics`, so its queue and cache are unknown",
                "name its page, for example `metrics: http://HOST:8002/metrics`",
            )
        )
    found += await _events(spec, question.timeout_s)
    return Asked(pool.name, pool.variant_of(spec), spec.id, found, version)


async def _resolves(name: str) -> bool:
    try:
        return bool(await asyncio.get_running_loop().getaddrinfo(name, None))
    except socket.gaierror:
        return False


async def _over_http(
    client: ReplicaClient,
    pool: PoolSpec,
    spec: EndpointSpec,
    question: Question,
    tls: ReplicaTls | None,
) -> tuple[list[Diagnosis], str | None]:
    address = question.http or ""
    about = f"{spec.id} at http {address}"
    try:
        async with client.turn(question.timeout_s) as turn:
            status = await _ready(turn, address, question.path, tls)
            if status == OK:
                return [], await _version(turn, address, tls)
            models = pool.match.models
            if not models:
                return [_not_ready(about, question.path, status)], None
            known = await turn.http(
                "GET", url_at(address, f"/v2/models/{quote(models[0], safe='')}", tls), tls=tls
            )
    except AskError as error:
        return [_silent(about, error, question.timeout_s, tls)], None
    if known.status in _NOT_FOUND:
        return [_lacks(about, models[0], question.version)], None
    return [_not_ready(about, question.path, status)], None


async def _ready(turn: ReplicaTurn, address: str, path: str, tls: ReplicaTls | None) -> int:
    status = 404
    for each in ready_paths(path):
        status = (await turn.http("GET", url_at(address, each, tls), tls=tls)).status
        if status != 404:  # noqa: PLR2004 - the next path may be known
            break
    return status


async def _version(turn: ReplicaTurn, address: str, tls: ReplicaTls | None) -> str | None:
    """Return the version that a server tells, of Triton's or of vLLM's form."""
    for path in ("/v2", "/version"):
        answer = await turn.http("GET", url_at(address, path, tls), tls=tls, max_bytes=_MAX_ANSWER)
        if answer.status == OK:
            try:
                told = orjson.loads(answer.body).get("version")
            except (ValueError, AttributeError):
                continue
            if isinstance(told, str):
                return told[:64]
    return None


async def _over_grpc(
    client: ReplicaClient, spec: EndpointSpec, question: Question, tls: ReplicaTls | None
) -> tuple[list[Diagnosis], str | None]:
    address = question.grpc or ""
    about = f"{spec.id} at grpc {address}"
    try:
        async with (
            client.turn(question.timeout_s) as turn,
            turn.channel(address, tls=tls, max_bytes=_MAX_ANSWER) as channel,
        ):
            try:
                if question.model:
                    asked = kserve_pb2.ModelRequest(name=question.model, version=question.version)
                    ready = await channel.call(_MODEL_READY, asked.SerializeToString())
                else:
                    ready = await channel.call(_HEALTH, b"")
            except grpc.aio.AioRpcError as error:
                return [_grpc_answer(about, question, error)], None
            if ready != _YES:
                lacks = _lacks(about, question.model, question.version)
                return [lacks if question.model else _not_ready(about, _HEALTH, 0)], None
            try:
                told = await channel.call(_SERVER_METADATA, b"")
            except grpc.aio.AioRpcError:
                return [], None
            return [], kserve_pb2.ServerMetadataResponse.FromString(told).version[:64] or None
    except AskError as error:
        if error.fault is not AskFault.NO_FILES and await _speaks_http(
            client, address, question, tls
        ):
            says = "speaks HTTP/1.1 there, not gRPC"
            return [fault(about, says, "exchange the ports of `http` and `grpc`")], None
        return [_silent(about, error, question.timeout_s, tls)], None


async def _speaks_http(
    client: ReplicaClient, address: str, question: Question, tls: ReplicaTls | None
) -> bool:
    try:
        async with client.turn(question.timeout_s) as turn:
            await turn.http("GET", url_at(address, "/v2/health/live", tls), tls=tls)
    except AskError:
        return False
    return True


def _grpc_answer(about: str, question: Question, error: grpc.aio.AioRpcError) -> Diagnosis:
    code, details = error.code(), (error.details() or "")[:200]
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return risk(
            about,
            "answers neither ModelReady nor health checks over gRPC",
            "give the replica an `http` address as well, so that it can be checked",
        )
    if code in {grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INVALID_ARGUMENT}:
        return _lacks(about, question.model, question.version)
    return fault(about, f"answers {code.name}: {details}", "look at the replica's log")


def _silent(about: str, error: AskError, timeout_s: float, tls: ReplicaTls | None) -> Diagnosis:
    says = error.fault.value
    if error.fault is AskFault.LATE:
        return fault(
            about, f"{says} ({timeout_s:g} s)", "look whether it is frozen, or a firewall drops"
        )
    if error.fault is AskFault.REFUSED:
        return fault(about, says, "start the server, or correct the port")
    if error.fault is AskFault.UNTRUSTED:
        return fault(
            about, f"{says}: {error}"[:300], "correct `upstream_tls.ca`, or its `server_name`"
        )
    if error.fault is AskFault.NO_FILES:
        return fault(about, f"{says}: {error}"[:300], "correct `upstream_tls` of the pool")
    if error.fault is AskFault.BROKEN:
        other = "without `upstream_tls`" if tls is not None else "with `upstream_tls`"
        return fault(about, says, f"correct the port, or try the pool {other}")
    return fault(about, f"{says}: {error}"[:300], "correct the address or the route to it")


def _lacks(about: str, model: str, version: str) -> Diagnosis:
    what = f"version {version} of model {model}" if version else f"model {model}"
    return fault(
        about,
        f"has not loaded {what}",
        "load it (`tidegate model load`), or correct the pool's `match.models` or `model_version`",
    )


def _not_ready(about: str, path: str, status: int) -> Diagnosis:
    answers = f" ({path} answers {status})" if status else ""
    return fault(about, f"is not ready{answers}", "wait for its models, or look at its log")


async def _page(client: ReplicaClient, replica: str, url: str, timeout_s: float) -> list[Diagnosis]:
    about = f"{replica} at {url}"
    try:
        async with client.turn(timeout_s) as turn:
            answer = await turn.http("GET", url, max_bytes=MAX_PAGE)
    except AskError as error:
        fix = "correct `metrics`; Triton serves them on port 8002 unless --allow-metrics=false"
        return [fault(about, f"metrics page: {error.fault.value}", fix)]
    return list(judge_page(about, answer.status, answer.body))


def judge_page(about: str, status: int, body: bytes) -> Iterator[Diagnosis]:
    """Yield what a picker could not use of a metrics page."""
    if status != OK:
        yield fault(
            about, f"answers {status} in place of a metrics page", "correct the path of `metrics`"
        )
        return
    try:
        page = read_all(body.decode("utf-8", errors="replace"), 0.0)
    except BadPage as error:
        yield fault(about, f"is no metrics page: {error}"[:300], "correct the URL of `metrics`")
        return
    if not page.readings:
        yield risk(
            about,
            "has no series of Triton, TensorRT-LLM, vLLM or SGLang that a picker reads",
            "correct the URL, or declare its series in the pool's `telemetry.custom`",
        )


async def _events(spec: EndpointSpec, timeout_s: float) -> list[Diagnosis]:
    events = spec.telemetry.kv_events
    if events is None:
        return []
    host, _, port = events.address.removeprefix("tcp://").rpartition(":")
    found = []
    for engine in range(events.engines):
        try:
            async with asyncio.timeout(timeout_s):
                _, writer = await asyncio.open_connection(host.strip("[]"), int(port) + engine)
            writer.close()
        except OSError:  # a timeout is one too
            found.append(
                risk(
                    f"{spec.id} at tcp://{host}:{int(port) + engine}",
                    "publishes no KV events there, so its cache is estimated",
                    "start vLLM with --kv-events-config, or correct `telemetry.kv_events`",
                )
            )
    return found
