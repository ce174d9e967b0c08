"""Start options of the control server."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - pydantic reads the annotation at run time
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict

from tidegate_api.addresses import ADMIN_ADDRESS, ADS_ADDRESS, CONTROL_METRICS_ADDRESS
from tidegate_common.logs import LogFormat, LogLevel  # noqa: TC001 - as above
from xds_server.fleet.model.fields import join_host_port, split_host_port


def _listen_address(address: str) -> str:
    free = address.endswith(":0")
    try:
        host, port = split_host_port(f"{address[:-1]}1" if free else address)
    except ValueError:
        raise ValueError(
            f"'{address}' is no address; write ip:port, for example 127.0.0.1:18000"
        ) from None
    return join_host_port(host, 0 if free else port)


ListenAddress = Annotated[str, AfterValidator(_listen_address)]
"""``ip:port``, IPv6 in brackets; port 0 = a free port."""


class ControlSettings(BaseModel):
    """Start options; they do not change while the server runs."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    fleet: Path
    """The fleet file, which is also watched."""
    ads: ListenAddress = ADS_ADDRESS
    """Address for Envoys and pickers."""
    admin: ListenAddress = ADMIN_ADDRESS
    """Address for operators. It has no authentication, so keep it on loopback."""
    metrics: ListenAddress = CONTROL_METRICS_ADDRESS
    """Address of `/metrics` and `/healthz`."""
    state: Path | None = None
    """Folder for revisions; in memory if omitted."""
    log_format: LogFormat = "console"
    log_level: LogLevel = "info"
