"""The addresses of control servers, of which one leads: as option and target of gRPC. Pure."""

from __future__ import annotations

import ipaddress
import json
from typing import Any, Final

_LEADER_ONLY: Final = json.dumps(
    {
        "loadBalancingConfig": [{"round_robin": {}}],
        "healthCheckConfig": {"serviceName": ""},
    }
)
"""The server whose health is SERVING: those that follow say NOT_SERVING."""


def checked(given: str) -> str:
    """Return ``host:port``, or several addresses of one family, ``ip:port``, with commas.

    Raises:
        ValueError: Of several, one is no IP address, or not of the family of the first.
    """
    if "," in given:
        target(given)
    return given


def target(given: str) -> str:
    """Return what gRPC connects to; errors as of ``checked``."""
    if "," not in given:
        return given
    hosts = [each.rpartition(":")[0].strip("[]") for each in given.split(",")]
    try:
        families = {ipaddress.ip_address(each).version for each in hosts}
    except ValueError:
        families = set()
    if len(families) != 1:
        raise ValueError(
            f"'{given:.200}': of several control servers write ip:port, all of one family"
        )
    return f"ipv{families.pop()}:{given}"


def options(given: str) -> tuple[tuple[str, Any], ...]:
    """Return the options of a channel: with several addresses to the one that leads.

    Certificates are expected to have the name of the first.
    """
    if "," not in given:
        return ()
    first = given.partition(",")[0].rpartition(":")[0].strip("[]")
    return (
        ("grpc.service_config", _LEADER_ONLY),
        ("grpc.ssl_target_name_override", first),
        ("grpc.default_authority", first),
    )
