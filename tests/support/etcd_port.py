"""An etcd of tests: its port, what a real one answered, and a small one that answers alike."""

from __future__ import annotations

import itertools
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import grpc

from support.shared_keys import shared
from tidegate_api.etcd.v3 import etcd_pb2 as pb
from xds_server.fleet.stored.shared import SharedFault
from xds_server.leading.etcd import Etcd
from xds_server.leading.keeper import Granted

if TYPE_CHECKING:
    from collections.abc import Callable

RECORDED = Path(__file__).parents[1] / "contract" / "fixtures" / "etcd-3.6" / "calls.json"
PREFIX = "/recorded/"
METHODS = {
    "/etcdserverpb.KV/Range": (pb.RangeRequest, pb.RangeResponse),
    "/etcdserverpb.KV/Put": (pb.PutRequest, pb.PutResponse),
    "/etcdserverpb.KV/DeleteRange": (pb.DeleteRangeRequest, pb.DeleteRangeResponse),
    "/etcdserverpb.KV/Txn": (pb.TxnRequest, pb.TxnResponse),
    "/etcdserverpb.Lease/LeaseGrant": (pb.LeaseGrantRequest, pb.LeaseGrantResponse),
    "/etcdserverpb.Lease/LeaseRevoke": (pb.LeaseRevokeRequest, pb.LeaseRevokeResponse),
    "/etcdserverpb.Lease/LeaseKeepAlive": (pb.LeaseKeepAliveRequest, pb.LeaseKeepAliveResponse),
}


class Refused(Exception):  # noqa: N818 - it is an answer
    """A status in place of an answer."""

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(text)
        self.code, self.text = code, text


class EtcdPort(grpc.GenericRpcHandler):
    """A gRPC server on a free port; a context manager.

    Args:
        answer: Returns the answer to a method's request, both serialized.
    """

    def __init__(self, answer: Callable[[str, bytes], bytes]) -> None:
        self._answer = answer
        self._server = grpc.server(ThreadPoolExecutor(16), handlers=(self,))
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(0).wait()

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        """Return the handler of a call."""

        def run(requests: Any, context: Any) -> Any:
            for each in requests:
                try:
                    yield self._answer(details.method, each)
                except Refused as refused:
                    context.abort(refused.code, refused.text)

        return grpc.stream_stream_rpc_method_handler(run)


def used(etcd: Etcd) -> None:
    """Make all calls that the product makes, and check what they return."""
    lease = shared(etcd)
    try:
        etcd.claim(b"late", Granted(lease.id, 6.0))
    except SharedFault as error:
        assert "lease not found" in str(error)  # noqa: PT017 - it is one call of many
    else:
        raise AssertionError("a key was bound to a lease that had ended")
    try:
        etcd.write("large", bytes(1_700_000))
    except SharedFault as error:
        assert "too large" in str(error)  # noqa: PT017 - as above
    else:
        raise AssertionError("etcd took a request above its bound")


class Recorder:
    """Passes requests on to an etcd, and keeps them with its answers.

    Args:
        channel: To the etcd.
    """

    def __init__(self, channel: grpc.Channel) -> None:
        self._channel = channel
        self.calls: list[dict[str, str]] = []

    def answer(self, method: str, request: bytes) -> bytes:
        """Pass a request on."""
        call = {"method": method, "request": request.hex() if len(request) < 1024 else "long"}
        self.calls.append(call)
        try:
            if method.endswith("LeaseKeepAlive"):
                answer = next(self._channel.stream_stream(method)(iter((request,))))
            else:
                answer = self._channel.unary_unary(method)(request, timeout=10)
        except grpc.RpcError as error:
            call |= {"code": error.code().name, "text": error.details()}
            raise Refused(error.code(), error.details()) from None
        call["answer"] = answer.hex()
        return answer


def recorded() -> list[dict[str, str]]:
    """Return the calls of ``used`` and what etcd answered."""
    found: list[dict[str, str]] = json.loads(RECORDED.read_text())
    return found


