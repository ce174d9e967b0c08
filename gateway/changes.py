"""Calls that change replicas: to all of them, or to one. For operators.

Rules:

1. A call about a model goes to the replicas of the pools that list it, any other to all replicas;
   with ``tidegate-endpoint`` to that one only.
2. It succeeded if it succeeded everywhere. Otherwise the answer says for each replica what
   happened, and nothing is undone.
3. Every change is logged with its outcome.
4. A load names no version, so it could replace that of a variant which has one
   (``model_version``). Replicas of such variants that have the model READY are left out; if no
   others are left, the load is refused.
5. A load with a file path that is longer than file systems take ends Triton 2.51, so it would end
   all replicas. It is refused as later ones refuse it.
6. A model that is unloaded is taken out of use on these replicas first, by the control server: as
   long as a stream to it is open. Where that fails, nothing is unloaded, as pickers might send
   requests to where the model is no more. A stream that is lost later changes nothing.

Source: Triton's model repository, trace and logging extensions.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import grpc
import orjson
import structlog
from google.protobuf.message import DecodeError

from gateway.grpc_answers import INTERNAL, NOT_FOUND, UNAVAILABLE, GrpcReply
from gateway.http_answers import JSON, HttpQuestion, HttpReply, described, refusal, silence
from gateway.merge import parity
from gateway.targets import UnknownReplicaError, pinned, replicas_of
from tidegate_api.fleet.v1 import report_pb2, report_pb2_grpc
from tidegate_api.kserve.v1 import kserve_pb2 as pb
from tidegate_common.lost import why_lost

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping
    from contextlib import AbstractAsyncContextManager

    from ext_proc.routing.values.pool import Pool
    from gateway.merge.answers import Said
    from gateway.questions import Heard, Questions, Scope
    from tidegate_api.names import Protocol

_PATHS: Final = re.compile(
    r"/v2/repository(/[^/]+)?/models/(?P<model>[^/]+)/(?P<verb>load|unload)"
    r"|/v2/models/(?P<traced>[^/]+)(/versions/[0-9]+)?/trace/setting"
    r"|/v2/trace/setting|/v2/logging"
)
METHODS: Final = (
    "RepositoryModelLoad",
    "RepositoryModelUnload",
    "TraceSetting",
    "LogSettings",
)
"""Methods of ``inference.GRPCInferenceService``."""
_FILE: Final = "file:"
"""Beginning of a parameter's name that is a path within the model."""
MAX_PATH_PART: Final = 255
"""Longest part of such a path, bytes: Linux' NAME_MAX."""
MAX_PATH: Final = 4000
"""Longest such path, bytes: Linux' PATH_MAX without the temporary folder."""
_FAILED_PRECONDITION: Final = 9
_ABORTED: Final = 10
_PINNED: Final = "pinned-version"
_IN_USE: Final = "in-use"
DRAINED_S: Final = 60.0
"""Longest wait for the control server, whose own bounds are shorter together."""
_MAX_TEXT: Final = 512

_log = structlog.stdlib.get_logger("gateway.changes")


def is_change(path: str) -> bool:
    """Return whether a path is that of such a call."""
    return _PATHS.fullmatch(unquote(path)) is not None


class UndrainedError(RuntimeError):
    """A model was not taken out of use; the message says why."""


class ModelDrains:
    """Holds models out of use, by a stream to the control server; see rule 6.

    Args:
        channel: Channel to the control server; ``None`` = there is none, nothing is held.
    """

    def __init__(self, channel: grpc.aio.Channel | None) -> None:
        self._stub = None if channel is None else report_pb2_grpc.ModelDrainsStub(channel)

    @contextlib.asynccontextmanager
    async def held(self, model: str, endpoints: Iterable[str]) -> AsyncIterator[None]:
        """Hold a model out of use on replicas for the time of a context.

        Raises:
            UndrainedError: It is not out of use.
        """
        ids = sorted(endpoints)
        if self._stub is None or not ids:
            yield
            return
        call = self._stub.Hold(timeout=None, wait_for_ready=False)
        try:
            await self._begin(call, model, ids)
            yield
        finally:
            call.cancel()

    async def _begin(self, call: Any, model: str, ids: list[str]) -> None:
        try:
            async with asyncio.timeout(DRAINED_S):
                await call.write(report_pb2.HeldModel(model=model, endpoints=ids))
                answer = await call.read()
                if answer is grpc.aio.EOF:
                    raise UndrainedError(why_lost((await call.code()).name, await call.details()))
        except TimeoutError:
            raise UndrainedError(f"no answer of the control server in {DRAINED_S:.0f} s") from None
        except grpc.aio.AioRpcError as error:
            raise UndrainedError(why_lost(error.code().name, error.details())) from None
        except asyncio.InvalidStateError:
            raise UndrainedError("the control server ended the stream") from None
        if answer.notes:
            _log.warning("model_runs_on", model=model, notes=list(answer.notes))


