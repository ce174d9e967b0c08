"""Settings of TLS to replicas."""

from __future__ import annotations

from xds_server.fleet.model.fields import FilePath, ServerName, Strict


class UpstreamTls(Strict):
    """TLS to replicas, pickers or gateways. Who speaks it reads the files, again on a change."""

    ca: FilePath | None = None
    """Certificates that the other side's must be signed by; unchecked if omitted."""
    certificate: FilePath | None = None
    """Own certificate (PEM), where the other side asks for one."""
    key: FilePath | None = None
    """Its private key."""
    server_name: ServerName | None = None
    """Name to ask for, and, with `ca`, the name that its certificate must have."""
