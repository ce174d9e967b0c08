"""Uploads that may be under way, by client: one client does not fill what replicas take from all.

Rules:

1. An upload counts from the moment in which a picker asks for its body, until its end was seen. One
   of which only a first part was read counts until the request is over.
2. A client is the origin of a request (``ext_proc.server.clients``); unknown ones are not counted.
3. The count has as many entries as clients have open uploads.
"""

from __future__ import annotations


class Uploads:
    """The count."""

    __slots__ = ("_open",)

    def __init__(self) -> None:
        self._open: dict[str, int] = {}

    def __len__(self) -> int:
        """Return the number of clients that have uploads."""
        return len(self._open)

    def begin(self, client: str, most: int) -> bool:
        """Count an upload; ``False`` if the client already has ``most``."""
        count = self._open.get(client, 0)
        if count >= most:
            return False
        self._open[client] = count + 1
        return True

    def end(self, client: str) -> None:
        """Count an upload no longer."""
        count = self._open[client] - 1
        if count:
            self._open[client] = count
        else:
            del self._open[client]
