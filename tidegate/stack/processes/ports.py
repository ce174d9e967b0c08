"""Free loopback ports that stay reserved.

A port that is found by binding port 0 and closing the socket can be taken by another process
before the child binds it. Here the socket stays bound with ``SO_REUSEADDR`` and never listens.
Linux then does not assign the port to a process that binds port 0, but a child that names the
port and sets ``SO_REUSEADDR``, as all servers of the stack do, can bind it. A replica therefore
keeps its port across restarts.
"""

from __future__ import annotations

import socket
from typing import Self

LOOPBACK = "127.0.0.1"


class HeldPorts:
    """Ports reserved until ``close``; a context manager."""

    def __init__(self) -> None:
        self._sockets: list[socket.socket] = []

    def take(self) -> int:
        """Reserve a free TCP port of 127.0.0.1 and return it.

        Raises:
            OSError: The system has no free port.
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
        """Reserve a free port and return ``127.0.0.1:port``."""
        return f"{LOOPBACK}:{self.take()}"

    def close(self) -> None:
        """Release all ports. Idempotent."""
        for holder in self._sockets:
            holder.close()
        self._sockets.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
