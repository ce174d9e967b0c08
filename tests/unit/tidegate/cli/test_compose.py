"""Consistency of the container files."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import yaml

from tidegate.cli.main import VERBS
from xds_server.fleet.load import load_text

ROOT = Path(__file__).resolve().parents[4]


def compose() -> dict[str, Any]:
    """Return the compose file."""
    text: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    return text


def addresses() -> dict[str, str]:
    """Return the fixed address of each service that has one."""
    return {
        name: service["networks"]["gate"]["ipv4_address"]
        for name, service in compose()["services"].items()
        if isinstance(service["networks"], dict)
    }


def test_the_fleet_names_the_containers_addresses() -> None:
    """The fleet's pickers and endpoints are exactly the containers of pickers and replicas."""
    path = ROOT / "deploy/docker/fleet.yaml"
    fleet = load_text(path.read_text(), str(path))
    at = addresses()
    assert [one.rpartition(":")[0] for one in fleet.pickers.addresses] == [at["picker"]]
    hosts = {
        address.rpartition(":")[0]
        for pool in fleet.pools
        for endpoint in pool.endpoints
        for address in (endpoint.http, endpoint.grpc)
        if address
    }
    assert hosts == {address for name, address in at.items() if name.startswith("triton-")}


def test_ports_are_published_on_loopback_only() -> None:
    """Published ports bind 127.0.0.1 only."""
    for service in compose()["services"].values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))


def test_the_services_run_known_verbs_at_known_addresses() -> None:
    """Service commands are verbs of the CLI, and name the control server's address."""
    services, at = compose()["services"], addresses()
    verbs = {one.name for one in VERBS}
    assert {services["xds"]["command"][0], services["picker"]["command"][0]} <= verbs
    assert f"--xds={at['xds']}:18000" in services["picker"]["command"]
    assert f"--xds {at['xds']}:18000" in services["bootstrap"]["command"][0]


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


def test_mounts_exist() -> None:
    """All files that are mounted or copied from the repository exist."""
    for service in compose()["services"].values():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert not source.startswith(".") or (ROOT / source).exists(), source
    for line in (ROOT / "deploy/docker/Dockerfile").read_text().splitlines():
        if line.startswith("COPY ") and "--from" not in line:
            for source in line.split()[1:-1]:
                assert (ROOT / source).exists(), source
