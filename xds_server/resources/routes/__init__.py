"""Envoy's routes (RDS)."""

from xds_server.resources.routes.table import route_configuration

__all__ = ["route_configuration"]
