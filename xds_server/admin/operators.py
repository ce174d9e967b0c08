"""What the settings say about operators, made into what serves them."""

from __future__ import annotations

import asyncio
import contextlib
import grp
import os
import time
from typing import TYPE_CHECKING, Self, cast

import structlog

from tidegate_common.unix import is_unix
from xds_server.admin.access.authority import Authority
from xds_server.admin.access.calls import CallClocks, Calls
from xds_server.admin.access.tokens import Tokens
from xds_server.admin.access.trail import AuditTrail
from xds_server.admin.server import AdminServer
from xds_server.admin.web.app import WebFace

if TYPE_CHECKING:
    from tidegate_common.tls.roles import Role
    from tidegate_common.tls.rpc import OnRefused
    from tidegate_common.tls.settings import Secured
    from xds_server.admin.csds import ClientStatusService
    from xds_server.admin.service import AdminService
    from xds_server.settings import ControlSettings

_log = structlog.get_logger(__name__)


class OperatorPorts:
    """The ports for operators, with who may call them and the record of calls.

    An async context manager: at its end the ports are closed and the record is written.

    Args:
        settings: Start options.
        secured: Identity of TCP ports; ``None`` = no TLS.
        on_refused: Called with address, names and reason of each refused call.
        grace_s: Seconds that running calls may take to end.

    Raises:
        OSError: The folder of ``--audit`` cannot be made, or there is no such group.
        TokensError: The token file cannot be used.
    """

    def __init__(
        self,
        settings: ControlSettings,
        secured: Secured | None,
        on_refused: OnRefused,
        grace_s: float,
    ) -> None:
        self._settings = settings
        self._secured = secured
        self._grace_s = grace_s
        self._group = group_id(settings.admin_group)
        self._tokens = None if settings.admin_tokens is None else Tokens(settings.admin_tokens)
        if settings.audit is not None:
            settings.audit.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.trail = AuditTrail(settings.audit or settings.state)
        users: dict[str, Role] = {}
        for each in settings.admin_user or ():
            role, _, name = each.partition("=")
            users[name] = cast("Role", role)
        table = None if secured is None else secured.table
        authority = Authority(time.monotonic, os.getuid(), table, self._tokens, users)
        self._calls = Calls(authority, self.trail, CallClocks(time.monotonic, _unix_ms), on_refused)
        self._stack = contextlib.AsyncExitStack()
        self._service: AdminService | None = None
        self._server: AdminServer | None = None

    async def __aenter__(self) -> Self:
        self._stack.push_async_callback(self.trail.stop)
        if self._tokens is not None:
            following = asyncio.create_task(self._tokens.follow())
            self._stack.push_async_callback(_cancelled, following)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def bind(self, service: AdminService, status: ClientStatusService) -> str:
        """Bind the ports of gRPC, which answer after ``start``; return their addresses.

        Raises:
            OSError: An address cannot be bound.
        """
        self._service = service
        self._server = AdminServer(service, status, self._calls, self._secured, self._group)
        self._stack.push_async_callback(self._server.stop, self._grace_s)
        bound = ",".join(map(self._server.bind, self._settings.admin.split(",")))
        self._warn()
        return bound

    async def start(self) -> str:
        """Start to serve, over HTTP too; return the addresses of HTTP.

        Raises:
            OSError: An address of HTTP cannot be bound.
        """
        if self._server is None or self._service is None:
            raise RuntimeError("bind() comes first")
        await self._server.start()
        face = WebFace(
            self._service,
            self._calls,
            self._secured,
            self._group,
            self._settings.admin_host or (),
        )
        wanted = [each for each in self._settings.admin_http.split(",") if each]
        bound = [await self._stack.enter_async_context(face.serve(each)) for each in wanted]
        return ",".join(bound)

    def _warn(self) -> None:
        """Log the ports whose callers are not known."""
        settings = self._settings
        if self._secured is not None or self._tokens is not None:
            return
        given = f"{settings.admin},{settings.admin_http}".split(",")
        if plain := [each for each in given if each and not is_unix(each)]:
            _log.warning("admin_without_identity", addresses=", ".join(plain))


def group_id(name: str | None) -> int | None:
    """Return the id of a group of this machine.

    Raises:
        OSError: There is none of this name.
    """
    if name is None:
        return None
    if name.isdecimal():
        return int(name)
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        raise OSError(f"--admin-group: this machine has no group {name!r:.80}") from None


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def _unix_ms() -> int:
    return time.time_ns() // 1_000_000
