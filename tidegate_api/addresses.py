"""Default addresses: where each service listens and where the others look for it.

They are ``ip:port``, or ``local``, the Unix socket of the user (``tidegate_common.unix``).
"""

from __future__ import annotations

from typing import Final

ADS_ADDRESS: Final = "127.0.0.1:18000"
"""Control server: ADS, for Envoys and pickers."""

ADMIN_ADDRESS: Final = "local"
"""Control server: the admin API."""

CONTROL_METRICS_ADDRESS: Final = "127.0.0.1:18080"
"""Control server: ``/metrics`` and ``/healthz``."""

PICKER_ADDRESS: Final = "127.0.0.1:18001"
"""Picker: ext_proc, for Envoys."""

PICKER_METRICS_ADDRESS: Final = "127.0.0.1:18081"
"""Picker: ``/metrics``, ``/debug/*`` and ``/healthz``."""

GATEWAY_HTTP_ADDRESS: Final = "127.0.0.1:18020"
"""Gateway: questions over HTTP, for Envoys."""

GATEWAY_GRPC_ADDRESS: Final = "127.0.0.1:18021"
"""Gateway: questions over gRPC, for Envoys."""

GATEWAY_ADMIN_ADDRESS: Final = "127.0.0.1:18022"
"""Gateway: changes of replicas over HTTP, for operators."""

GATEWAY_ADMIN_GRPC_ADDRESS: Final = "127.0.0.1:18023"
"""Gateway: changes of replicas over gRPC, for operators."""

GATEWAY_METRICS_ADDRESS: Final = "127.0.0.1:18082"
"""Gateway: ``/metrics`` and ``/healthz``."""

MAX_MEMBERS: Final = 64
"""Most members of a group of pickers, and most of their addresses."""

MAX_TOLD: Final = 2**40
"""Numbers of lists of members that a picker tells are below this; a greater one counts only where
the control server tells it, so that no picker can use the numbers up."""
