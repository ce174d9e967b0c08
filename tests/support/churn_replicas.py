"""Replicas that come and go, and what a source of them is."""

from __future__ import annotations

import asyncio
import random
from typing import Any, Protocol

GENERATE = "/v2/models/toy-llm/generate"
NUMBER = b"x-churn"
_LOOK = b"POST /v2/repository/index "
"""A picker asks for its models."""


class ChurnReplica:
    """A replica over HTTP/1.1 that counts what it has open.

    Args:
        name: What its source calls it.
        address: ``ip:port``.
        rng: How long its answers take.
    """

    def __init__(self, name: str, address: str, rng: random.Random) -> None:
        self.name = name
        self.address = address
        self._rng = rng
        self.ready = True
        """Whether it says that its model is ready."""
        self.released: asyncio.Event | None = None
        """What answers to requests that come from now on wait for; ``None`` = a time that chance
        has."""
        self.open: set[str] = set()
        """Numbers of the requests that it has."""
        self.lost: set[str] = set()
        """Those that it had when it died."""
        self.answered = 0
        self._server: asyncio.Server | None = None
        self._peers: set[asyncio.StreamWriter] = set()

    @property
    def alive(self) -> bool:
        """Whether it serves."""
        return self._server is not None

    async def start(self) -> None:
        """Serve."""
        host, _, port = self.address.rpartition(":")
        self._server = await asyncio.start_server(self._serve, host, int(port), reuse_address=True)

    def stop(self) -> set[str]:
        """End; return the requests that it still had."""
        left = set(self.open)
        if self._server is not None:
            self._server.close()
            self._server = None
        for peer in self._peers:
            peer.transport.abort()
        self.lost |= left
        return left

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._server is None:  # it was accepted just before the end
            writer.transport.abort()
            return
        self._peers.add(writer)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                fields = dict(
                    line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if line
                )
                await reader.readexactly(int(fields.get(b"content-length", b"0")))
                status = b"200 OK" if self.ready else b"400 Bad Request"
                if head.startswith(b"POST"):
                    status = b"200 OK"
                if head.startswith(b"POST") and not head.startswith(_LOOK):
                    await self._infer(fields.get(NUMBER, b"").decode())
                text = b'{"text_output": "%s"}' % self.name.encode()
                kind = b"content-type: application/json\r\n"
                length = b"content-length: %d\r\n\r\n" % len(text)
                writer.write(b"HTTP/1.1 " + status + b"\r\n" + kind + length + text)
                await writer.drain()
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            self._peers.discard(writer)
            writer.transport.abort()

    async def _infer(self, number: str) -> None:
        self.open.add(number)
        try:
            draw = self._rng.random()
            if self.released is not None:
                await self.released.wait()
            else:
                await asyncio.sleep(1.0 if draw > 0.99 else 0.05 * draw)
            self.answered += 1
        finally:
            self.open.discard(number)


class Driver(Protocol):
    """What a source of replicas says, and how it breaks."""

    listed: dict[str, ChurnReplica]
    """The replicas that it should list, by name."""
    tells_ends: bool
    """It lists a replica that ends until it has ended, and never again."""

    def settings(self) -> dict[str, Any]:
        """Return fields of the pool."""

    async def make(self, number: int, rng: random.Random) -> ChurnReplica:
        """Return a new replica; it is not started."""

    async def say(self) -> None:
        """Say what is listed now, unless it is broken."""

    def ended(self, replica: ChurnReplica) -> None:
        """Take note that a replica which was taken out serves no longer."""

    async def fault(self, rng: random.Random) -> None:
        """Break, or be in order again."""

    async def mend(self) -> None:
        """Be in order, and say what is listed."""

    @property
    def broken(self) -> bool:
        """Whether it is broken."""
