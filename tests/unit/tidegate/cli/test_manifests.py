"""Consistency of the Kubernetes manifests with the product.

Whether an API server takes them is held by ``tests/kubernetes``.
"""

from __future__ import annotations

import copy
import functools
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from envoy.extensions.filters.http.ext_proc.v3.ext_proc_pb2 import ExternalProcessor
from envoy.extensions.load_balancing_policies.least_request.v3 import least_request_pb2
from envoy.extensions.load_balancing_policies.override_host.v3.override_host_pb2 import (
    OverrideHost,
)
from google.protobuf import json_format

from tidegate.cli.main import VERBS
from tidegate.stack.certificates import CA, CERTIFICATE, KEY, MACHINES
from tidegate.stack.envoy import envoy_command
from tidegate_api.names import (
    DESTINATION_HEADER,
    DESTINATION_SERVED_KEY,
    LB_NAMESPACE,
    SUBSET_KEY,
    TIDEGATE_NAMESPACE,
)
from tidegate_common.tls.pages import SAFE_TO_STOP_PATH
from xds_server.admin.pages import MAX_TIMEOUT_S
from xds_server.fleet.load import load_text
from xds_server.fleet.model.discovery import MembershipSpec
from xds_server.fleet.model.kubernetes import KubernetesSpec

ROOT = Path(__file__).resolve().parents[4]
FOLDER = ROOT / "deploy/kubernetes"
CHART = ROOT / "deploy/chart"
FILES = sorted(path.name for path in FOLDER.glob("*.yaml"))
OPTIONS = "".join((ROOT / "docs/reference" / page).read_text() for page in ("cli.md", "cli-run.md"))
assert least_request_pb2 is not None  # registers the type that the policy names


@functools.cache
def _text(name: str) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all((FOLDER / name).read_text()) if each]


def objects(name: str) -> list[dict[str, Any]]:
    """Return a file's objects."""
    return copy.deepcopy(_text(name))


def one(name: str, kind: str, called: str | None = None) -> dict[str, Any]:
    """Return the only object of a kind, and of a name if one is given, in a file."""
    (found,) = (
        each
        for each in objects(name)
        if each["kind"] == kind and called in {None, each["metadata"]["name"]}
    )
    return found


def workloads(name: str) -> list[dict[str, Any]]:
    """Return what a file has that runs pods."""
    return [each for each in objects(name) if each["kind"] in {"Deployment", "StatefulSet"}]


def pod_of(name: str, called: str) -> dict[str, Any]:
    """Return a workload's pod."""
    (found,) = (each for each in workloads(name) if each["metadata"]["name"] == called)
    spec: dict[str, Any] = found["spec"]["template"]["spec"]
    return spec


def inside(pod: dict[str, Any]) -> list[dict[str, Any]]:
    """Return all containers of a pod."""
    return [*pod.get("initContainers", ()), *pod["containers"]]


def container(name: str, called: str, of: str) -> dict[str, Any]:
    """Return a container of a workload."""
    (found,) = (each for each in inside(pod_of(name, called)) if each["name"] == of)
    return found


def our_fleet() -> dict[str, Any]:
    """Return the fleet of the edge form, with an address in place of the picker's Service."""
    text = one("edge.yaml", "ConfigMap")["data"]["fleet.yaml"]
    fleet: dict[str, Any] = yaml.safe_load(text.replace("@PICKER@", "10.96.0.10"))
    return fleet


def commands() -> list[tuple[str, list[str]]]:
    """Return the arguments of all our containers."""
    return [
        (f"{name}-{each['name']}", each["args"])
        for name in FILES
        for made in workloads(name)
        for each in inside(made["spec"]["template"]["spec"])
        if each["image"] == "tidegate:local" and each.get("args") and each["name"] != "fleet"
    ]


