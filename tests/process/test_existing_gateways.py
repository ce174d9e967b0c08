"""The picker behind Envoys as Envoy Gateway and Istio configure them from ``deploy/kubernetes``.

Envoy Gateway translates its objects, Istio merges an EnvoyFilter into what it makes of a Service;
here the test does, for two listeners of one Envoy. Sources: envoyproxy/gateway 1.9,
``internal/xds/translator/extproc.go`` and ``cluster.go``; Istio's reference of EnvoyFilter.
"""

from __future__ import annotations

import copy
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import yaml

from support.existing_envoy import GENERATE, POSTS, TURN, ExistingEnvoy, converse, example
from support.replicas import PATIENT, Replica
from support.traffic import eventually
from tidegate.stack.assets import ExtraMissingError
from tidegate.stack.envoy import envoy_binary

try:
    envoy_binary()
except ExtraMissingError as missing:
    pytest.skip(str(missing), allow_module_level=True)

MANIFESTS = Path(__file__).parents[2] / "deploy/kubernetes"
ISTIO_PORT = 10081
SPOOF = {"x-gateway-destination-endpoint": "127.0.0.1:1"}
EXTENSIONS = "type.googleapis.com/envoy.extensions"
MODES = {"Buffered": "BUFFERED", "BufferedPartial": "BUFFERED_PARTIAL", "Streamed": "STREAMED"}


def one(file, kind):
    """Return the ``spec`` of the only object of a kind in a manifest."""
    objects = yaml.safe_load_all((MANIFESTS / file).read_text())
    (found,) = (each for each in objects if each and each["kind"] == kind)
    return found["spec"]


def policy(name, **more):
    """Return a load balancing policy in Envoy's form."""
    kind = "".join(part.capitalize() for part in name.split("_"))
    config = {"@type": f"{EXTENSIONS}.load_balancing_policies.{name}.v3.{kind}", **more}
    name = f"envoy.load_balancing_policies.{name}"
    return {"policies": [{"typed_extension_config": {"name": name, "typed_config": config}}]}


def of_envoy_gateway(manager, cluster):
    """Write into a listener and its cluster what Envoy Gateway makes of its objects."""
    (asked,) = one("envoy-gateway.yaml", "EnvoyExtensionPolicy")["extProc"]
    mode, spaces = asked["processingMode"], asked["metadata"]
    manager["http_filters"][0]["typed_config"] = {
        "@type": f"{EXTENSIONS}.filters.http.ext_proc.v3.ExternalProcessor",
        "grpc_service": {"envoy_grpc": {"cluster_name": "tidegate-picker"}},
        "failure_mode_allow": asked["failOpen"],
        "message_timeout": PATIENT if asked["messageTimeout"] == "1s" else asked["messageTimeout"],
        "allow_mode_override": mode["allowModeOverride"],
        "processing_mode": {
            "request_header_mode": "SEND",
            "request_body_mode": MODES[mode["request"]["body"]],
            "response_header_mode": "SEND" if "response" in mode else "SKIP",
            "request_trailer_mode": "SKIP",
            "response_trailer_mode": "SKIP",
        },
        "response_attributes": mode["response"]["attributes"],
        "metadata_options": {
            "forwarding_namespaces": {"untyped": spaces["accessibleNamespaces"]},
            "receiving_namespaces": {"untyped": spaces["writableNamespaces"]},
        },
    }
    headers = one("envoy-gateway.yaml", "ClientTrafficPolicy")["headers"]["earlyRequestHeaders"]
    (early,) = manager["early_header_mutation_extensions"]
    early["typed_config"]["mutations"] = [{"remove": each} for each in headers["remove"]]
    traffic = one("envoy-gateway.yaml", "BackendTrafficPolicy")
    balancer = traffic["loadBalancer"]
    assert balancer["type"] == "LeastRequest"
    cluster["load_balancing_policy"] = policy(
        "override_host",
        override_host_sources=balancer["endpointOverride"]["extractFrom"],
        fallback_policy=policy("least_request"),
    )
    (route,) = manager["route_config"]["virtual_hosts"][0]["routes"]
    retry = traffic["retry"]
    route["route"]["retry_policy"] = {
        "retry_on": ",".join(retry["retryOn"]["triggers"]),
        "num_retries": retry["numRetries"],
    }