class ReplicaChanges:
    """Passes such calls on.

    Args:
        questions: Asks the replicas.
        drains: Takes models out of use.
    """

    def __init__(self, questions: Questions, drains: ModelDrains) -> None:
        self._questions = questions
        self._drains = drains

    async def http(self, asked: HttpQuestion, scope: Scope) -> HttpReply:
        """Return the outcome of a request for which ``is_change``."""
        found = _PATHS.fullmatch(unquote(asked.path))
        if found and found["verb"] == "load":
            text = _unsound(found["model"], _parameters(asked.body))
            if text is not None:
                return refusal(500, "bad-request", text)
        return await self._http(asked, scope, found)

    async def _http(
        self, asked: HttpQuestion, scope: Scope, found: re.Match[str] | None
    ) -> HttpReply:
        model = (found["model"] or found["traced"] or "") if found else ""
        pools = self._questions.pools_about(scope, model)
        headers = {"content-type": JSON} if asked.body else {}
        try:
            kept: set[str] = set()
            pins = pinned(pools, model, scope.endpoint)
            if pins and found and found["verb"] == "load":
                asks = _ready_path(asked.path)
                ready = await self._questions.http(pools, scope, "GET", asks)
                kept = pins.keys() & {each.replica for each in ready.good}
                if kept and len(kept) == len(ready.said):
                    return refusal(409, _PINNED, _against(pins, model))
            unloads = model if found and found["verb"] == "unload" else ""
            async with self._out_of_use(pools, "http", scope, unloads):
                heard = await self._questions.http(
                    pools,
                    scope,
                    asked.method,
                    asked.path,
                    body=asked.body,
                    headers=headers,
                    without=kept,
                )
        except UndrainedError as error:
            return refusal(409, _IN_USE, f"{model} is still in use: {error}")
        except UnknownReplicaError as error:
            return refusal(404, "unknown-endpoint", f"no replica {error} speaks HTTP")
        return _http_answer(asked, heard)

    async def grpc(self, method: str, message: bytes, scope: Scope) -> GrpcReply:
        """Return the outcome of a call of one of ``METHODS``."""
        if method == "RepositoryModelLoad":
            text = _unsound(*_load_in(message))
            if text is not None:
                return GrpcReply(INTERNAL, details=text)
        return await self._grpc(method, message, scope)

    async def _grpc(self, method: str, message: bytes, scope: Scope) -> GrpcReply:
        try:
            model = pb.ChangeRequest.FromString(message).model_name
        except (DecodeError, UnicodeDecodeError):
            model = ""
        if method == "LogSettings":
            model = ""
        pools = self._questions.pools_about(scope, model)
        try:
            kept: set[str] = set()
            pins = pinned(pools, model, scope.endpoint)
            if pins and method == "RepositoryModelLoad":
                asks = pb.ModelRequest(name=model).SerializeToString()
                ready = await self._questions.grpc(pools, scope, "ModelReady", asks)
                yes = pb.ReadyResponse(ready=True).SerializeToString()
                kept = pins.keys() & {each.replica for each in ready.good if each.body == yes}
                if kept and len(kept) == len(ready.said):
                    return GrpcReply(_FAILED_PRECONDITION, details=_against(pins, model))
            unloads = model if method == "RepositoryModelUnload" else ""
            async with self._out_of_use(pools, "grpc", scope, unloads):
                heard = await self._questions.grpc(pools, scope, method, message, without=kept)
        except UndrainedError as error:
            return GrpcReply(_FAILED_PRECONDITION, details=f"{model} is still in use: {error}")
        except UnknownReplicaError as error:
            return GrpcReply(NOT_FOUND, details=f"no replica {error} speaks gRPC")
        return _grpc_answer(method, heard)

    def _out_of_use(
        self, pools: tuple[Pool, ...], protocol: Protocol, scope: Scope, model: str
    ) -> AbstractAsyncContextManager[None]:
        targets = replicas_of(pools, protocol, scope.endpoint).asked if model else ()
        return self._drains.held(model, [each.key.id for each in targets])