@pytest.mark.parametrize("args", [pytest.param(args, id=name) for name, args in commands()])
def test_containers_run_known_verbs_with_known_options(args: list[str]) -> None:
    """A container that does not start is a gateway that does not."""
    words = " ".join(args).removeprefix("tidegate ").split()
    assert words[0] in {verb.name for verb in VERBS}
    for option in re.findall(r"--[a-z-]+", " ".join(words)):
        assert f"`{option}`" in OPTIONS, option


def test_hooks_run_known_verbs_with_known_options() -> None:
    """What fails leaves a pod that is killed with its answers."""
    (hook,) = (
        each["lifecycle"]["preStop"]["exec"]["command"]
        for each in inside(pod_of("edge.yaml", "tidegate-edge"))
        if "lifecycle" in each
    )
    assert hook[:2] == ["tidegate", "envoy-stop"]
    for option in hook[2:]:
        assert f"`{option.partition('=')[0]}`" in OPTIONS, option


@pytest.mark.parametrize("name", ["edge.yaml", "picker-only.yaml"])
def test_the_role_allows_what_is_asked_and_no_more(name: str) -> None:
    """Slices of one namespace, to read; and no other pod has a token."""
    assert one(name, "Role")["rules"] == [
        {
            "apiGroups": ["discovery.k8s.io"],
            "resources": ["endpointslices"],
            "verbs": ["list", "watch"],
        }
    ]
    account = one(name, "ServiceAccount")["metadata"]
    subject = {"kind": "ServiceAccount", "name": account["name"], "namespace": account["namespace"]}
    assert one(name, "RoleBinding")["subjects"] == [subject]
    for made in workloads(name):
        pod, control = (
            made["spec"]["template"]["spec"],
            made["metadata"]["name"].endswith("control"),
        )
        assert pod["automountServiceAccountToken"] == control
        assert pod.get("serviceAccountName") == (account["name"] if control else None)


def test_the_fleet_selects_the_example_s_service() -> None:
    """Labels and port names are those of triton.yaml, in a namespace that the Role is for."""
    fleet = our_fleet()
    spec = KubernetesSpec.model_validate(fleet["pools"][0]["endpoints_from"][0]["kubernetes"])
    service = one("triton.yaml", "Service")
    assert spec.namespace == service["metadata"]["namespace"]
    assert spec.selector.items() <= service["metadata"]["labels"].items()
    assert {spec.labels.variant, spec.labels.device} <= set(service["metadata"]["labels"])
    names = {port["name"] for port in service["spec"]["ports"]}
    assert spec.ports is not None
    assert {spec.ports.http, spec.ports.grpc} == names
    assert one("edge.yaml", "Role")["metadata"]["namespace"] == spec.namespace


def test_the_fleets_are_ones_that_the_control_server_takes() -> None:
    """As a whole, with all rules; its replicas are found."""
    for text in (
        yaml.safe_dump(our_fleet()),
        one("picker-only.yaml", "ConfigMap")["data"]["fleet.yaml"],
    ):
        fleet = load_text(text, "fleet.yaml")
        assert [pool.name for pool in fleet.pools if pool.finds] == ["llm"]


def secrets(name: str, called: str, of: str) -> dict[str, str]:
    """Return the Secrets that a container mounts, by place."""
    volumes = pod_of(name, called)["volumes"]
    by_name = {each["name"]: each["secret"]["secretName"] for each in volumes if "secret" in each}
    mounted = container(name, called, of).get("volumeMounts", ())
    return {each["mountPath"]: by_name[each["name"]] for each in mounted if each["name"] in by_name}


IDENTITIES = {
    ("edge.yaml", "tidegate-control", "control"): {
        "/certs": "tidegate-control",
        "/operator": "tidegate-admin",
    },
    ("edge.yaml", "tidegate-edge", "envoy"): {"/certs": "tidegate-envoy"},
    ("edge.yaml", "tidegate-edge", "questions"): {"/certs": "tidegate-gateway"},
    ("edge.yaml", "tidegate-picker", "picker"): {"/certs": "tidegate-picker"},
    ("picker-only.yaml", "tidegate-control", "control"): {
        "/certs": "tidegate-control",
        "/operator": "tidegate-admin",
    },
    ("picker-only.yaml", "tidegate-picker", "picker"): {"/certs": "tidegate-picker"},
    ("triton.yaml", "tidegate-triton-stable", "triton"): {"/hook": "tidegate-reporter"},
    ("vllm.yaml", "tidegate-vllm", "vllm"): {"/hook": "tidegate-reporter"},
}
"""The Secrets of each container, by place."""


