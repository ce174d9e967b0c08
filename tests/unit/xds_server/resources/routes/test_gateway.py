"""Routes to the gateway: which questions take them, and of which pools they speak."""

from __future__ import annotations

from typing import Any

import pytest

from support.envoy_messages import cluster_of, first_match, read_routes
from support.fleets import fleet, pool
from tidegate_api.names import GATEWAY_CLUSTERS, GATEWAY_OPERATOR_CLUSTERS, IN_SIGHT_HEADER
from xds_server.fleet.guards.fronts import fronts
from xds_server.fleet.model.fleet import Fleet
from xds_server.resources.routes.table import route_configuration

GATEWAY = {"http": ["127.0.0.1:1"], "grpc": ["127.0.0.1:2"]}
JWT = {"jwt": [{"name": "corp", "issuer": "a", "jwks": '{"keys": []}'}]}
GRPC = "/inference.GRPCInferenceService/"


def routes_of(made: Fleet, host: int = 0, front: int = 0) -> dict[str, Any]:
    """Return the routes of a host of one of the listeners."""
    return read_routes(route_configuration(made, front=fronts(made.listener)[front]), host)


def first(routes: dict[str, Any], path: str, method: str, **headers: str) -> Any:
    """Return the first route that matches."""
    return first_match(routes.values(), path, method, **headers)


def cluster(made: Fleet, path: str, method: str = "GET", front: int = 0, **headers: str) -> str:
    """Return the cluster to which a request goes; the status if Envoy answers."""
    route = first(routes_of(made, front=front), path, method, **headers)
    if route.HasField("direct_response"):
        return str(route.direct_response.status)
    return cluster_of(route)


QUESTIONS = [
    ("/v2", "GET"),
    ("/v2/", "GET"),
    ("/v2/health/ready", "GET"),
    ("/v2/models/llm-model", "GET"),
    ("/v2/models/llm-model/ready", "HEAD"),
    ("/v2/models/llm-model/versions/1/stats", "GET"),
    ("/v2/models/part-of-an-ensemble/config", "GET"),
    ("/v2/models/stats", "GET"),
    ("/v2/repository/index", "POST"),
    ("/v2/repository/name/index", "POST"),
    *(
        (GRPC + name, "POST")
        for name in (
            "ServerLive",
            "ServerReady",
            "ServerMetadata",
            "ModelReady",
            "ModelMetadata",
            "ModelConfig",
            "ModelStatistics",
            "RepositoryIndex",
        )
    ),
    ("/grpc.health.v1.Health/Check", "POST"),
    ("/grpc.health.v1.Health/Watch", "POST"),
    ("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", "POST"),
    ("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", "POST"),
]
OTHERS = [
    ("/v2/models/llm-model/infer", "POST"),
    ("/v2/models/llm-model/versions/1/generate", "POST"),
    (GRPC + "ModelInfer", "POST"),
    (GRPC + "ModelStreamInfer", "POST"),
    ("/v2/repository/models/llm-model/load", "POST"),
    ("/v2/models/llm-model/trace/setting", "POST"),
    ("/v2/systemsharedmemory/status", "GET"),
    ("/v2/models/llm-model/config", "POST"),
    ("/v2/health/live", "GET"),
    (GRPC + "RepositoryModelLoad", "POST"),
    ("/metrics", "GET"),
]


@pytest.mark.parametrize(("path", "method"), QUESTIONS)
def test_questions_go_to_the_gateway(path: str, method: str) -> None:
    """Whatever header names a pool."""
    made = fleet(gateway=GATEWAY)
    wanted = GATEWAY_CLUSTERS["http" if path.startswith("/v2") else "grpc"]
    assert cluster(made, path, method) == wanted
    assert cluster(made, path, method, tidegate_pool="llm") == wanted


@pytest.mark.parametrize(("path", "method"), OTHERS)
def test_all_else_is_as_without_a_gateway(path: str, method: str) -> None:
    """Inferences, refused calls and what is not allowed."""
    assert cluster(fleet(gateway=GATEWAY), path, method) == cluster(fleet(), path, method)


def test_streams_have_no_time_limit() -> None:
    """A watch lasts as long as its client; the gateway says something each minute."""
    routes = routes_of(fleet(gateway=GATEWAY))
    action = first(routes, "/grpc.health.v1.Health/Watch", "POST").route
    assert (action.timeout.seconds, action.idle_timeout.seconds) == (0, 300)
    assert action.HasField("timeout")


def test_lists_of_engines_go_to_the_gateway() -> None:
    """Of the pools with such paths."""
    engine = pool("vllm", match={"models": ["e"], "paths": ["/v1/completions"]}, default=True)
    made = fleet(engine, gateway=GATEWAY)
    assert cluster(made, "/v1/models") == GATEWAY_CLUSTERS["http"]
    assert cluster(made, "/v1/models/e", tidegate_pool="vllm") == GATEWAY_CLUSTERS["http"]
    assert cluster(made, "/v1/completions", "POST").startswith("vllm/")


def sight_of(route: Any) -> tuple[str, int]:
    """Return value and action of the header with the pools in sight."""
    (told,) = route.request_headers_to_add
    assert told.header.key == IN_SIGHT_HEADER
    return told.header.value, told.append_action


def test_the_header_replaces_what_a_client_sent() -> None:
    """Else a client could see other pools."""
    route = first(routes_of(fleet(gateway=GATEWAY)), "/v2/models/stats", "GET")
    assert sight_of(route) == ("*", 2)  # OVERWRITE_IF_EXISTS_OR_ADD


