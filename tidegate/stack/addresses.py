"""Where the parts of a local stack listen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from tidegate.stack.processes.ports import HeldPorts


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """Where the parts listen, each ``ip:port``."""

    listener: str
    """Envoy, for clients: HTTP and gRPC on one port."""
    ads: str
    admin: str
    """The control server's admin gRPC."""
    control_metrics: str
    picker: str
    picker_metrics: str
    envoy_admin: str
    more_pickers: tuple[str, ...] = ()
    """Those of the picker's further workers."""
    more_picker_metrics: tuple[str, ...] = ()

    @property
    def pickers(self) -> tuple[str, ...]:
        """Where Envoy asks: an address for each worker."""
        return (self.picker, *self.more_pickers)

    @property
    def picker_pages(self) -> tuple[str, ...]:
        """Where each worker's ``/metrics`` and ``/debug/state`` are."""
        return (self.picker_metrics, *self.more_picker_metrics)

    @classmethod
    def free(cls, ports: HeldPorts, workers: int = 1) -> Self:
        """Return addresses that are free now and stay held."""
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