def test_a_container_mounts_its_own_certificate_only() -> None:
    """What runs commands in one container cannot act as another service."""
    found = {
        key: secrets(*key)
        for name in FILES
        for made in workloads(name)
        for each in inside(made["spec"]["template"]["spec"])
        for key in [(name, made["metadata"]["name"], each["name"])]
    }
    assert {key: mounted for key, mounted in found.items() if mounted} == IDENTITIES


def test_every_file_of_a_certificate_is_mounted() -> None:
    """As a key of its Secret, which has those of a folder that `tidegate certs` makes."""
    fleet = our_fleet()
    for (name, called, of), mounted in IDENTITIES.items():
        found = container(name, called, of)
        values = [*found["args"], *(str(each.get("value")) for each in found.get("env", ()))]
        values += found.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", ())
        if of == "envoy":
            tls = [*fleet["pickers"]["tls"].values(), *fleet["gateway"]["tls"].values()]
            values += [value for value in tls if "/" in value]
        named = {
            path for value in values for path in re.findall(r"(?:/[a-z.-]+)+\.(?:crt|key)", value)
        }
        places = {place for place in mounted if any(p.startswith(f"{place}/") for p in named)}
        assert places == set(mounted), of
        allowed = {f"{place}/{file}" for place in mounted for file in (CA, CERTIFICATE, KEY)}
        assert named <= allowed


def test_the_bootstrap_names_files_of_envoy_s_container() -> None:
    """It is written by another container."""
    bootstrap = container("edge.yaml", "tidegate-edge", "bootstrap")
    named = {each["value"] for each in bootstrap["env"] if each["name"].startswith("TIDEGATE_TLS")}
    assert named == {f"/certs/{file}" for file in (CA, CERTIFICATE, KEY)}
    assert "--secrets /bootstrap" in bootstrap["args"][0]


def test_nothing_listens_without_tls_but_health() -> None:
    """And no container runs as root, writes its root or gains rights."""
    for name in FILES:
        for made in workloads(name):
            pod = made["spec"]["template"]["spec"]
            assert pod["securityContext"]["runAsNonRoot"]
            assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
            for each in inside(pod):
                words = " ".join(each.get("args", ()))
                assert "--insecure" not in words
                ours = words.split()[:1] in (["xds"], ["picker"], ["gateway"])
                assert ("--health-port" in words) == ours
                assert each["securityContext"] == {
                    "allowPrivilegeEscalation": False,
                    "readOnlyRootFilesystem": True,
                    "capabilities": {"drop": ["ALL"]},
                }


def test_the_page_says_how_the_secrets_are_made() -> None:
    """All that the manifests name, from folders that `tidegate certs` makes."""
    page = (ROOT / "docs/how-to/kubernetes.md").read_text()
    (roles,) = re.findall(r"for role in ([a-z ]+); do", page)
    named = {secret for mounted in IDENTITIES.values() for secret in mounted.values()}
    assert named | {"tidegate-viewer"} == {f"tidegate-{role}" for role in roles.split()}
    assert set(roles.split()) <= set(MACHINES)
    assert "--host tidegate-control.infer" in page
    assert "--picker tidegate-picker-0" in page
    service = one("edge.yaml", "Service", "tidegate-control")["metadata"]
    assert f"{service['name']}.{service['namespace']}" == "tidegate-control.infer"


def test_a_picker_s_certificate_names_its_id() -> None:
    """The pod's name, which a StatefulSet keeps; the control server believes no other."""
    assert "--id=$(POD)" in container("edge.yaml", "tidegate-picker", "picker")["args"]
    text = (CHART / "templates/certificates.yaml").read_text()
    assert "spiffe://tidegate/picker/{{ $picker }}-0" in text


