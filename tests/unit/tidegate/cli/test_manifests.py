"""Consistency of the Kubernetes manifests with the product.

Whether an API server takes them is held by ``tests/kubernetes``.
"""

from __future__ import annotations

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

from ext_proc.settings import PickerSettings
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
FILES = sorted(path.name for path in FOLDER.glob("*.yaml"))
OPTIONS = "".join((ROOT / "docs/reference" / page).read_text() for page in ("cli.md", "cli-run.md"))
assert least_request_pb2 is not None  # registers the type that the policy names


def objects(name: str) -> list[dict[str, Any]]:
    """Return a file's objects."""
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


def one(name: str, kind: str) -> dict[str, Any]:
    """Return the only object of a kind in a file."""
    (found,) = (each for each in objects(name) if each["kind"] == kind)
    return found


def containers(name: str) -> list[dict[str, Any]]:
    """Return all containers of a file's Deployments."""
    pods = [
        each["spec"]["template"]["spec"] for each in objects(name) if each["kind"] == "Deployment"
    ]
    return [each for pod in pods for each in (*pod.get("initContainers", ()), *pod["containers"])]


def commands() -> list[tuple[str, list[str]]]:
    """Return the arguments of all our containers."""
    return [
        (f"{name}-{each['name']}", each["args"])
        for name in FILES
        for each in containers(name)
        if each["image"] == "tidegate:local"
    ]


@pytest.mark.parametrize("args", [pytest.param(args, id=name) for name, args in commands()])
def test_containers_run_known_verbs_with_known_options(args: list[str]) -> None:
    """A container that does not start is a gateway that does not."""
    words = " ".join(args).removeprefix("tidegate ").split()
    assert words[0] in {verb.name for verb in VERBS}
    for option in re.findall(r"--[a-z-]+", " ".join(words)):
        assert f"`{option}`" in OPTIONS, option


