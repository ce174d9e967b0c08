"""The command lines of the stack's services. Pure functions."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from tidegate.stack.addresses import Addresses, GatewayAddresses


def control_server(addresses: Addresses, fleet: Path, state: Path) -> tuple[str, ...]:
    """Return module and arguments of the control server."""
    return (
        "xds_server",
        *("--fleet", str(fleet)),
        *("--ads", addresses.ads),
        *("--admin", addresses.admin),
        *("--metrics", addresses.control_metrics),
        *("--state", str(state)),
    )


def picker(addresses: Addresses, name: str, transport: str) -> tuple[str, ...]:
    """Return module and arguments of the picker."""
    return (
        "ext_proc",
        *("--listen", ",".join(addresses.pickers)),
        *("--xds", addresses.ads),
        *("--metrics", ",".join(addresses.picker_pages)),
        *("--id", name),
        *("--workers", str(len(addresses.pickers))),
        *("--transport", transport),
    )


def gateway(addresses: GatewayAddresses, ads: str, name: str) -> tuple[str, ...]:
    """Return module and arguments of the gateway."""
    return (
        "gateway",
        *("--http", addresses.http),
        *("--grpc", addresses.grpc),
        *("--admin", addresses.admin),
        *("--admin-grpc", addresses.admin_grpc),
        *("--metrics", addresses.metrics),
        *("--xds", ads),
        *("--id", name),
    )