def of_istio(manager, cluster):
    """Write into a listener and its cluster what the EnvoyFilter adds in Istio."""
    patches = {
        each["applyTo"]: each["patch"] for each in one("istio.yaml", "EnvoyFilter")["configPatches"]
    }
    assert patches["HTTP_FILTER"]["operation"] == "INSERT_BEFORE"
    added = copy.deepcopy(patches["HTTP_FILTER"]["value"])
    added["typed_config"]["grpc_service"]["envoy_grpc"]["cluster_name"] = "tidegate-picker"
    added["typed_config"]["message_timeout"] = PATIENT
    manager["http_filters"][0] = added
    del manager["early_header_mutation_extensions"]
    assert patches["CLUSTER"]["operation"] == "MERGE"
    cluster |= patches["CLUSTER"]["value"]


def manager_of(listener):
    """Return a listener's connection manager."""
    return listener["filter_chains"][0]["filters"][0]["typed_config"]


def configuration():
    """Return an Envoy with a listener of each gateway, and no access log to the picker."""
    document = yaml.safe_load(example("override-host.yaml"))
    resources = document["static_resources"]
    first, cluster = resources["listeners"][0], resources["clusters"][0]
    manager = manager_of(first)
    del manager["access_log"]
    second, beside = copy.deepcopy(first), copy.deepcopy(cluster)
    second["name"] = beside["name"] = beside["load_assignment"]["cluster_name"] = "istio"
    second["address"]["socket_address"]["port_value"] = ISTIO_PORT
    routes = manager_of(second)["route_config"]["virtual_hosts"][0]["routes"]
    routes[0]["route"]["cluster"] = "istio"
    of_envoy_gateway(manager, cluster)
    of_istio(manager_of(second), beside)
    resources["listeners"].append(second)
    resources["clusters"].append(beside)
    return yaml.safe_dump(document, sort_keys=False)


@pytest.fixture(scope="module")
async def envoy():
    """Run the Envoy with a picker over three replicas."""
    async with AsyncExitStack() as exit_:
        replicas = [await exit_.enter_async_context(Replica(f"r{n}").serve()) for n in (1, 2, 3)]
        places = [each.address for each in replicas]
        yield await exit_.enter_async_context(
            ExistingEnvoy(configuration(), places, more=(ISTIO_PORT,))
        )


@pytest.fixture(params=["envoy-gateway", "istio"])
def address(envoy, request):
    """Return the clients' address of a gateway."""
    return envoy.address if request.param == "envoy-gateway" else envoy.places[ISTIO_PORT]


async def test_every_request_gets_a_pick(envoy, address):
    """Prompts find their caches; a client's own destination changes nothing."""
    picks = await envoy.picks()
    name = "tidegate_picker_prompt_blocks_total"
    matched = await envoy.counted(name, part="matched")

    async def post(path, body):
        status, _ = await envoy.post(path, body, SPOOF, address)
        return status

    assert await converse(post) == [200] * POSTS
    assert await envoy.picks() - picks == POSTS
    assert await envoy.counted(name, part="matched") > matched
    assert await envoy.counted("tidegate_picker_passes_total") == 0


async def test_a_refusal_reaches_the_client(envoy, address):
    """In the caller's dialect, with its reason."""
    body = {"model": "none", "messages": []}
    status, headers = await envoy.post("/v1/chat/completions", body, None, address)
    assert (status, headers["x-tidegate-reason"]) == (404, "unknown-model")


async def test_without_a_picker_requests_go_on(envoy):
    """The gateway balances by itself; a client cannot choose then either. The picker comes back."""
    addresses = (envoy.address, envoy.places[ISTIO_PORT])
    await envoy.kill_picker()
    for address in addresses:
        status, _ = await envoy.post(GENERATE, {"text_input": TURN}, SPOOF, address)
        assert status == 200
    await envoy.start_picker()
    for address in addresses:

        async def picked(address=address):
            before = await envoy.picks()
            status, _ = await envoy.post(GENERATE, {"text_input": "x"}, None, address)
            return status == 200 and await envoy.picks() > before

        assert await eventually(picked)
