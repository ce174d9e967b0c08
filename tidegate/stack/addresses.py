"""Listen addresses of a local stack."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from tidegate.stack.processes.ports import HeldPorts


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """Listen address of each process, ``ip:port``."""

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

    @property
    def pickers(self) -> tuple[str, ...]:
        """The ext_proc address of each worker."""
        return (self.picker, *self.more_pickers)

    @property
    def picker_pages(self) -> tuple[str, ...]:
        """The address of each worker's ``/metrics`` and ``/debug/state``."""
        return (self.picker_metrics, *self.more_picker_metrics)

    @classmethod
    def free(cls, ports: HeldPorts, workers: int = 1) -> Self:
        """Return free addresses; ``ports`` holds them."""
        return cls(
            more_pickers=tuple(ports.address() for _ in range(1, workers)),
            more_picker_metrics=tuple(ports.address() for _ in range(1, workers)),
            listener=ports.address(),
            ads=ports.address(),
            admin=ports.address(),
            control_metrics=ports.address(),
            picker=ports.address(),
            picker_metrics=ports.address(),
            envoy_admin=ports.address(),
        )
