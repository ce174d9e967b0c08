"""The ADS port: its gRPC server, its bounds, and which roles may call what is served on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import grpc
from grpc_health.v1 import health_pb2_grpc

from tidegate_api.fleet.v1 import report_pb2_grpc
from tidegate_common.readable import ReadableServer
from tidegate_common.tls.roles import HEALTH, MethodRoles, Roles
from tidegate_common.tls.rpc import add_port, age_options, guarded, peer_of, validity_of
from xds_server.protocol import wire

if TYPE_CHECKING:
    from tidegate_common.health import HealthService
    from tidegate_common.tls.pem import Validity
    from tidegate_common.tls.roles import CallPolicy
    from tidegate_common.tls.settings import Secured
    from xds_server.server.drains import ModelDrainService
    from xds_server.server.refusals import RefusedPeers
    from xds_server.server.reports import PickerReports
    from xds_server.server.unsupported import Unsupported

_SERVED: Final[Roles] = frozenset({"envoy", "picker", "gateway"})
ACCESS: Final = MethodRoles(
    {
        f"/{wire.ADS_SERVICE}/StreamAggregatedResources": _SERVED,
        f"/{wire.ADS_SERVICE}/DeltaAggregatedResources": _SERVED,
        "/tidegate.fleet.v1.PickerReports/Report": frozenset({"picker"}),
        "/tidegate.fleet.v1.PickerReports/Answer": frozenset({"picker"}),
        "/tidegate.fleet.v1.PickerReports/Join": frozenset({"picker"}),
        "/tidegate.fleet.v1.ModelDrains/Hold": frozenset({"gateway", "picker"}),
        **HEALTH,
    }
)
"""Roles by method; which resources an ADS stream gets depends on its role, too."""

AGE_GRACE_S: Final = 10.0
"""Seconds in which streams of a connection that has reached its maximum age may end. Those of ADS
never do by themselves; their clients connect again with what they have."""

MAX_RECEIVE_BYTES: Final = 8 * 2**20
MAX_SEND_BYTES: Final = 64 * 2**20

SERVER_OPTIONS: Final = (
    # Envoy pings idle streams (connection_keepalive). By default gRPC answers with GOAWAY after
    # about four pings without data, which would end the ADS stream every two minutes.
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 500),
    # The server pings too, to detect clients that vanished without closing the connection.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # The keepalive timeout alone does not bound the wait for a ping's answer: it took 89 s.
    ("grpc.http2.ping_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.max_receive_message_length", MAX_RECEIVE_BYTES),
    ("grpc.max_send_message_length", MAX_SEND_BYTES),
    # Two servers on one port would each get half of the clients; a port in use must be an error.
    ("grpc.so_reuseport", 0),
)

ENDING_S: Final = 1.0
"""Seconds for which a stop waits for handlers that gRPC has cancelled."""

MAX_STREAMS: Final = 4096
"""Most ADS streams at a time; further ones get RESOURCE_EXHAUSTED."""

MAX_OUTBOX: Final = 64
"""Most messages queued for a client before its requests are no longer read."""

FIRST_REQUEST_S: Final = 30.0
"""A stream that sends no request within this time, in seconds, is closed."""


class AdsPort:
    """Makes the port's server, and tells the roles of its callers.

    Args:
        secured: Identity and roles; ``None`` = no TLS.
        refusals: Where refused peers are recorded.
    """

    def __init__(self, secured: Secured | None, refusals: RefusedPeers) -> None:
        self._secured = secured
        self._refusals = refusals
        self._policy: CallPolicy | None = None if secured is None else secured.policy(ACCESS)

    def roles(self, context: Any) -> Roles | None:
        """Return the roles of a stream's caller; ``None`` = the port has no TLS."""
        return None if self._policy is None else self._policy.roles(peer_of(context))

    def not_named(self, context: Any, picker: str) -> str | None:
        """Return why a call's peer may not speak as a picker, and note it; ``None`` = it may."""
        if self._secured is None:
            return None
        reason = self._secured.table.not_named(peer_of(context), "picker", picker)
        if reason is not None:
            self._refusals.note(context.peer(), picker, reason)
        return reason

    def certificate(self, context: Any) -> Validity | None:
        """Return when the certificate of a stream's caller holds; ``None`` = not known."""
        return None if self._policy is None else validity_of(context)

    def open(
        self,
        address: str,
        ads: grpc.GenericRpcHandler,
        reports: PickerReports,
        drains: ModelDrainService,
        health: HealthService,
        unsupported: Unsupported,
    ) -> tuple[grpc.aio.Server, str]:
        """Return a server that is bound but not started, and its address with the actual port.

        Raises:
            OSError: The address cannot be bound.
        """
        secured = self._secured
        ages = () if secured is None else age_options(secured.max_age_s, AGE_GRACE_S)
        server = grpc.aio.server(options=(*SERVER_OPTIONS, *ages))
        behind: Any = ReadableServer(guarded(server, self._policy, self._refused))
        behind.add_generic_rpc_handlers((ads,))
        report_pb2_grpc.add_PickerReportsServicer_to_server(reports, behind)
        report_pb2_grpc.add_ModelDrainsServicer_to_server(drains, behind)
        health_pb2_grpc.add_HealthServicer_to_server(health, behind)
        # The last, because it takes every method; it only says what is served.
        server.add_generic_rpc_handlers((unsupported,))
        try:
            # Its clients are known by their certificates alone, whatever other ports accept.
            port = add_port(server, address, secured, check="required")
        except RuntimeError as error:
            raise OSError(f"cannot listen on {address}: {error}") from error
        return server, f"{address.rpartition(':')[0]}:{port}"

    def _refused(self, address: str, _: object, reason: str) -> None:
        self._refusals.note(address, "", reason)
