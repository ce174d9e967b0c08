"""Values and a lease in etcd, by its gRPC API, version 3.

Rules:

1. All keys are below a prefix. Reads are linearizable, as etcd's are unless asked otherwise.
2. A request goes to one member. Where that does not answer within ``CALL_S``, the next request goes
   to the next member, and what may be repeated is repeated there; a swap is not (``Keys``). Members
   that elect a leader refuse all requests at once, so all are asked again for ``ELECTION_S``.
3. Only one of the servers has the key ``leader``. It is deleted with the lease that it is bound to.

Calls block, so asynchronous code must make them in a worker thread. Any thread may call.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import grpc

from tidegate_api.etcd.v3 import etcd_pb2 as pb
from tidegate_api.etcd.v3.etcd_pb2_grpc import KVStub, LeaseStub
from xds_server.fleet.stored.shared import SharedFault, Unreachable
from xds_server.leading.keeper import Granted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_T = TypeVar("_T")

CALL_S: Final = 1.0
"""Seconds for the answer to a request."""
ELECTION_S: Final = 3.0
"""Seconds after which a cluster has a leader again: etcd's default timeout is 1 s, and a vote may
fail."""
PAUSE_S: Final = 0.1
"""Seconds after all members refused a request."""

LEADER: Final = "leader"

_OPTIONS: Final = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.max_receive_message_length", 8 * 2**20),
)
_UNKNOWN: Final = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.ABORTED,
}
"""Statuses of requests that may have taken effect, or will where they are repeated."""


_REMEDIES: Final = (
    ("database space exceeded", " (compact and defragment it, and disarm its alarm)"),
    ("user name is empty", " (give --store-cert of one of its users)"),
)
"""What to do, by a part of etcd's words."""


class _Member(NamedTuple):
    keys: Any
    leases: Any


class Etcd:
    """The keys below a prefix, and leases; see the module's rules.

    Args:
        members: ``host:port`` of members of the cluster.
        prefix: Of all keys.
        credentials: How to connect; ``None`` = without TLS.
    """

    lease_s = 6

    def __init__(
        self,
        members: Sequence[str],
        prefix: str,
        credentials: grpc.ChannelCredentials | None = None,
    ) -> None:
        self._prefix = prefix
        self._channels = [
            grpc.insecure_channel(each, options=_OPTIONS)
            if credentials is None
            else grpc.secure_channel(each, credentials, options=_OPTIONS)
            for each in members
        ]
        self._members = [_Member(KVStub(each), LeaseStub(each)) for each in self._channels]
        self._turn = 0

    def close(self) -> None:
        """Close the connections."""
        for each in self._channels:
            each.close()

    def read(self, key: str) -> tuple[bytes, int] | None:
        """Return the newest value and its version; ``None`` = there is none."""
        request = pb.RangeRequest(key=self._key(key))
        found = self._repeated(lambda to: to.keys.Range(request, timeout=CALL_S))
        return (found.kvs[0].value, found.kvs[0].mod_revision) if found.kvs else None

    def write(self, key: str, value: bytes) -> None:
        """Write a value."""
        request = pb.PutRequest(key=self._key(key), value=value)
        self._repeated(lambda to: to.keys.Put(request, timeout=CALL_S))

    def swap(self, key: str, value: bytes, version: int) -> int | None:
        """Write a value in place of that version, 0 = of none; return its version, or ``None``."""
        return self._swap(pb.PutRequest(key=self._key(key), value=value), version)

    def delete(self, first: str, beyond: str) -> None:
        """Delete the keys from ``first`` to before ``beyond``."""
        request = pb.DeleteRangeRequest(key=self._key(first), range_end=self._key(beyond))
        self._repeated(lambda to: to.keys.DeleteRange(request, timeout=CALL_S))

    def leader(self) -> bytes | None:
        """Return the value of the server that leads; ``None`` = there is none."""
        found = self.read(LEADER)
        return None if found is None else found[0]

    def grant(self, ttl_s: int) -> Granted:
        """Return a new lease; etcd may grant more time."""
        request = pb.LeaseGrantRequest(TTL=ttl_s)
        found = self._repeated(lambda to: to.leases.LeaseGrant(request, timeout=CALL_S))
        return Granted(found.ID, found.TTL)

    def claim(self, value: bytes, lease: Granted) -> bool:
        """Write the key of the leader for the time of a lease; return False if there is one."""
        put = pb.PutRequest(key=self._key(LEADER), value=value, lease=lease.id)
        return self._swap(put, 0) is not None

    def keep(self, lease: Granted) -> float:
        """Renew a lease; return its time in seconds from now, 0 or less = it has ended."""

        def kept(to: _Member) -> Any:
            asked = iter((pb.LeaseKeepAliveRequest(ID=lease.id),))
            call = to.leases.LeaseKeepAlive(asked, timeout=CALL_S)
            try:
                return next(call, None)
            finally:
                call.cancel()

        found = self._once(kept)
        if found is None:
            raise Unreachable("etcd ended a renewal without an answer")
        return float(found.TTL)

    def revoke(self, lease: Granted) -> None:
        """End a lease."""
        request = pb.LeaseRevokeRequest(ID=lease.id)
        self._repeated(lambda to: to.leases.LeaseRevoke(request, timeout=CALL_S))

    def _key(self, key: str) -> bytes:
        return f"{self._prefix}{key}".encode()

    def _swap(self, put: pb.PutRequest, version: int) -> int | None:
        same = pb.Compare(
            target=pb.Compare.MOD, result=pb.Compare.EQUAL, key=put.key, mod_revision=version
        )
        request = pb.TxnRequest(compare=[same], success=[pb.RequestOp(request_put=put)])
        found = self._once(lambda to: to.keys.Txn(request, timeout=CALL_S))
        return int(found.header.revision) if found.succeeded else None

    def _repeated(self, call: Callable[[_Member], _T]) -> _T:
        end = time.monotonic() + ELECTION_S
        while True:
            for _ in self._members:
                try:
                    return self._once(call)
                except Unreachable as error:
                    fault = error
            if time.monotonic() >= end:
                raise fault
            time.sleep(PAUSE_S)

    def _once(self, call: Callable[[_Member], _T]) -> _T:
        turn = self._turn
        try:
            return call(self._members[turn])
        except grpc.RpcError as error:
            code, said = error.code(), error.details()
            if code not in _UNKNOWN:
                remedy = next((each for words, each in _REMEDIES if words in str(said)), "")
                raise SharedFault(f"etcd says: {said}{remedy}") from None
            self._turn = (turn + 1) % len(self._members)
            raise Unreachable(f"etcd does not answer: {said}") from None