def test_gateways_verify_the_picker() -> None:
    """By a name that its certificate has."""
    tls = one("istio.yaml", "DestinationRule")["spec"]
    service = one("picker-only.yaml", "Service", "tidegate-picker")["metadata"]["name"]
    assert tls["host"] == f"{service}.infer.svc.cluster.local"
    assert tls["trafficPolicy"]["tls"]["subjectAltNames"] == ["picker.tidegate"]
    policy = one("envoy-gateway.yaml", "BackendTLSPolicy")["spec"]
    assert [each["name"] for each in policy["targetRefs"]] == [service]
    assert policy["validation"]["hostname"] == "picker.tidegate"


def test_a_picker_for_other_gateways_refuses_what_it_cannot_place() -> None:
    """Also while it knows no fleet; and it has one port, as a gateway asks one address."""
    args = container("picker-only.yaml", "tidegate-picker", "picker")["args"]
    assert {"--require-pick", "--tls-client=optional", "--workers=1"} <= set(args)
    ports = one("picker-only.yaml", "Service", "tidegate-picker")["spec"]["ports"]
    assert [each["port"] for each in ports] == [18001]


def test_envoys_ask_each_worker_of_the_picker() -> None:
    """At a port of its Service; each worker knows the address by which it is asked."""
    args = container("edge.yaml", "tidegate-picker", "picker")["args"]
    ports = [
        each["port"] for each in one("edge.yaml", "Service", "tidegate-picker")["spec"]["ports"]
    ]
    assert our_fleet()["pickers"]["addresses"] == [f"10.96.0.10:{port}" for port in ports]
    assert f"--workers={len(ports)}" in args
    assert "--advertise=$(TIDEGATE_PICKER_SERVICE_HOST):18001" in args


def test_the_admin_port_is_not_on_the_network() -> None:
    """Operators run commands in the pod, with the identity in its Secret; hooks ask the pages."""
    control = container("edge.yaml", "tidegate-control", "control")
    assert "--admin=127.0.0.1:18010" in control["args"]
    ports = one("edge.yaml", "Service", "tidegate-control")["spec"]["ports"]
    assert [port["port"] for port in ports] == [18000, 18080]


@pytest.mark.parametrize("name", ["edge.yaml", "picker-only.yaml", "triton.yaml", "vllm.yaml"])
def test_services_probes_and_policies_name_ports_that_containers_have(name: str) -> None:
    """A Service without a port behind it answers nothing."""
    by_part: dict[str, set[Any]] = {}
    for made in workloads(name):
        part = made["spec"]["selector"]["matchLabels"]["app.kubernetes.io/component"]
        ports = [
            port
            for each in inside(made["spec"]["template"]["spec"])
            for port in each.get("ports", ())
        ]
        numbers = {port["containerPort"] for port in ports}
        assert len(numbers) == len(ports), "containers of a pod share their ports"
        by_part[part] = {port["name"] for port in ports} | numbers
        for each in inside(made["spec"]["template"]["spec"]):
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                asked = each.get(probe, {})
                at = asked.get("httpGet", asked.get("tcpSocket", {})).get("port", "")
                assert at == "" or at in by_part[part]
    for made in objects(name):
        if made["kind"] == "Service":
            part = made["spec"]["selector"]["app.kubernetes.io/component"]
            named = {port.get("targetPort", port["port"]) for port in made["spec"]["ports"]}
            assert named <= by_part[part]
        elif made["kind"] == "NetworkPolicy":
            part = made["spec"]["podSelector"]["matchLabels"].get("app.kubernetes.io/component")
            rules = made["spec"].get("ingress", ())
            assert {port["port"] for rule in rules for port in rule["ports"]} <= (
                by_part[part] if part else set()
            )


