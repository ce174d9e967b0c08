"""Default addresses, ``ip:port``: where each service listens and where the others look for it."""

from __future__ import annotations

from typing import Final

ADS_ADDRESS: Final = "127.0.0.1:18000"
"""Control server: ADS, for Envoys and pickers."""

ADMIN_ADDRESS: Final = "127.0.0.1:18010"
"""Control server: the admin API."""

CONTROL_METRICS_ADDRESS: Final = "127.0.0.1:18080"
"""Control server: ``/metrics`` and ``/healthz``."""

PICKER_ADDRESS: Final = "127.0.0.1:18001"
"""Picker: ext_proc, for Envoys."""

PICKER_METRICS_ADDRESS: Final = "127.0.0.1:18081"
"""Picker: ``/metrics``, ``/debug/*`` and ``/healthz``."""
