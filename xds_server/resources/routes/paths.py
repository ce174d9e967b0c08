"""The calls that clients may make: the allow-list of paths.

A path that no pattern here matches is answered with 404, whatever the request's headers say. Envoy
normalises paths first (``listener.py``) and matches without the query string. Sources: Triton's
``src/http_server.cc`` (its routes are exact and case-sensitive) and ``grpc_service.proto``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tidegate_api.paths import MESSAGES_ENDING, OPENAI_ENDINGS, RESPONSES_ENDING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tidegate_api.names import Protocol

GRPC_SERVICE: Final = "/inference.GRPCInferenceService/"

INFERENCE: Final = ("infer", "generate", "generate_stream")
"""What ends the path of an inference with a model's name."""

READS: Final = ("ready", "config", "stats")
"""What ends the path of a question about a model; nothing asks for its metadata."""

UNARY_CALLS: Final = (
    "ModelInfer",
    "ModelReady",
    "ModelMetadata",
    "ModelConfig",
    "ModelStatistics",
)
"""gRPC methods whose message names the model."""

QUESTION_CALLS: Final = tuple(GRPC_SERVICE + name for name in UNARY_CALLS if name != "ModelInfer")
"""gRPC questions about a model, which a gateway answers."""

INDEX_CALLS: Final = (GRPC_SERVICE + "RepositoryIndex",)
"""gRPC questions about the repository, which a gateway answers."""

SERVER_PATHS: Final = ("/v2/health/ready", "/v2", "/v2/")
"""HTTP questions about the server, which any replica answers."""

SERVER_CALLS: Final = (
    "/grpc.health.v1.Health/Check",
    GRPC_SERVICE + "ServerLive",
    GRPC_SERVICE + "ServerReady",
    GRPC_SERVICE + "ServerMetadata",
)
"""gRPC questions about the server, which any replica answers."""

SERVER_STREAMS: Final = (
    "/grpc.health.v1.Health/Watch",
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
)
"""The same, as streams."""

ONE_REPLICA_HTTP: Final = (
    "/v2/repository",
    "/v2/systemsharedmemory",
    "/v2/cudasharedmemory",
    "/v2/trace",
    "/v2/logging",
)
"""Beginnings of paths that would read or change one replica: refused."""

_ONE_REPLICA: Final = (
    "this call addresses one replica and is not balanced; send it to the replica itself"
)
_ADMIN: Final = "this call changes replicas; send it to the gateway's port for operators"
_MEMORY: Final = (
    "shared memory is that of one host and replica; register it with the replica itself"
)

ONE_REPLICA_GRPC: Final = (
    "Repository",
    "SystemSharedMemory",
    "CudaSharedMemory",
    "TraceSetting",
    "LogSettings",
)
"""Beginnings of gRPC methods that would read or change one replica: refused."""

CHANGE_CALLS: Final = (
    "RepositoryModelLoad",
    "RepositoryModelUnload",
    "TraceSetting",
    "LogSettings",
)
"""gRPC methods of these that a gateway passes on for operators."""

POST: Final = ("POST",)
READ: Final = ("GET", "HEAD")
ANY: Final = ("GET", "HEAD", "POST")
"""Methods of a pool's own paths (`match.paths`), whose meaning only the engine knows."""

_LISTED: Final = (*OPENAI_ENDINGS, RESPONSES_ENDING, MESSAGES_ENDING)
"""Ends of the paths beside which a list of models stands."""
_MODEL_LIST_ENDING: Final = r"/models(/[^/]+){0,2}"
_UNRESERVED: Final = re.compile(r"[A-Za-z0-9._~-]")


class Call(NamedTuple):
    """A set of paths and the methods with which they may be called."""

    path: dict[str, Any]
    """Path matcher of a ``RouteMatch``."""
    methods: tuple[str, ...]
    """HTTP methods; others are not found. None = all."""


def inference(models: Iterable[str], version: str | None = None) -> Call:
    """Return the inferences of these models over HTTP, at one version or at any."""
    return Call(_regex(f"{_models(models, version)}/({'|'.join(INFERENCE)})"), POST)


def reads(models: Iterable[str], version: str | None = None) -> Call:
    """Return the questions about these models over HTTP, at one version or at any."""
    return Call(_regex(f"{_models(models, version)}(/({'|'.join(READS)}))?"), READ)


def picked(paths: Iterable[str]) -> Call:
    """Return all inferences over HTTP; ``paths`` are the pools' own."""
    of_models = rf"/v2/models/[^/]+(/versions/[0-9]+)?/({'|'.join(INFERENCE)})"
    return Call(_regex("|".join((of_models, *map(re.escape, sorted(paths))))), ANY)


