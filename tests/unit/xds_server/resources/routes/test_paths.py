"""The allow-list: which paths a client may call, whatever its headers say."""

from __future__ import annotations

import re
from itertools import product
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.envoy_messages import first_match, read_routes
from support.fleets import endpoint, fleet, pool
from xds_server.resources.routes.paths import inference, model_list, reads
from xds_server.resources.routes.table import route_configuration

GRPC = "/inference.GRPCInferenceService/"
CHAT = "/v1/chat/completions"
TWO = fleet(
    pool("llm", default=True, match={"models": ["llm-model"], "paths": [CHAT]}),
    pool("vision", endpoints=[endpoint(4), endpoint(5, variant="canary")]),
    listener={"client_headers": ["tidegate-pool", "tidegate-model"]},
)
HEADERS = (
    {},
    {"tidegate-pool": "llm"},
    {"tidegate-pool": "vision"},
    {"tidegate-model": "llm-model"},
    {"x-tidegate-pool": "llm", "x-tidegate-variant": "stable"},
    {"x-tidegate-pool": "vision", "x-tidegate-variant": "canary"},
)
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")
CLOSED = (
    "/",
    "/flush_cache",
    "/update_weights_from_disk",
    "/v1/load_lora_adapter",
    "/v1/completions",
    CHAT + "/",
    CHAT + "/render",
    CHAT.upper(),
    "/metrics",
    "/v2/models",
    "/v2/models/",
    "/v2/models/llm-model/",
    "/v2/models/llm-model/infer/",
    "/v2/models/llm-model/infer;a=b",
    "/v2/models/llm-model/INFER",
    "/v2/models/llm-model/load",
    "/v2/models/llm-model/unload",
    "/v2/models/llm-model/versions/x/infer",
    "/v2/models/llm-model/versions/2/trace/setting",
    "/v2/models/llm-model/trace/setting",
    "/v2/models/llm-model%2F..%2F..%2Frepository%2Findex",
    "/v2/repository/index",
    "/v2/repository/models/llm-model/load",
    "/v2/trace/setting",
    "/v2/logging",
    "/v2/systemsharedmemory/status",
    "/v2/cudasharedmemory/region/a/register",
    "/v2/health",
    "/v2/health/ready/",
    "/V2/health/ready",
    GRPC,
    GRPC + "modelInfer",
    GRPC + "ModelInfer/",
    GRPC + "ModelInferX",
    GRPC + "RepositoryModelLoad",
    GRPC + "RepositoryModelUnload",
    GRPC + "RepositoryIndex",
    GRPC + "TraceSetting",
    GRPC + "LogSettings",
    GRPC + "SystemSharedMemoryRegister",
    GRPC + "CudaSharedMemoryStatus",
    "/grpc.health.v1.Health/",
    "/grpc.channelz.v1.Channelz/GetServers",
)


ROUTES = read_routes(route_configuration(TWO))


def hit(method: str, path: str, headers: dict[str, str], among: Any = ROUTES) -> Any:
    """Return the first route that matches."""
    return first_match(among.values(), path, method, **headers)


