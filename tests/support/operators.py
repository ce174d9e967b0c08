"""Operators of a control server: calls with a record in a folder, and callers of every kind."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from tidegate_common.tls.roles import Peer, RoleTable
from tidegate_common.unix import LocalUser
from xds_server.admin.access.authority import Authority
from xds_server.admin.access.caller import CallOrigin
from xds_server.admin.access.calls import CallClocks, Calls
from xds_server.admin.access.trail import AuditTrail

if TYPE_CHECKING:
    from pathlib import Path

PLAIN = CallOrigin("ipv4:127.0.0.1:5", "ipv4:127.0.0.1")
"""A caller of a TCP port without TLS."""


def user(uid: int, name: str) -> CallOrigin:
    """Return a caller of a Unix socket."""
    return CallOrigin(f"uid {uid} pid 7", "", user=LocalUser(uid, 7), user_name=name)


def machine(*uris: str) -> CallOrigin:
    """Return a caller with a certificate."""
    return CallOrigin("ipv4:10.0.0.7:5", "ipv4:10.0.0.7", Peer(uris), encrypted=True)


def bearer(token: str, host: str = "ipv4:10.0.0.7") -> CallOrigin:
    """Return a caller with a token."""
    return CallOrigin(f"{host}:5", host, encrypted=True, authorization=f"Bearer {token}")


def calls(
    folder: Path | None = None,
    tokens: Any = None,
    table: RoleTable | None = None,
    clock: Any = lambda: 1.0,
    **more: Any,
) -> Calls:
    """Return what runs calls; the record is in a folder, if there is one."""
    authority = Authority(clock, os.getuid(), table, tokens, more.pop("users", None))
    trail = more.pop("trail", None) or AuditTrail(folder)
    return Calls(authority, trail, CallClocks(clock, lambda: 1_700_000_000_000), **more)
