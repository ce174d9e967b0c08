"""Values that several control servers share: all calls, and values in memory with faults."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xds_server.fleet.stored.shared import SharedFault, Unreachable

if TYPE_CHECKING:
    from xds_server.leading.keeper import Granted
    from xds_server.leading.stores import SharedStore


def shared(store: SharedStore) -> Granted:
    """Make all calls that the product makes to an empty store of any kind, and check the answers.

    Returns:
        A lease that has ended.
    """
    assert store.read("head") is None
    first = store.swap("head", b"1", 0)
    assert first
    assert store.swap("head", b"2", 0) is None
    assert store.read("head") == (b"1", first)
    second = store.swap("head", b"2", first)
    assert second
    assert second > first
    assert store.swap("head", b"3", first) is None
    for number in range(3):
        store.write(f"record/{number}/x", b"r")
    store.delete("record/0/", "record/2/")
    assert [store.read(f"record/{n}/x") is None for n in range(3)] == [True, True, False]
    assert store.read("head") == (b"2", second)
    assert store.leader() is None
    lease = store.grant(6)
    assert lease.ttl_s == 6
    assert store.claim(b"me", lease)
    other = store.grant(6)
    assert not store.claim(b"you", other)
    assert store.leader() == b"me"
    assert store.keep(lease) == 6
    store.revoke(lease)
    assert store.leader() is None
    assert store.keep(lease) <= 0
    return lease


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