def test_the_role_allows_what_is_asked_and_no_more() -> None:
    """Slices of one namespace, to read."""
    assert one("control-server.yaml", "Role")["rules"] == [
        {
            "apiGroups": ["discovery.k8s.io"],
            "resources": ["endpointslices"],
            "verbs": ["list", "watch"],
        }
    ]
    binding = one("control-server.yaml", "RoleBinding")
    account = one("control-server.yaml", "ServiceAccount")["metadata"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", **account}]
    pod = one("control-server.yaml", "Deployment")["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == account["name"]


def test_the_fleet_selects_the_example_s_service() -> None:
    """Labels and port names are those of triton.yaml, in a namespace that the Role is for."""
    fleet = yaml.safe_load(one("control-server.yaml", "ConfigMap")["data"]["fleet.yaml"])
    spec = KubernetesSpec.model_validate(fleet["pools"][0]["endpoints_from"][0]["kubernetes"])
    service = one("triton.yaml", "Service")
    assert spec.namespace == service["metadata"]["namespace"]
    assert spec.selector.items() <= service["metadata"]["labels"].items()
    assert {spec.labels.variant, spec.labels.device} <= set(service["metadata"]["labels"])
    names = {port["name"] for port in service["spec"]["ports"]}
    assert {spec.ports.http, spec.ports.grpc} == names
    assert one("control-server.yaml", "Role")["metadata"]["namespace"] == spec.namespace


def test_the_fleet_is_one_that_the_control_server_takes() -> None:
    """As a whole, with all rules; its replicas are found."""
    text = one("control-server.yaml", "ConfigMap")["data"]["fleet.yaml"]
    fleet = load_text(text, "fleet.yaml")
    assert [pool.name for pool in fleet.pools if pool.finds] == ["llm"]


def secrets(name: str, container: str) -> dict[str, str]:
    """Return the Secrets that a container mounts, by place."""
    deployment = one(name, "Deployment")["spec"]["template"]["spec"]
    of = {
        each["name"]: each["secret"]["secretName"]
        for each in deployment["volumes"]
        if "secret" in each
    }
    (found,) = (each for each in containers(name) if each["name"] == container)
    mounted = found.get("volumeMounts", ())
    return {each["mountPath"]: of[each["name"]] for each in mounted if each["name"] in of}


IDENTITIES = {
    ("control-server.yaml", "control"): {
        "/certs": "tidegate-control",
        "/operator": "tidegate-admin",
    },
    ("gateway.yaml", "envoy"): {"/certs": "tidegate-envoy"},
    ("gateway.yaml", "picker"): {"/certs": "tidegate-picker"},
    ("gateway.yaml", "questions"): {"/certs": "tidegate-gateway"},
    ("picker.yaml", "picker"): {"/certs": "tidegate-picker"},
    ("triton.yaml", "triton"): {"/hook": "tidegate-reporter"},
}
"""The Secrets of each container, by place."""


def test_a_container_mounts_its_own_certificate_only() -> None:
    """What runs commands in one container cannot act as another service."""
    found = {
        (name, each["name"]): secrets(name, each["name"])
        for name in ("control-server.yaml", "gateway.yaml", "picker.yaml", "triton.yaml")
        for each in containers(name)
    }
    assert {key: mounted for key, mounted in found.items() if mounted} == IDENTITIES


def test_every_file_of_a_certificate_is_mounted() -> None:
    """As a key of its Secret, which has those of a folder that `tidegate certs` makes."""
    fleet = yaml.safe_load(one("control-server.yaml", "ConfigMap")["data"]["fleet.yaml"])
    for (name, container), mounted in IDENTITIES.items():
        (found,) = (each for each in containers(name) if each["name"] == container)
        values = [*found["args"], *(str(each.get("value")) for each in found.get("env", ()))]
        values += found.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", ())
        if container == "envoy":
            tls = [*fleet["pickers"]["tls"].values(), *fleet["gateway"]["tls"].values()]
            values += [value for value in tls if "/" in value]
        named = {
            path for value in values for path in re.findall(r"(?:/[a-z.-]+)+\.(?:crt|key)", value)
        }
        places = {place for place in mounted if any(p.startswith(f"{place}/") for p in named)}
        assert places == set(mounted), container
        allowed = {f"{place}/{file}" for place in mounted for file in (CA, CERTIFICATE, KEY)}
        assert named <= allowed


def test_the_bootstrap_names_files_of_envoy_s_container() -> None:
    """It is written by another container."""
    bootstrap = next(each for each in containers("gateway.yaml") if each["name"] == "bootstrap")
    named = {each["value"] for each in bootstrap["env"] if each["name"].startswith("TIDEGATE_TLS")}
    assert named == {f"/certs/{file}" for file in (CA, CERTIFICATE, KEY)}
    assert "--secrets /bootstrap" in bootstrap["args"][0]


def test_nothing_listens_without_tls_but_health() -> None:
    """And no container runs as root, writes its root or gains rights."""
    for name in ("control-server.yaml", "gateway.yaml", "picker.yaml"):
        assert one(name, "Deployment")["spec"]["template"]["spec"]["securityContext"][
            "runAsNonRoot"
        ]
        for each in containers(name):
            words = " ".join(each["args"])
            assert "--insecure" not in words
            assert ("--health-port" in words) == (words.split()[0] in {"xds", "picker", "gateway"})
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
    assert named == {f"tidegate-{role}" for role in roles.split()}
    assert set(roles.split()) <= set(MACHINES)
    assert "--host tidegate-control.infer" in page
    service = one("control-server.yaml", "Service")["metadata"]
    assert f"{service['name']}.{service['namespace']}" == "tidegate-control.infer"


def test_gateways_verify_the_picker() -> None:
    """By a name that its certificate has."""
    tls = one("istio.yaml", "DestinationRule")["spec"]
    service = one("picker.yaml", "Service")["metadata"]["name"]
    assert tls["host"] == f"{service}.infer.svc.cluster.local"
    assert tls["trafficPolicy"]["tls"]["subjectAltNames"] == ["picker.tidegate"]
    policy = one("envoy-gateway.yaml", "BackendTLSPolicy")["spec"]
    assert [each["name"] for each in policy["targetRefs"]] == [service]
    assert policy["validation"]["hostname"] == "picker.tidegate"


def test_the_admin_port_is_not_on_the_network() -> None:
    """Operators run commands in the pod, with the identity in its Secret; hooks ask the pages."""
    (control,) = containers("control-server.yaml")
    assert "--admin=127.0.0.1:18010" in control["args"]
    ports = one("control-server.yaml", "Service")["spec"]["ports"]
    assert [port["port"] for port in ports] == [18000, 18080]


@pytest.mark.parametrize("name", ["control-server.yaml", "gateway.yaml", "picker.yaml"])
def test_services_and_probes_name_ports_that_containers_have(name: str) -> None:
    """A Service without a port behind it answers nothing."""
    named = {port["name"] for each in containers(name) for port in each.get("ports", ())}
    for made in objects(name):
        if made["kind"] == "Service":
            assert {port["targetPort"] for port in made["spec"]["ports"]} <= named
    for each in containers(name):
        for probe in (each.get("readinessProbe", {}), each.get("livenessProbe", {})):
            at = probe.get("httpGet", probe.get("tcpSocket", {})).get("port", "")
            assert at == "" or at in named


def test_envoys_find_the_gateway_beside_them() -> None:
    """On loopback, under the name in its certificate; those who change replicas stay in the pod."""
    fleet = yaml.safe_load(one("control-server.yaml", "ConfigMap")["data"]["fleet.yaml"])
    (found,) = (each for each in containers("gateway.yaml") if each["name"] == "questions")
    given = dict(each.lstrip("-").split("=", 1) for each in found["args"][1:])
    assert fleet["gateway"]["http"] == [given["http"]]
    assert fleet["gateway"]["grpc"] == [given["grpc"]]
    assert fleet["gateway"]["tls"]["server_name"] == "gateway.tidegate"
    places = [given[each].rpartition(":")[0] for each in ("http", "grpc", "admin", "admin-grpc")]
    assert places == ["127.0.0.1"] * 4
    at = [each["args"] for each in containers("gateway.yaml")]
    ports = re.findall(r":(\d{4,5})\b|-port=(\d+)", " ".join(word for args in at for word in args))
    own = [one or other for one, other in ports if (one or other) != "18000"]
    assert len(own) == len(set(own)), "containers of a pod share their ports"


def test_a_pod_with_an_envoy_is_given_the_time_that_its_hooks_wait() -> None:
    """All its containers wait until Envoy is idle, and the picker's last streams end after it."""
    pod = one("gateway.yaml", "Deployment")["spec"]["template"]["spec"]
    hooks = {tuple(each["lifecycle"]["preStop"]["exec"]["command"]) for each in pod["containers"]}
    ((program, verb, *words),) = hooks
    assert (program, verb) == ("tidegate", "envoy-stop")
    given = dict(each.lstrip("-").split("=") for each in words)
    (bootstrap,) = (each["args"][0] for each in pod["initContainers"])
    assert f"--admin {given['admin']} " in bootstrap
    drain = PickerSettings.model_fields["drain"].default
    assert int(given["timeout"]) + drain < pod["terminationGracePeriodSeconds"]


def test_an_envoy_cuts_no_stream_after_a_change_of_its_listener() -> None:
    """Its flags are those of an Envoy that `tidegate up` starts."""
    (envoy,) = (each for each in containers("gateway.yaml") if each["name"] == "envoy")
    started = " ".join(envoy_command(Path("envoy"), Path("envoy.yaml")))
    for option in ("--drain-time-s", "--drain-strategy"):
        (given,) = (each for each in envoy["args"] if each.startswith(f"{option}="))
        assert given.replace("=", " ") in started


def test_a_pod_is_given_the_time_that_its_hook_waits() -> None:
    """The kubelet kills it at the end of the grace period, whatever it still does."""
    pod = one("triton.yaml", "Deployment")["spec"]["template"]["spec"]
    (triton,) = pod["containers"]
    command = " ".join(triton["lifecycle"]["preStop"]["exec"]["command"])
    waits, most, tries = (
        int(re.search(pattern, command)[1])  # type: ignore[index] # it is there, or this fails
        for pattern in (r"timeout=(\d+)\b", r"--max-time (\d+)", r"--retry-max-time (\d+)")
    )
    assert waits < most <= MAX_TIMEOUT_S
    assert tries + most + 30 <= pod["terminationGracePeriodSeconds"]
    drain = MembershipSpec().drain
    assert waits >= drain, "the pool's drain ends before the hook does"


def test_the_hook_asks_the_control_server_s_service() -> None:
    """By a name in its certificate, at a port of the Service, about the pod's own address."""
    (triton,) = one("triton.yaml", "Deployment")["spec"]["template"]["spec"]["containers"]
    command = " ".join(triton["lifecycle"]["preStop"]["exec"]["command"])
    service = one("control-server.yaml", "Service")
    at = f"{service['metadata']['name']}.{service['metadata']['namespace']}"
    ports = {port["port"] for port in service["spec"]["ports"]}
    (asked,) = re.findall(rf"https://{at}:(\d+){SAFE_TO_STOP_PATH}\?endpoint=\$(\w+)&", command)
    assert int(asked[0]) in ports
    (address,) = (each for each in triton["env"] if each["name"] == asked[1])
    assert address["valueFrom"]["fieldRef"]["fieldPath"] == "status.podIP"


def patch_of(kind: str) -> dict[str, Any]:
    """Return the patch of the Istio example that applies to this."""
    patches = one("istio.yaml", "EnvoyFilter")["spec"]["configPatches"]
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
    service = one("picker.yaml", "Service")
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