@pytest.mark.parametrize("path", CLOSED)
def test_no_header_or_method_opens_a_path(path: str) -> None:
    """Neither names of pools and models nor the picker's own headers do."""
    for method, headers in product(METHODS, HEADERS):
        assert hit(method, path, headers).HasField("direct_response"), (method, headers)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v2/models/llm-model/infer"),
        ("POST", "/v2/models/llm-model/versions/1/generate"),
        ("POST", "/v2/models/llm-model/versions/7/generate_stream"),
        ("GET", "/v2/models/llm-model"),
        ("GET", "/v2/models/llm-model/versions/2"),
        ("GET", "/v2/models/vision-model/ready"),
        ("GET", "/v2/models/llm-model/config"),
        ("HEAD", "/v2/models/llm-model/versions/2/stats"),
        ("GET", "/v2"),
        ("GET", "/v2/health/ready"),
        ("GET", "/v1/models"),
        ("GET", "/v1/models/org/name"),
        ("POST", CHAT),
        *(
            ("POST", GRPC + name)
            for name in (
                *("ModelInfer", "ModelStreamInfer", "ModelReady", "ModelMetadata", "ModelConfig"),
                *("ModelStatistics", "ServerLive", "ServerReady", "ServerMetadata"),
            )
        ),
        ("POST", "/grpc.health.v1.Health/Check"),
        ("POST", "/grpc.health.v1.Health/Watch"),
        ("POST", "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"),
        ("POST", "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"),
    ],
)
def test_every_call_of_the_list_is_forwarded(method: str, path: str) -> None:
    """Clients of Triton and OpenAI use these, and only with these methods."""
    assert hit(method, path, {}).HasField("route")
    for other in ("PUT", "DELETE", "OPTIONS", "TRACE"):
        assert hit(other, path, {}).HasField("direct_response")


def test_a_question_is_not_asked_by_post() -> None:
    """The methods of inferences and questions are told apart."""
    assert hit("POST", "/v2/models/llm-model/config", {}).HasField("direct_response")
    assert hit("GET", "/v2/models/llm-model/infer", {}).HasField("direct_response")


@pytest.mark.parametrize("headers", HEADERS[:4])
def test_a_model_of_no_pool_is_closed(headers: dict[str, str]) -> None:
    """A header that names a pool or another model does not lead to a replica's further models."""
    for path in ("/v2/models/other/infer", "/v2/models/other/config", "/v2/models/stats"):
        for method in METHODS:
            assert hit(method, path, headers).HasField("direct_response")


def test_a_picked_request_keeps_its_path() -> None:
    """The picker's choice leads to its cluster on inferences of any model, and on own paths."""
    chosen = {"x-tidegate-pool": "vision", "x-tidegate-variant": "canary"}
    for path in ("/v2/models/any/infer", CHAT):
        assert hit("POST", path, chosen).route.cluster == "vision/canary/http"
    assert hit("POST", GRPC + "ModelConfig", chosen).route.cluster == "vision/canary/grpc"


def test_the_paths_of_the_fleet_before_stay_pickable() -> None:
    """While a fleet changes, pickers choose by the old paths for a moment."""
    new = fleet(pool("llm", default=True))
    made = read_routes(route_configuration(new, retiring=TWO))
    chosen = {"x-tidegate-pool": "llm", "x-tidegate-variant": "canary"}
    assert hit("POST", CHAT, chosen, made).route.cluster == "llm/canary/http"


@given(st.text(st.characters(exclude_categories=("Cs", "Cc", "Zs")), min_size=1, max_size=9))
def test_a_models_name_is_known_however_it_is_spelled(name: str) -> None:
    """Clients may percent-encode a name, in either case, and no name is a pattern."""
    name = name.replace("/", "_")
    calls = inference([name]), reads([name])
    for (match, _), ending in zip(calls, ("/infer", ""), strict=True):
        pattern = match["safe_regex"]["regex"]
        for spelled in (
            name,
            quote(name, safe=""),
            re.sub("%..", lambda e: e[0].lower(), quote(name)),
        ):
            assert re.fullmatch(pattern, f"/v2/models/{spelled}{ending}")
        assert not re.fullmatch(pattern, f"/v2/models/{name}x{ending}")


def test_the_list_of_models_stands_beside_openais_paths() -> None:
    """Behind the same prefix; other paths have none."""
    call = model_list(["/a/v1/chat/completions", "/v1/embeddings", "/v1/rerank"])
    assert call is not None
    pattern = call.path["safe_regex"]["regex"]
    for path in ("/a/v1/models", "/v1/models/m"):
        assert re.fullmatch(pattern, path)
    assert not re.fullmatch(pattern, "/v1/chat/models")
    assert model_list(["/v1/rerank"]) is None
    for path in ("/v1/responses", "/v1/messages"):
        assert model_list([path]) == model_list(["/v1/completions"])
