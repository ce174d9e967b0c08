"""Who may call what on the picker's port."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ext_proc.server.wire import METHOD, SERVICE
from tidegate_common.tls.roles import HEALTH, CallPolicy, MethodRoles, Roles

if TYPE_CHECKING:
    from tidegate_common.tls.rpc import OnRefused
    from tidegate_common.tls.settings import Secured

ENVOYS: Final[Roles] = frozenset({"envoy"})
EXCHANGES: Final = f"/{SERVICE}/{METHOD}"
LOGS: Final = "/envoy.service.accesslog.v3.AccessLogService/StreamAccessLogs"
READINGS: Final = "/tidegate.telemetry.v1.Telemetry/Report"

ACCESS: Final = MethodRoles(
    {EXCHANGES: ENVOYS, LOGS: ENVOYS, READINGS: frozenset({"reporter"}), **HEALTH}
)
"""Roles by method."""

AGE_GRACE_S: Final = 86_400.0
"""Seconds in which exchanges of a connection that has reached its maximum age may end: the longest
``timeouts.request``. Streams of logs and readings end at the maximum age."""
ENDLESS: Final = frozenset({LOGS, READINGS, "/grpc.health.v1.Health/Watch"})
"""Methods whose streams never end by themselves."""


def security_of(secured: Secured | None, on_refused: OnRefused) -> PortSecurity | None:
    """Return the security of the port of a picker; ``None`` = no TLS."""
    return None if secured is None else PortSecurity(secured, on_refused)


@dataclass(frozen=True, slots=True)
class PortSecurity:
    """Identity, roles and refusals of the picker's port."""

    secured: Secured
    on_refused: OnRefused
    """Called with address, names and reason of each refused call."""

    @property
    def policy(self) -> CallPolicy:
        """Who may call what; a gateway without a certificate is an Envoy where none is needed."""
        return self.secured.policy(ACCESS, anonymous=ENVOYS)
