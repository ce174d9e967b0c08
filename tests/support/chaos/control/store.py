"""An etcd that fails, and the way to it: it answers as recorded of a real one (``etcd_port``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import grpc

from support.chaos import strands
from support.chaos.control.values import WAY_S, BrokenError
from support.etcd_port import Refused, SmallEtcd
from xds_server.fleet.stored.epochs import HistoryHead

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.chaos.control.world import World


_HEAD: Final = b"/tidegate/head"


class RpcError(grpc.RpcError):
    """As gRPC's."""

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(text)
        self.code, self.details = (lambda: code), (lambda: text)


class Store(SmallEtcd):
    """An etcd whose leases end, and of which some members are not reached."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world
        self._ends: dict[int, Any] = {}
        self.heads: list[HistoryHead] = []
        self.full = False
        self._restored: HistoryHead | None = None
        """The head of a backup, until a leader has gone on from it."""

    def backup(self) -> dict[bytes, Any]:
        """Return all that is stored of the history."""
        return {key: found for key, found in self._keys.items() if not key.endswith(b"/leader")}

    def restore(self, backup: dict[bytes, Any]) -> None:
        """Go back to a backup; no server leads."""
        self._keys = dict(backup)
        self._restored = HistoryHead.load(self._keys[_HEAD][0])

    def answer(self, method: str, request: bytes) -> bytes:
        """Answer, and look at what was written."""
        if self.full and method.endswith(("Put", "Txn", "LeaseGrant")):
            raise Refused(
                grpc.StatusCode.RESOURCE_EXHAUSTED, "etcdserver: mvcc: database space exceeded"
            )
        answer = super().answer(method, request)
        found = self._keys.get(_HEAD)
        if found is not None:
            head = HistoryHead.load(found[0])
            before = self.heads[-1] if self.heads else None
            if head not in {before, self._restored}:
                follows = before is None or (
                    head.epoch > before.epoch if self._restored else _follows(before, head)
                )
                if not follows:
                    raise BrokenError(f"the head {before} was replaced by {head}")
                self.heads.append(head)
                self._restored = None
        return answer

    def _LeaseGrant(self, asked: Any) -> Any:  # noqa: N802 - etcd's name
        found = super()._LeaseGrant(asked)
        self._until(found.ID, found.TTL)
        return found

    def _LeaseKeepAlive(self, asked: Any) -> Any:  # noqa: N802 - etcd's name
        found = super()._LeaseKeepAlive(asked)
        if found.TTL > 0:
            self._until(asked.ID, found.TTL)
        return found

    def _until(self, lease: int, ttl_s: float) -> None:
        if lease in self._ends:
            self._ends[lease].cancel()
        network = self._world.network
        self._ends[lease] = network.at(network.now + ttl_s, self._end, lease)


def _follows(before: HistoryHead, head: HistoryHead) -> bool:
    if head.epoch == before.epoch:
        return head.continues(before) or (not head.records and head.number == before.number)
    return head.epoch == before.epoch + 1 and not head.records and head.number == before.number


class Channel:
    """As gRPC's, to a member of the store."""

    def __init__(self, world: World, member: str) -> None:
        self._world, self._member = world, member

    def unary_unary(
        self, method: str, request_serializer: Any, response_deserializer: Any, **_: Any
    ) -> Any:
        """Return a method."""
        write, read = request_serializer, response_deserializer
        return lambda request, timeout: read(self._asked(method, write(request), timeout))

    def stream_stream(
        self, method: str, request_serializer: Any, response_deserializer: Any, **_: Any
    ) -> Any:
        """Return a method of which only the first answer is read."""
        write, read = request_serializer, response_deserializer

        def call(requests: Any, timeout: float) -> Any:
            def answers() -> Iterator[Any]:
                for each in requests:
                    yield read(self._asked(method, write(each), timeout))

            return Answers(answers())

        return call

    def close(self) -> None:
        """Do nothing."""

    def _asked(self, method: str, request: bytes, timeout_s: float) -> bytes:
        world, host = self._world, strands.running().host
        world.point(host, "asks")
        until, network = world.network.now + timeout_s, world.network
        came, told = strands.Event(), list[Any]()

        def apply() -> None:
            if (host.address, self._member) in world.cut:
                return
            try:
                told.append(world.store.answer(method, request))
            except Refused as refused:
                told.append(RpcError(refused.code, refused.text))
            world.point(host, "asked")
            if (self._member, host.address) not in world.cut:
                network.at(network.now + WAY_S, came.set)

        leaves = max(network.now, host.stopped_until)  # whatever becomes of the process then
        network.at(leaves + WAY_S + world.slow.get(self._member, 0.0), apply)
        if not came.wait(timeout_s) or network.now > until:
            raise RpcError(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
        if isinstance(told[0], RpcError):
            raise told[0]
        return bytes(told[0])


class Answers:
    """As the answers of a stream of gRPC."""

    def __init__(self, found: Iterator[Any]) -> None:
        self._found = found

    def __iter__(self) -> Answers:
        return self

    def __next__(self) -> Any:
        return next(self._found)

    def cancel(self) -> None:
        """End it."""


class Direct:
    """Reads the store without a way."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def read(self, key: str) -> tuple[bytes, int] | None:
        """Return a value."""
        found = self._store._keys.get(f"/tidegate/{key}".encode())
        return None if found is None else found[:2]