def test_envoys_find_the_gateway_beside_them() -> None:
    """On loopback, under the name in its certificate; those who change replicas stay in the pod."""
    fleet = our_fleet()
    args = container("edge.yaml", "tidegate-edge", "questions")["args"]
    given = dict(each.lstrip("-").split("=", 1) for each in args[1:])
    assert fleet["gateway"]["http"] == [given["http"]]
    assert fleet["gateway"]["grpc"] == [given["grpc"]]
    assert fleet["gateway"]["tls"]["server_name"] == "gateway.tidegate"
    places = [given[each].rpartition(":")[0] for each in ("http", "grpc", "admin", "admin-grpc")]
    assert places == ["127.0.0.1"] * 4


def test_an_envoy_stops_after_the_hook_and_within_the_pod_s_time() -> None:
    """Sidecars are told to stop when the one container has ended, which nothing else ends."""
    pod = pod_of("edge.yaml", "tidegate-edge")
    (stop,) = pod["containers"]
    assert not {"livenessProbe", "readinessProbe", "startupProbe"} & set(stop)
    sidecars = [each["name"] for each in pod["initContainers"] if "restartPolicy" in each]
    assert sidecars == ["envoy", "questions"]
    (waits,) = (
        int(each.removeprefix("--timeout="))
        for each in stop["lifecycle"]["preStop"]["exec"]["command"]
        if each.startswith("--timeout=")
    )
    assert waits + 30 <= pod["terminationGracePeriodSeconds"]


def test_the_hook_asks_the_admin_page_of_the_bootstrap() -> None:
    """Which is on the pod's loopback."""
    (stop,) = pod_of("edge.yaml", "tidegate-edge")["containers"]
    words = stop["lifecycle"]["preStop"]["exec"]["command"]
    (admin,) = (each.partition("=")[2] for each in words if each.startswith("--admin="))
    assert f"--admin {admin} " in container("edge.yaml", "tidegate-edge", "bootstrap")["args"][0]


def test_an_envoy_cuts_no_stream_after_a_change_of_its_listener() -> None:
    """Its flags are those of an Envoy that `tidegate up` starts."""
    args = container("edge.yaml", "tidegate-edge", "envoy")["args"]
    started = envoy_command(Path("envoy"), Path("envoy.yaml"))
    for option in ("--drain-time-s", "--drain-strategy"):
        # A word of its own: Envoy takes no `--option=value`.
        assert args[args.index(option) + 1] == started[started.index(option) + 1]


def test_a_picker_is_given_the_time_that_it_drains() -> None:
    """The kubelet kills it at the end of the grace period."""
    for name in ("edge.yaml", "picker-only.yaml"):
        args = container(name, "tidegate-picker", "picker")["args"]
        (drain,) = (int(each.partition("=")[2]) for each in args if each.startswith("--drain="))
        assert drain < pod_of(name, "tidegate-picker")["terminationGracePeriodSeconds"]


REPLICAS = (("triton.yaml", "tidegate-triton-stable"), ("vllm.yaml", "tidegate-vllm"))


@pytest.mark.parametrize(("name", "called"), REPLICAS)
def test_a_pod_is_given_the_time_that_its_hook_waits(name: str, called: str) -> None:
    """The kubelet kills it at the end of the grace period, whatever it still does."""
    pod = pod_of(name, called)
    (engine,) = pod["containers"]
    command = " ".join(engine["lifecycle"]["preStop"]["exec"]["command"])
    waits, most, tries = (
        int(re.search(pattern, command)[1])  # type: ignore[index] # it is there, or this fails
        for pattern in (r"timeout=(\d+)\b", r"--max-time (\d+)", r"--retry-max-time (\d+)")
    )
    assert waits < most <= MAX_TIMEOUT_S
    assert tries + most + 30 <= pod["terminationGracePeriodSeconds"]
    drain = MembershipSpec().drain
    assert waits >= drain, "the pool's drain ends before the hook does"