def _http_answer(asked: HttpQuestion, heard: Heard) -> HttpReply:
    if asked.method != "GET":
        _tell(f"{asked.method} {asked.path}", heard)
    if heard.said and len(heard.good) == len(heard.said):
        return described(heard, "", parity.versions_of)
    if not heard.said:
        return refusal(503, "unavailable", silence(heard), heard.note())
    same = heard.error
    if same is not None and all(_same(each, same) for each in heard.said):
        return HttpReply(same.status, same.body, same.text, heard.note())
    replicas = {each.replica: _http_outcome(each) for each in heard.said}
    failed = {name: one["error"] for name, one in replicas.items() if "error" in one}
    body = {"error": _sentence(failed, len(heard.said)), "replicas": replicas}
    return HttpReply(502, orjson.dumps(body), JSON, heard.note(), "partial")


def _grpc_answer(method: str, heard: Heard) -> GrpcReply:
    _tell(method, heard)
    if heard.said and len(heard.good) == len(heard.said):
        return GrpcReply(message=heard.good[0].body, note=heard.note())
    if not heard.said:
        return GrpcReply(UNAVAILABLE, details=silence(heard), note=heard.note())
    same = heard.error
    if same is not None and all(_same(each, same) for each in heard.said):
        return GrpcReply(same.status, details=same.text, note=heard.note())
    failed = {
        each.replica: each.fault or each.text[:_MAX_TEXT] or f"status {each.status}"
        for each in heard.said
        if not each.good
    }
    return GrpcReply(_ABORTED, details=_sentence(failed, len(heard.said)), note=heard.note())


def _parameters(body: bytes) -> Iterable[str]:
    """Return the names of a load's parameters; none if the body cannot be read."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        return ()
    found = value.get("parameters") if isinstance(value, dict) else None
    return found if isinstance(found, dict) else ()


def _load_in(message: bytes) -> tuple[str, Iterable[str]]:
    """Return the model of a load and the names of its parameters, as far as it can be read."""
    try:
        load = pb.LoadRequest.FromString(message)
    except (DecodeError, UnicodeDecodeError):
        return "", ()
    return load.model_name, load.parameters


def _unsound(model: str, parameters: Iterable[str]) -> str | None:
    """Return why a load would end replicas (rule 5); ``None`` = it would not."""
    for name in parameters:
        path = name.removeprefix(_FILE).encode("utf-8", "replace")
        longest = max(map(len, path.split(b"/")))
        if name.startswith(_FILE) and (longest > MAX_PATH_PART or len(path) > MAX_PATH):
            return (
                f"failed to load '{model}', failed to poll from model repository: the path"
                f" {name[:64]!r}... has {len(path)} bytes, a part of it {longest};"
                f" at most {MAX_PATH} and {MAX_PATH_PART} are possible"
            )
    return None


def _ready_path(path: str) -> str:
    """Return the path that asks whether the model of a load is READY."""
    return re.sub("^.*/models/([^/]+)/load$", r"/v2/models/\1/ready", path)


def _against(pins: Mapping[str, str], model: str) -> str:
    """Return why a load must not be made (rule 4).

    Args:
        pins: Replicas whose variant has a version, and which.
        model: The model.
    """
    where = "; ".join(f"{name}: {words}" for name, words in list(pins.items())[:32])
    return (
        f"{model} is READY, and a load could replace its version ({where}); load another version"
        " under a name of its own or onto replicas of another variant, or unload the model first"
    )


def _same(one: Said, other: Said) -> bool:
    return one._replace(replica="") == other._replace(replica="")


def _sentence(failed: dict[str, str], count: int) -> str:
    told = "; ".join(f"{name}: {why}" for name, why in list(failed.items())[:32])
    return f"{len(failed)} of {count} replicas failed: {told}"


def _http_outcome(said: Said) -> dict[str, Any]:
    if said.fault is not None:
        return {"error": said.fault}
    if said.good:
        return {"status": said.status}
    try:
        text = str(parity.parsed(said.body)["error"])
    except (parity.DescriptionError, KeyError):
        text = f"status {said.status}"
    return {"status": said.status, "error": text[:_MAX_TEXT]}


def _tell(what: str, heard: Heard) -> None:
    _log.info("change_sent", call=what[:_MAX_TEXT], replicas=heard.note())
