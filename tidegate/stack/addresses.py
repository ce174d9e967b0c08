"""Listen addresses of a local stack."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from tidegate_common.unix import MAX_PATH_BYTES, SCHEME

if TYPE_CHECKING:
    from pathlib import Path

    from tidegate.stack.processes.ports import HeldPorts


@dataclass(frozen=True, slots=True)
class GatewayAddresses:
    """Listen addresses of a gateway, ``ip:port``."""

    http: str
    grpc: str
    admin: str
    admin_grpc: str
    metrics: str

    @property
    def in_fleet(self) -> dict[str, list[str]]:
        """The gateway as a fleet file names it."""
        return {"http": [self.http], "grpc": [self.grpc]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """Listen address of each process, ``ip:port``; that of ``admin`` may be ``unix:PATH``."""

    listener: str
    """Envoy's listener for clients: HTTP and gRPC on one port."""
    ads: str
    admin: str
    """Admin gRPC of the control server."""
    control_metrics: str
    picker: str
    picker_metrics: str
    envoy_admin: str
    more_pickers: tuple[str, ...] = ()
    """Addresses of the picker's workers after the first one."""
    more_picker_metrics: tuple[str, ...] = ()
    gateway: GatewayAddresses | None = None
    """``None`` = the stack has no gateway."""

    @property
    def pickers(self) -> tuple[str, ...]:
        """The ext_proc address of each worker."""
        return (self.picker, *self.more_pickers)

    @property
    def picker_pages(self) -> tuple[str, ...]:
        """The address of each worker's ``/metrics`` and ``/debug/state``."""
        return (self.picker_metrics, *self.more_picker_metrics)

    @classmethod
    def free(
        cls,
        ports: HeldPorts,
        workers: int = 1,
        folder: Path | None = None,
        *,
        gateway: bool = False,
    ) -> Self:
        """Return free addresses.

        Args:
            ports: Holds them.
            workers: Number of picker processes.
            folder: Folder for sockets; ``None`` = there are none.
            gateway: There is a gateway.
        """
        socket = None if folder is None else folder / "admin.sock"
        short = socket is not None and len(os.fsencode(socket)) <= MAX_PATH_BYTES - len(".lock")
        return cls(
            gateway=GatewayAddresses(*(ports.address() for _ in range(5))) if gateway else None,
            more_pickers=tuple(ports.address() for _ in range(1, workers)),
            more_picker_metrics=tuple(ports.address() for _ in range(1, workers)),
            listener=ports.address(),
            ads=ports.address(),
            admin=f"{SCHEME}{socket}" if short else ports.address(),
            control_metrics=ports.address(),
            picker=ports.address(),
            picker_metrics=ports.address(),
            envoy_admin=ports.address(),
        )