@pytest.mark.parametrize(("name", "called"), REPLICAS)
def test_the_hook_asks_the_control_server_s_service(name: str, called: str) -> None:
    """By a name in its certificate, at a port of the Service, about the pod's own address."""
    (engine,) = pod_of(name, called)["containers"]
    command = " ".join(engine["lifecycle"]["preStop"]["exec"]["command"])
    service = one("edge.yaml", "Service", "tidegate-control")
    at = f"{service['metadata']['name']}.{service['metadata']['namespace']}"
    ports = {port["port"] for port in service["spec"]["ports"]}
    (asked,) = re.findall(rf"https://{at}:(\d+){SAFE_TO_STOP_PATH}\?endpoint=\$(\w+)&", command)
    assert int(asked[0]) in ports
    (address,) = (each for each in engine["env"] if each["name"] == asked[1])
    assert address["valueFrom"]["fieldRef"]["fieldPath"] == "status.podIP"


@pytest.mark.parametrize(("name", "called"), REPLICAS)
def test_an_engine_has_time_to_start_and_is_ready_only_then(name: str, called: str) -> None:
    """A model that loads for long is no dead container."""
    (engine,) = pod_of(name, called)["containers"]
    assert {"startupProbe", "readinessProbe", "livenessProbe"} <= set(engine)
    start = engine["startupProbe"]
    assert start["periodSeconds"] * start["failureThreshold"] >= 1800


def patch_of(kind: str) -> dict[str, Any]:
    """Return the patch of the Istio example that applies to this."""
    patches = one("istio.yaml", "EnvoyFilter")["spec"]["configPatches"]
    found: dict[str, Any]
    (found,) = (each["patch"]["value"] for each in patches if each["applyTo"] == kind)
    return found


def test_istio_s_filter_is_one_that_envoy_knows() -> None:
    """The API server does not look into an EnvoyFilter; an unknown field fails here."""
    settings = dict(patch_of("HTTP_FILTER")["typed_config"])
    assert settings.pop("@type").rpartition("/")[2] == ExternalProcessor.DESCRIPTOR.full_name
    read = json_format.ParseDict(settings, ExternalProcessor())
    assert set(read.metadata_options.receiving_namespaces.untyped) == {
        LB_NAMESPACE,
        TIDEGATE_NAMESPACE,
    }
    cluster = read.grpc_service.envoy_grpc.cluster_name
    service = one("picker-only.yaml", "Service", "tidegate-picker")
    port, name = service["spec"]["ports"][0]["port"], service["metadata"]["name"]
    assert cluster == f"outbound|{port}||{name}.infer.svc.cluster.local"


def test_istio_s_balancing_reads_the_pick() -> None:
    """From the metadata, which clients cannot send; what served is told back."""
    (policy,) = patch_of("CLUSTER")["load_balancing_policy"]["policies"]
    settings = dict(policy["typed_extension_config"]["typed_config"])
    assert settings.pop("@type").rpartition("/")[2] == OverrideHost.DESCRIPTOR.full_name
    # xds-protos has no `selected_host_key`; Envoy has had it since 1.38.
    served = settings.pop("selected_host_key")
    assert served == {"key": LB_NAMESPACE, "path": [{"key": DESTINATION_SERVED_KEY}]}
    read = json_format.ParseDict(settings, OverrideHost())
    (source,) = read.override_host_sources
    assert (source.metadata.key, source.metadata.path[0].key) == (LB_NAMESPACE, DESTINATION_HEADER)


def test_envoy_gateway_reads_the_pick_and_strips_clients_own() -> None:
    """Its override reads the header, which is removed from what clients send."""
    policy = one("envoy-gateway.yaml", "BackendTrafficPolicy")["spec"]["loadBalancer"]
    assert policy["endpointOverride"]["extractFrom"] == [{"header": DESTINATION_HEADER}]
    early = one("envoy-gateway.yaml", "ClientTrafficPolicy")["spec"]["headers"]
    assert set(early["earlyRequestHeaders"]["remove"]) == {DESTINATION_HEADER, SUBSET_KEY}