class Replay:
    """Answers as recorded; each request must be the one that was recorded."""

    def __init__(self) -> None:
        self._calls = iter(recorded())

    def answer(self, method: str, request: bytes) -> bytes:
        """Return what etcd answered."""
        call = next(self._calls)
        said = request.hex() if len(request) < 1024 else "long"
        if (method, said) != (call["method"], call["request"]):
            raise Refused(grpc.StatusCode.FAILED_PRECONDITION, f"not what was recorded: {method}")
        if "answer" not in call:
            raise Refused(grpc.StatusCode[call["code"]], call["text"])
        return bytes.fromhex(call["answer"])


class SmallEtcd:
    """Answers as etcd does, as far as the product asks, whose leases end only by ``end_leases``.

    Args:
        ids: Of the leases that are granted.
        least_ttl_s: Shortest lease: etcd may grant more time than is asked for.
    """

    def __init__(self, ids: list[int] | None = None, least_ttl_s: int = 0) -> None:
        self._least_ttl_s = least_ttl_s
        self._lock = threading.Lock()
        self._ids = itertools.count(1) if ids is None else iter(ids)
        self._revision = 1
        self._keys: dict[bytes, tuple[bytes, int, int]] = {}
        """Value, version and lease by key."""
        self._leases: dict[int, int] = {}

    def end_leases(self) -> None:
        """End all leases."""
        with self._lock:
            for each in list(self._leases):
                self._end(each)

    def answer(self, method: str, request: bytes) -> bytes:
        """Answer a request."""
        name = method.rpartition("/")[2]
        with self._lock:
            return getattr(self, f"_{name}")(
                METHODS[method][0].FromString(request)
            ).SerializeToString()

    def _Range(self, asked: pb.RangeRequest) -> pb.RangeResponse:  # noqa: N802 - etcd's name
        found = self._keys.get(asked.key)
        if found is None:
            return pb.RangeResponse()
        known = pb.KeyValue(key=asked.key, value=found[0], mod_revision=found[1])
        return pb.RangeResponse(kvs=[known])

    def _Put(self, asked: pb.PutRequest) -> pb.PutResponse:  # noqa: N802 - as above
        if len(asked.value) > 1.5 * 2**20:
            raise Refused(grpc.StatusCode.INVALID_ARGUMENT, "etcdserver: request is too large")
        if asked.lease and asked.lease not in self._leases:
            raise Refused(grpc.StatusCode.NOT_FOUND, "etcdserver: requested lease not found")
        self._revision += 1
        self._keys[asked.key] = asked.value, self._revision, asked.lease
        return pb.PutResponse()

    def _DeleteRange(self, asked: pb.DeleteRangeRequest) -> pb.DeleteRangeResponse:  # noqa: N802 - as above
        gone = [each for each in self._keys if asked.key <= each < asked.range_end]
        self._remove(gone)
        return pb.DeleteRangeResponse()

    def _Txn(self, asked: pb.TxnRequest) -> pb.TxnResponse:  # noqa: N802 - as above
        (same,), (change,) = asked.compare, asked.success
        holds = self._keys.get(same.key, (b"", 0, 0))[1] == same.mod_revision
        if holds:
            self._Put(change.request_put)
        return pb.TxnResponse(header=pb.ResponseHeader(revision=self._revision), succeeded=holds)

    def _LeaseGrant(self, asked: pb.LeaseGrantRequest) -> pb.LeaseGrantResponse:  # noqa: N802 - as above
        lease = next(self._ids)
        self._leases[lease] = max(asked.TTL, self._least_ttl_s)
        return pb.LeaseGrantResponse(ID=lease, TTL=self._leases[lease])

    def _LeaseRevoke(self, asked: pb.LeaseRevokeRequest) -> pb.LeaseRevokeResponse:  # noqa: N802 - as above
        self._end(asked.ID)
        return pb.LeaseRevokeResponse()

    def _LeaseKeepAlive(self, asked: pb.LeaseKeepAliveRequest) -> pb.LeaseKeepAliveResponse:  # noqa: N802 - as above
        return pb.LeaseKeepAliveResponse(TTL=self._leases.get(asked.ID, 0))

    def _end(self, lease: int) -> None:
        self._leases.pop(lease, None)
        self._remove([key for key, (_, _, of) in self._keys.items() if of == lease])

    def clear(self) -> None:
        """Lose all values."""
        self._remove(list(self._keys))

    def _remove(self, keys: list[bytes]) -> None:
        self._revision += bool(keys)
        for each in keys:
            del self._keys[each]
