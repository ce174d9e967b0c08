"""Consistency of the container files."""

from __future__ import annotations

import ipaddress
import re
import tomllib
from typing import Any

import pytest
import yaml

from support.containers import ROOT, compose, mounts
from tidegate.cli.main import VERBS
from tidegate.stack.certificates import MACHINES
from xds_server.fleet.load import load_text
from xds_server.fleet.model.fleet import Fleet

SERVICES: dict[str, dict[str, Any]] = compose()["services"]
ADDRESS = re.compile(r"\b10\.213\.\d+\.\d+\b")


def fleet() -> Fleet:
    """Return the fleet file of the containers."""
    path = ROOT / "deploy/docker/fleet.yaml"
    return load_text(path.read_text(), str(path))


def addresses(name: str) -> dict[str, str]:
    """Return a service's fixed addresses by network."""
    networks = SERVICES[name].get("networks", {})
    if not isinstance(networks, dict):
        return {}
    return {network: each["ipv4_address"] for network, each in networks.items()}


def networks(name: str) -> set[str]:
    """Return the networks that a service is in."""
    return set(SERVICES[name].get("networks", ()))


def words(name: str) -> str:
    """Return the command and the health check of a service."""
    service = SERVICES[name]
    return " ".join([*service["command"], *service.get("healthcheck", {}).get("test", ())])


def test_the_fleet_names_the_containers_addresses() -> None:
    """The fleet's pickers and endpoints are exactly the containers of pickers and replicas."""
    found = fleet()
    at = addresses("picker")["control"]
    assert [one.rpartition(":")[0] for one in found.pickers.addresses] == [at]
    assert found.gateway is not None
    given = [each.partition("=")[2] for each in SERVICES["gateway"]["command"][2:4]]
    assert [*found.gateway.http, *found.gateway.grpc] == given
    assert {each.rpartition(":")[0] for each in given} == {addresses("gateway")["control"]}
    assert found.gateway.tls is not None
    assert found.gateway.tls.server_name == "gateway.tidegate"
    hosts = {
        address.rpartition(":")[0]
        for pool in found.pools
        for endpoint in pool.endpoints
        for address in (endpoint.http, endpoint.grpc)
        if address
    }
    tritons = {name for name in SERVICES if name.startswith("triton-")}
    assert hosts == {addresses(name)["replicas"] for name in tritons}


def test_ports_are_published_on_loopback_only() -> None:
    """Published ports bind 127.0.0.1 only, and only the listener is published."""
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert published == {"envoy": ["127.0.0.1:10000:10000"]}
    assert fleet().listener.address == "0.0.0.0:10000"


def test_addresses_are_in_their_networks() -> None:
    """Each fixed address belongs to the subnet of its network, and to one service."""
    subnets = {
        name: ipaddress.ip_network(network["ipam"]["config"][0]["subnet"])
        for name, network in compose()["networks"].items()
    }
    found = [pair for name in SERVICES for pair in addresses(name).items()]
    assert all(ipaddress.ip_address(address) in subnets[network] for network, address in found)
    assert len({address for _, address in found}) == len(found)


def test_services_name_only_addresses_that_they_reach() -> None:
    """An address in a command or check is the service's own, or in a network that it is in."""
    where = {address: each for name in SERVICES for each, address in addresses(name).items()}
    for name in SERVICES:
        service = SERVICES["envoy" if name == "bootstrap" else name]
        named = ADDRESS.findall(f"{words(name)} {service.get('environment', '')}")
        assert {where[address] for address in named} <= set(service.get("networks", ())), name
    assert networks("picker") == networks("gateway") == {"control", "replicas"}
    assert networks("envoy") == {"edge", "control", "replicas"}


def test_only_clients_and_envoy_are_on_the_edge() -> None:
    """Replicas see neither operators nor the control server, and the edge sees Envoy only."""
    assert {name for name in SERVICES if "edge" in networks(name)} == {"envoy"}
    replicas = {name for name in SERVICES if name.startswith("triton-")}
    assert all(networks(name) == {"replicas"} for name in replicas)
    internal = {n for n, each in compose()["networks"].items() if each.get("internal")}
    assert internal == {"control", "replicas"}


@pytest.mark.parametrize("name", SERVICES)
def test_a_container_can_do_no_more_than_it_needs(name: str) -> None:
    """No capabilities, no new privileges, a root that cannot be written, and limits."""
    service = SERVICES[name]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["read_only"] is True
    assert "/tmp" in service["tmpfs"]  # noqa: S108 - of a container
    assert service["mem_limit"]
    assert service["pids_limit"]
    assert "privileged" not in service
    assert "cap_add" not in service
    assert "--insecure" not in words(name)
    one_shot = service["restart"] == "no"
    assert one_shot or service["healthcheck"]["test"][0] == "CMD"


def test_a_service_mounts_its_own_certificate_only() -> None:
    """The authority's key is where certificates are made, and nowhere else."""
    assert (
        mounts(SERVICES["certs"]).items()
        >= {
            "/authority": ("authority", False),
            **{
                f"/authority/{role}": (f"{role}-certs", False)
                for role in ("control", "picker", "gateway", "envoy", "admin")
            },
        }.items()
    )
    of = {"xds": "control", "picker": "picker", "envoy": "envoy", "bootstrap": "envoy"}
    of |= {"gateway": "gateway", "cli": "admin"}
    for name, service in SERVICES.items():
        found = {
            (target, source, read_only)
            for target, (source, read_only) in mounts(service).items()
            if source.endswith("-certs") or source == "authority"
        }
        if name in of:
            assert found == {("/certs", f"{of[name]}-certs", True)}
        else:
            assert name == "certs" or not found
    assert set(of.values()) <= set(MACHINES)


