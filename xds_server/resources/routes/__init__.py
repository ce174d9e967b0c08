"""Envoy's routes (RDS)."""

from xds_server.resources.routes.table import route_configuration, session_headers

__all__ = ["route_configuration", "session_headers"]