def own_paths(paths: Iterable[str]) -> Call:
    """Return the paths of ``match.paths``."""
    return Call(_regex("|".join(map(re.escape, paths))), ANY)


def unary_calls() -> Call:
    """Return the unary gRPC calls whose message names a model."""
    return Call(_regex(re.escape(GRPC_SERVICE) + f"({'|'.join(UNARY_CALLS)})"), POST)


def of_any_model() -> Iterator[tuple[str, Call]]:
    """Yield (name suffix, call) of inferences of any model over HTTP, and of questions."""
    one = "/v2/models/[^/]+(/versions/[0-9]+)?"
    yield "", Call(_regex(f"{one}/({'|'.join(INFERENCE)})"), POST)
    yield "/about", questions()


def infer_call() -> Call:
    """Return the unary gRPC inference."""
    return Call({"path": GRPC_SERVICE + "ModelInfer"}, POST)


def calls(every: Iterable[str]) -> Call:
    """Return these gRPC calls."""
    return Call(_regex("|".join(map(re.escape, every))), POST)


def questions() -> Call:
    """Return the questions about any model over HTTP, and about all."""
    one = f"/v2/models/[^/]+(/versions/[0-9]+)?(/({'|'.join(READS)}))?"
    return Call(_regex(one), READ)


def questions_of_server() -> Call:
    """Return the questions about the server over HTTP."""
    return Call(_regex("|".join(map(re.escape, SERVER_PATHS))), READ)


def index() -> Call:
    """Return the repository index over HTTP."""
    return Call(_regex("/v2/repository(/[^/]+)?/index"), POST)


def stream_call() -> Call:
    """Return the gRPC stream of inferences."""
    return Call({"path": GRPC_SERVICE + "ModelStreamInfer"}, POST)


def model_list(paths: Iterable[str]) -> Call | None:
    """Return OpenAI's (or Anthropic's) list of models beside these paths, or ``None``."""
    bases = {
        path.removesuffix(ending) + "/v1"
        for path in paths
        for ending in _LISTED
        if path.endswith(ending)
    }
    if not bases:
        return None
    return Call(_regex(f"({'|'.join(map(re.escape, sorted(bases)))}){_MODEL_LIST_ENDING}"), READ)


def one_replica() -> Iterator[tuple[str, Call]]:
    """Yield (name, call) of the calls that address one replica."""
    for prefix in ONE_REPLICA_HTTP:
        yield prefix, Call({"prefix": prefix}, ())
    of_model = _regex(r"/v2/models/[^/]+(/versions/[^/]+)?/trace(/.*)?")
    yield "/v2/models/trace", Call(of_model, ())
    for method in ONE_REPLICA_GRPC:
        yield f"/{method}", Call({"prefix": GRPC_SERVICE + method}, ())


def changes() -> Iterator[tuple[str, Protocol, Call]]:
    """Yield (name, protocol, call) of the calls that a gateway passes on for operators."""
    yield (
        "models",
        "http",
        Call(_regex("/v2/repository(/[^/]+)?/models/[^/]+/(load|unload)"), POST),
    )
    settings = "/v2/(models/[^/]+(/versions/[0-9]+)?/)?trace/setting|/v2/logging"
    yield "settings", "http", Call(_regex(settings), ("GET", "POST"))
    yield "grpc", "grpc", calls(GRPC_SERVICE + name for name in CHANGE_CALLS)


def refusal(name: str, *, gateway: bool) -> str:
    """Return why a call of ``one_replica`` is refused.

    Args:
        name: Its name there.
        gateway: Whether a gateway passes such calls on for operators.
    """
    if not gateway:
        return _ONE_REPLICA
    return _MEMORY if "sharedmemory" in name.lower() else _ADMIN


def _models(models: Iterable[str], version: str | None) -> str:
    versions = "(/versions/[0-9]+)?" if version is None else f"/versions/{version}"
    return f"/v2/models/({'|'.join(map(_spelled, models))}){versions}"


def _spelled(name: str) -> str:
    """Return a pattern of a model's name in a path: clients may percent-encode it, or not."""
    return "".join(_character(character) for character in name)


def _character(character: str) -> str:
    if _UNRESERVED.fullmatch(character):
        return re.escape(character)
    encoded = "".join(f"%{byte:02X}" for byte in character.encode())
    either = re.sub("[A-F]", lambda digit: f"[{digit[0]}{digit[0].lower()}]", encoded)
    return f"({re.escape(character)}|{either})"


def _regex(pattern: str) -> dict[str, Any]:
    return {"safe_regex": {"regex": pattern}}