def test_a_host_of_its_own_sees_its_own_pools() -> None:
    """The gateway is told which."""
    made = fleet(
        pool(default=True),
        pool("vision", endpoints=[{"id": "v", "http": "127.0.0.1:9", "grpc": "127.0.0.1:10"}]),
        gateway=GATEWAY,
        listener={"hosts": [{"names": ["a.example"], "pools": ["vision"]}]},
    )
    routes = routes_of(made, host=0)
    assert sight_of(first(routes, "/v2/models/stats", "GET"))[0] == "vision"
    assert sight_of(first(routes_of(made, host=1), "/v2/models/stats", "GET"))[0] == "*"


def test_a_guarded_pool_is_not_spoken_of() -> None:
    """The gateway asks for no token: questions about such a pool take its own routes."""
    made = fleet(
        pool(default=True),
        pool(
            "vision",
            endpoints=[{"id": "v", "http": "127.0.0.1:9", "grpc": "127.0.0.1:10"}],
            jwt={"any_of": ["corp"]},
        ),
        gateway=GATEWAY,
        listener=JWT,
    )
    assert sight_of(first(routes_of(made), "/v2/models/stats", "GET"))[0] == "llm"
    assert cluster(made, "/v2/models/vision-model/config").startswith("vision/")
    assert cluster(made, "/v2/models/llm-model/config") == GATEWAY_CLUSTERS["http"]
    over_grpc = cluster(made, GRPC + "ModelConfig", "POST")
    assert over_grpc == cluster(made, GRPC + "ModelInfer", "POST")


def test_if_all_pools_are_guarded_the_gateway_is_not_asked() -> None:
    """There is nothing that it could say."""
    made = fleet(pool(default=True, jwt={"any_of": ["corp"]}), gateway=GATEWAY, listener=JWT)
    assert GATEWAY_CLUSTERS["http"] not in {each.route.cluster for each in routes_of(made).values()}
    assert cluster(made, "/v2/models/llm-model/config").startswith("llm/")


def test_a_refusal_says_where_a_change_belongs() -> None:
    """Shared memory belongs to no gateway."""
    routes = routes_of(fleet(gateway=GATEWAY))
    load = first(routes, "/v2/repository/models/m/load", "POST")
    memory = first(routes, GRPC + "SystemSharedMemoryRegister", "POST")
    assert "port for operators" in load.direct_response.body.inline_string
    assert "of one host" in memory.direct_response.body.inline_string


def test_what_one_gateway_cannot_take_goes_to_the_next() -> None:
    """Envoy would ask the dead one again until its checks have found it."""
    made = fleet(gateway=GATEWAY)
    retry = first(routes_of(made), "/v2", "GET").route.retry_policy
    assert retry.retry_priority.name == "envoy.retry_priorities.previous_priorities"
    assert retry.num_retries.value == 1


CHANGES = [
    ("/v2/repository/models/llm-model/load", "POST"),
    ("/v2/repository/mine/models/llm-model/unload", "POST"),
    ("/v2/trace/setting", "GET"),
    ("/v2/models/llm-model/trace/setting", "POST"),
    ("/v2/models/llm-model/versions/1/trace/setting", "GET"),
    ("/v2/logging", "POST"),
    (GRPC + "RepositoryModelLoad", "POST"),
    (GRPC + "RepositoryModelUnload", "POST"),
    (GRPC + "TraceSetting", "POST"),
    (GRPC + "LogSettings", "POST"),
]
REFUSED = [
    ("/v2/systemsharedmemory/status", "GET"),
    ("/v2/cudasharedmemory/region/a/register", "POST"),
    ("/v2/repository/models/llm-model/other", "POST"),
    (GRPC + "SystemSharedMemoryStatus", "POST"),
    (GRPC + "CudaSharedMemoryRegister", "POST"),
]
OPERATORS = {"http": ["127.0.0.1:3"], "grpc": ["127.0.0.1:4"]}


def with_operators(**more: Any) -> Fleet:
    """Return a fleet with a listener for operators."""
    further = {"name": "ops", "address": "127.0.0.1:9", "operators": True, **more}
    return fleet(
        listener={"address": "127.0.0.1:8", "further": [further]},
        gateway={**GATEWAY, "operators": OPERATORS},
    )


@pytest.mark.parametrize(("path", "method"), CHANGES)
def test_changes_go_to_the_gateways_port_for_operators_from_their_listener_alone(
    path: str, method: str
) -> None:
    """Not for a web page, and in the sight of the listener's pools."""
    made = with_operators()
    protocol = "http" if path.startswith("/v2") else "grpc"
    assert cluster(made, path, method, 1) == GATEWAY_OPERATOR_CLUSTERS[protocol]
    assert cluster(made, path, method) == "403"
    assert cluster(made, path, method, 1, origin="http://page.test") == "403"
    routes = routes_of(with_operators(pools=["llm"]), front=1)
    assert sight_of(first(routes, path, method))[0] == "llm"


def test_a_question_is_asked_again_where_its_connection_ends_and_a_change_is_not() -> None:
    """A gateway that stops closes connections under questions; a load must not happen twice."""
    routes = routes_of(with_operators(), front=1)

    def ends(path: str, method: str) -> set[str]:
        return set(first(routes, path, method).route.retry_policy.retry_on.split(","))

    assert "reset" in ends("/v2", "GET")
    assert all("reset" not in ends(*each) for each in CHANGES)
    assert "reset-before-request" in ends(*CHANGES[0])


@pytest.mark.parametrize(("path", "method"), [*REFUSED, *QUESTIONS, *OTHERS])
def test_all_else_is_at_a_listener_for_operators_as_elsewhere(path: str, method: str) -> None:
    """Shared memory stays refused; inferences and questions go where they go."""
    if (path, method) not in CHANGES:
        made = with_operators()
        assert cluster(made, path, method, 1) == cluster(made, path, method)