def test_what_is_mounted_in_turn_belongs_to_the_services_user() -> None:
    """A new volume takes the owner of the image's folder."""
    text = (ROOT / "deploy/docker/Dockerfile").read_text()
    made = re.sub(r"\\\n", " ", text).partition("install -d")[2].partition("\n")[0].split()
    places = {
        target
        for service in SERVICES.values()
        if service["image"] in {"tidegate:local", "tidegate-envoy:local"}
        for target, (source, _) in mounts(service).items()
        if not source.startswith(".")
    }
    assert places <= set(made)
    assert "useradd --system --uid 10001" in text
    assert SERVICES["envoy"]["user"].startswith("10001:")


def test_volumes_are_declared() -> None:
    """Each that is mounted, and no other."""
    used = {source for service in SERVICES.values() for source, _ in mounts(service).values()}
    assert {each for each in used if not each.startswith(".")} == set(compose()["volumes"])


def test_the_services_run_known_verbs_at_known_addresses() -> None:
    """Service commands are verbs of the CLI, and name the control server's address."""
    at = addresses("xds")["control"]
    verbs = {one.name for one in VERBS}
    named = {SERVICES[name]["command"][0] for name in ("certs", "xds", "picker", "gateway", "cli")}
    assert named <= verbs
    assert all(f"--xds={at}:18000" in SERVICES[each]["command"] for each in ("picker", "gateway"))
    assert f"--xds {at}:18000" in SERVICES["bootstrap"]["command"][0]
    assert SERVICES["cli"]["environment"]["TIDEGATE_SERVER"] == f"{at}:18010"


def test_the_image_is_built_of_all_that_the_wheel_holds() -> None:
    """Each package, each folder that goes into one, and what compiles them is copied."""
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    wheel = build["targets"]["wheel"]
    lines = (ROOT / "deploy/docker/Dockerfile").read_text().splitlines()
    copied = {
        source
        for line in lines
        if line.startswith("COPY ") and "--from" not in line
        for source in line.split()[1:-1]
    }
    needed = {*wheel["packages"], *wheel["force-include"], "hatch_build.py", "tools"}
    assert needed <= copied
    assert any("TIDEGATE_COMPILE=1" in line for line in lines)


def overlay(name: str) -> dict[str, Any]:
    """Return an overlay of the compose file."""
    text = (ROOT / f"deploy/compose/{name}.yaml").read_text()
    found: dict[str, Any] = yaml.safe_load(text)
    return found


ADDED = [
    pytest.param(service, id=name)
    for file in ("observability", "load")
    for name, service in overlay(file)["services"].items()
    if name not in SERVICES
]


@pytest.mark.parametrize("service", ADDED)
def test_an_overlay_s_service_can_do_no_more_than_it_needs(service: dict[str, Any]) -> None:
    """As those of the compose file; published on loopback only, from files that exist."""
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["read_only"] is True
    assert service["mem_limit"]
    assert service["pids_limit"]
    assert service.get("user", "10001:10001").split(":")[0] != "0"
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
    assert set(service["depends_on"]) <= {*SERVICES, "prometheus"}
    for source, read_only in mounts(service).values():
        assert read_only
        assert not source.startswith(".") or (ROOT / source).exists(), source


def test_prometheus_scrapes_the_pages_of_the_services() -> None:
    """Over TLS, by the names in their certificates; with a certificate that may only look."""
    text = (ROOT / "deploy/compose/prometheus.yaml").read_text()
    jobs = {each["job_name"]: each for each in yaml.safe_load(text)["scrape_configs"]}
    for service, role in (("xds", "control"), ("picker", "picker"), ("gateway", "gateway")):
        job = jobs[f"tidegate-{role}"]
        (page,) = job["static_configs"][0]["targets"]
        assert f"--metrics={page}" in SERVICES[service]["command"]
        assert job["tls_config"]["server_name"] == f"{role}.tidegate"
    made = overlay("observability")["services"]
    assert mounts(made["certs"]) == {"/authority/viewer": ("viewer-certs", False)}
    assert mounts(made["prometheus"])["/certs"] == ("viewer-certs", True)


def test_envoy_leaves_service_before_its_container_is_stopped() -> None:
    """By a hook of the image, which has the time that it waits."""
    envoy = SERVICES["envoy"]
    ((program, verb, *words),) = (each["command"] for each in envoy["pre_stop"])
    assert (program, verb) == ("tidegate", "envoy-stop")
    given = dict(each.lstrip("-").split("=") for each in words)
    assert f"--admin {given['admin']}" in SERVICES["bootstrap"]["command"][0]
    assert int(given["timeout"]) < int(envoy["stop_grace_period"].removesuffix("s"))


def test_mounts_exist() -> None:
    """All files that are mounted or copied from the repository exist."""
    for service in SERVICES.values():
        for source, _ in mounts(service).values():
            assert not source.startswith(".") or (ROOT / source).exists(), source
    for line in (ROOT / "deploy/docker/Dockerfile").read_text().splitlines():
        if line.startswith("COPY ") and "--from" not in line:
            for source in line.split()[1:-1]:
                assert (ROOT / source).exists(), source
