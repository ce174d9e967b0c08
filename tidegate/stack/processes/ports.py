"""Free loopback ports that stay ours.

A port found by binding port 0 and closing again can be taken by anyone before the child binds
it. Here the socket stays bound (never listening) with ``SO_REUSEADDR``. Linux then gives the port
to nobody who asks for any free one, but lets a child that names it bind it too, as every server
we start sets ``SO_REUSEADDR``. So a replica keeps its port across restarts as well.
"""

from __future__ import annotations

import socket
from typing import Self

LOOPBACK = "127.0.0.1"


class HeldPorts:
    """Ports held until ``close``; also a context manager."""

    def __init__(self) -> None:
        self._sockets: list[socket.socket] = []

    def take(self) -> int:
        """Return a free TCP port of 127.0.0.1, held from now on.

        Raises:
            OSError: the system has none.
        """
        holder = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holder.bind((LOOPBACK, 0))
        except OSError:
            holder.close()
            raise
        self._sockets.append(holder)
        port: int = holder.getsockname()[1]
        return port

    def address(self) -> str:
        """Return ``127.0.0.1:port`` with a port of ``take``."""
        return f"{LOOPBACK}:{self.take()}"

    def close(self) -> None:
        """Let all ports go; calling it again does nothing."""
        for holder in self._sockets:
            holder.close()
        self._sockets.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
