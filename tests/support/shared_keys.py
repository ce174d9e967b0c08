"""Values that several control servers share, in memory, with faults at chosen requests."""

from __future__ import annotations

from xds_server.fleet.stored.shared import SharedFault, Unreachable


class KilledAt(BaseException):
    """The server was killed: nothing of it runs on."""


class SharedKeys:
    """``Keys`` in memory. Requests are counted from the call of a method that plans a fault."""

    def __init__(self) -> None:
        self.values: dict[str, tuple[bytes, int]] = {}
        self.killing: int | None = None
        """Requests until the server is killed."""
        self._version = 0
        self._refused: int | None = None
        self._lost: int | None = None
        self._effect = False

    def kill(self, point: int) -> None:
        """Kill the server before request ``point // 2``, or after it where ``point`` is odd."""
        self.killing = point

    def refuse(self, number: int) -> None:
        """Refuse a request that writes."""
        self._refused = number

    def unanswered(self, number: int | None, *, effect: bool = False) -> None:
        """Lose a request that writes, or with ``effect`` its answer; ``None`` = none."""
        self._lost, self._effect = number, effect

    def read(self, key: str) -> tuple[bytes, int] | None:
        """Return the newest value and its version."""
        return self.values.get(key)

    def write(self, key: str, value: bytes) -> None:
        """Write a value."""
        self._request(lambda: self._put(key, value))

    def swap(self, key: str, value: bytes, version: int) -> int | None:
        """Write a value in place of that version."""

        def swapped() -> int | None:
            if self.values.get(key, (b"", 0))[1] != version:
                return None
            return self._put(key, value)

        return self._request(swapped)

    def delete(self, first: str, beyond: str) -> None:
        """Delete keys."""

        def deleted() -> None:
            for key in [each for each in self.values if first <= each < beyond]:
                del self.values[key]

        self._request(deleted)

    def _put(self, key: str, value: bytes) -> int:
        self._version += 1
        self.values[key] = value, self._version
        return self._version

    def _request(self, effect):
        if self.killing is not None:
            self.killing -= 1
            if self.killing == -1:
                raise KilledAt
        self._refused = None if self._refused is None else self._refused - 1
        if self._refused == -1:
            self._refused = None
            raise SharedFault("etcd says: no space")
        self._lost = None if self._lost is None else self._lost - 1
        if self._lost == -1:
            self._lost = None
            if self._effect:
                effect()
            raise Unreachable("etcd does not answer")
        found = effect()
        if self.killing is not None:
            self.killing -= 1
            if self.killing == -1:
                raise KilledAt
        return found
