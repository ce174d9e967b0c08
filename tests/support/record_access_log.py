"""Recorder of a real Envoy's access log: see ``tests/contract/fixtures/envoy-*/README.md``.

``PYTHONPATH=tests:. python -m support.record_access_log FILE`` starts the local stack over three
test replicas, sends requests with different outcomes, and writes the access-log messages that the
picker receives, each after its length (four bytes, big-endian). Those of failed attempts, which are
on a stream of their own, go to ``attempts.bin`` beside the file.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import aiohttp
import grpc
from envoy.data.accesslog.v3.accesslog_pb2 import UpstreamEnd
from envoy.service.accesslog.v3.als_pb2 import StreamAccessLogsMessage

from ext_proc.__main__ import main as run_picker
from ext_proc.feedback.service import LogService
from support.replicas import Replica, stack_over
from support.streams import GRPC_INFER, frame
from tidegate.stack.local import PICKER, LocalStack

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

LENGTH: Final = struct.Struct(">I")
GENERATE: Final = "/v2/models/toy-llm/generate"
STREAM: Final = "/v2/models/toy-llm/generate_stream"
BODY: Final = {"text_input": "what does the tide gauge say at noon? " * 10, "max_tokens": 16}
REPLICAS: Final = 3
ATTEMPTS: Final = "attempts.bin"


def messages(path: Path) -> list[bytes]:
    """Return the messages of a recording, in order."""
    data, found = path.read_bytes(), []
    while data:
        (size,) = LENGTH.unpack_from(data)
        found.append(data[LENGTH.size : LENGTH.size + size])
        data = data[LENGTH.size + size :]
    return found


def _picker(target: str, arguments: list[str]) -> int:
    """Run a picker that records each access-log message before it parses the message."""
    take = LogService.take

    def note(data: bytes) -> None:
        entries = StreamAccessLogsMessage.FromString(data).http_logs.log_entry
        single = any(each.common_properties.access_log_type == UpstreamEnd for each in entries)
        path = Path(target).with_name(ATTEMPTS) if single else Path(target)
        with path.open("ab") as file:
            file.write(LENGTH.pack(len(data)) + data)

    async def noted(self: LogService, data: bytes) -> None:
        note(data)
        await take(self, data)

    LogService.take = noted  # type: ignore[method-assign]
    return run_picker(arguments)


def _stack(target: Path) -> type[LocalStack]:
    """Return a local stack class with a recording picker."""

    class Recorded(LocalStack):
        async def _launch_service(
            self,
            name: str,
            module: str,
            *flags: str,
            group: bool = False,
            installed: Path | None = None,
        ) -> None:
            if name == PICKER:
                module, flags = "support.record_access_log", ("--picker", str(target), *flags)
            await super()._launch_service(name, module, *flags, group=group, installed=installed)

    return Recorded


@contextlib.asynccontextmanager
async def _grpc_replica() -> AsyncIterator[str]:
    """Serve ``ModelInfer``; every second call fails with a status in the trailers."""
    count = 0

    async def infer(_: bytes, context: Any) -> bytes:
        nonlocal count
        count += 1
        if not count % 2:
            await context.abort(grpc.StatusCode.INTERNAL, "failed")
        return b""

    server = grpc.aio.server()
    handler: Any = grpc.unary_unary_rpc_method_handler(infer)
    service, _, method = GRPC_INFER.strip("/").rpartition("/")
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(service, {method: handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


async def _ask(http: aiohttp.ClientSession, url: str, most_s: float = 30.0) -> None:
    """Send a request and read its response; disconnect after ``most_s`` seconds."""
    with contextlib.suppress(TimeoutError, aiohttp.ClientError):
        async with asyncio.timeout(most_s), http.post(url, json=BODY) as answer:
            await answer.read()


async def _several(http: aiohttp.ClientSession, url: str, count: int = 4) -> None:
    for _ in range(count):
        await _ask(http, url)


async def _ways_to_end(stack: LocalStack, replicas: list[Replica]) -> None:
    """Send requests with each outcome that the access log distinguishes."""
    async with aiohttp.ClientSession() as http:
        url = stack.http_url + GENERATE
        await asyncio.gather(*(_several(http, url, 8) for _ in range(4)))
        await _with(replicas, _several(http, url), status=503)
        await _with(replicas, _several(http, url), status=400)
        await _with(replicas, _several(http, url), closes=True)  # all fail: no replica to retry
        await _with(replicas[:1], _several(http, url, 12), closes=True)  # retried elsewhere
        async with http.post(url, data=b"[malformed") as answer:
            await answer.read()
        await _with(replicas, _ask(http, url, 0.3), hold_s=1.0)  # the client disconnects
        # A long request: intermediate entries before and after the first byte.
        await _with(replicas, _ask(http, stack.http_url + STREAM), hold_s=1.2, gaps_s=(0.7, 0.7))
        await _with(
            replicas, _ask(http, stack.http_url + STREAM, 0.5), gaps_s=(0.2,) * 10
        )  # the client disconnects in the middle of the response
        # Headers at once, the first token later; also a client that leaves in between.
        early: dict[str, Any] = {"early_headers": True, "gaps_s": (0.2, 0.2)}
        await _with(replicas, _ask(http, stack.http_url + STREAM), hold_s=0.5, **early)
        await _with(replicas, _ask(http, stack.http_url + STREAM), hold_s=1.3, **early)
        await _with(replicas, _ask(http, stack.http_url + STREAM, 0.3), hold_s=0.8, **early)
        await _with(replicas, _ask(http, url), hold_s=5.0)  # no headers within the bound
    async with grpc.aio.insecure_channel(stack.grpc_address) as channel:
        call: Any = channel.unary_unary(GRPC_INFER)
        for _ in range(6):
            with contextlib.suppress(grpc.aio.AioRpcError):
                await call(frame("toy-llm")[5:], timeout=10)
    await asyncio.sleep(1.0)  # Envoy flushes every 0.2 s


async def _with(replicas: list[Replica], work: Any, **settings: Any) -> None:
    """Await ``work`` while the replicas have other settings."""
    before = [{name: getattr(each, name) for name in settings} for each in replicas]
    for each in replicas:
        each.__dict__.update(settings)
    try:
        await work
    finally:
        for each, settings_before in zip(replicas, before, strict=True):
            each.__dict__.update(settings_before)


async def _record(target: Path) -> None:
    replicas = [Replica(f"r{number}") for number in range(1, REPLICAS + 1)]
    async with contextlib.AsyncExitStack() as exit_:
        address = await exit_.enter_async_context(_grpc_replica())
        ends = [contextlib.AsyncExitStack() for _ in replicas]
        for each, end in zip(replicas, ends, strict=True):
            await end.enter_async_context(each.serve())
            exit_.push_async_callback(end.aclose)
        endpoints = [each.endpoint() for each in replicas]
        endpoints[0]["grpc"] = address
        # Ejection is off, so that every request reaches a replica.
        more = {
            "endpoints": endpoints,
            "outlier": {"max_ejection_percent": 0},
            "timeouts": {"first_answer": "2s", "first_answer_least": 0},
        }
        stack = await exit_.enter_async_context(
            stack_over(*replicas, more=more, kind=_stack(target), concurrency=1)
        )
        await _ways_to_end(stack, replicas)
        await ends[2].aclose()  # connections are refused until a probe finds out
        async with aiohttp.ClientSession() as http:
            await _several(http, stack.http_url + GENERATE, 8)
        await asyncio.sleep(1.0)


def main() -> int:
    """Record, or run the recording picker."""
    if sys.argv[1] == "--picker":
        return _picker(sys.argv[2], sys.argv[3:])
    target = Path(sys.argv[1]).resolve()
    for path in (target, target.with_name(ATTEMPTS)):
        path.unlink(missing_ok=True)
    asyncio.run(_record(target))
    return 0


if __name__ == "__main__":
    sys.exit(main())
