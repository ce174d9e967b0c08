"""A test replica on a host of its own (a network namespace), which can be cut off.

Run as a program it is the replica's process: it answers inferences after as many seconds as the
request header ``x-hold-s`` says.

Cut off, nothing that leaves the host arrives anywhere: no FIN, no RST, no acknowledgement and no
ICMP message, as with a host that lost its power or a network that lost its path.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aiohttp import web

from support.replicas import Replica

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

HOLD_HEADER = "x-hold-s"
_PORT = 8000
_LISTENS = "listens"


class UnsupportedError(Exception):
    """This machine does not allow network namespaces; the message says what failed."""


@dataclass
class FarReplica(Replica):
    """A replica behind a link of its own; Linux and root only.

    ``serve`` raises ``UnsupportedError`` where namespaces are not allowed.
    """

    _pid: int = 0
    _here: str = ""

    @asynccontextmanager
    async def serve(self, tls: object = None) -> AsyncIterator[FarReplica]:
        """Serve in a new namespace."""
        assert tls is None
        for tool in ("ip", "nsenter", "unshare"):
            if shutil.which(tool) is None:
                raise UnsupportedError(f"there is no `{tool}`")
        command = ("unshare", "--net", "--", sys.executable, "-m", "support.partition")
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *command, stdout=pipe, stderr=pipe, env={**os.environ, "PYTHONPATH": _path()}
        )
        assert process.stdout is not None
        outer, inner = f"tgo{process.pid}", f"tgi{process.pid}"
        linked = False
        try:
            if (await process.stdout.readline()).strip() != _LISTENS.encode():
                _, error = await process.communicate()
                raise UnsupportedError(error.decode().strip())
            self._pid = process.pid
            number = process.pid % 2**14  # of 198.18.0.0/16, which is for tests (RFC 2544)
            net = f"198.18.{number >> 6}.{number % 64 * 4}".rpartition(".")
            self._here, there = (f"{net[0]}.{int(net[2]) + host}" for host in (1, 2))
            await _ip("link", "add", outer, "type", "veth", "peer", inner, "netns", str(self._pid))
            linked = True
            await _ip("address", "add", f"{self._here}/30", "dev", outer)
            await _ip("link", "set", outer, "up")
            await self._inside("address", "add", f"{there}/30", "dev", inner)
            await self._inside("link", "set", inner, "up")
            self.address = f"{there}:{_PORT}"
            yield self
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()
            if linked:
                # Connections that are not acknowledged keep the namespace for minutes.
                await _ip("link", "delete", outer)

    async def cut(self) -> None:
        """Drop all that leaves the replica's host, silently."""
        await self._inside("route", "add", "blackhole", f"{self._here}/32")

    async def _inside(self, *what: str) -> None:
        await _run("nsenter", f"--net=/proc/{self._pid}/ns/net", "ip", *what)


def _path() -> str:
    return os.pathsep.join(each for each in sys.path if each)


async def _ip(*what: str) -> None:
    await _run("ip", *what)


async def _run(*command: str) -> None:
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    _, error = await process.communicate()
    if process.returncode:
        raise UnsupportedError(f"{' '.join(command)}: {error.decode().strip()}")


async def _infer(request: web.Request) -> web.Response:
    await request.read()
    await asyncio.sleep(float(request.headers.get(HOLD_HEADER, "0")))
    return web.json_response({"text_output": "far"})


async def _ready(_: web.Request) -> web.Response:
    return web.Response()


async def _serve() -> None:
    app = web.Application()
    app.add_routes([web.get("/{path:.*}", _ready), web.post("/{path:.*}", _infer)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "0.0.0.0", _PORT).start()  # noqa: S104 - alone in its namespace
    sys.stdout.write(f"{_LISTENS}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve())
