"""CPU per exchange of a picker with and without TLS: ``python bench/identity_cost.py``.

Two pickers in child processes, one of them with certificates of both sides, alternate under the
same load: one HTTP/2 connection with ``--concurrency`` streams, each of which sends head and
message at once, as Envoy does, waits for the reply and ends. CPU time is read from the kernel. The
ratio of each round compares neighbours in time; printed are the least cost of each and the median
of the ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import resource
import statistics
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import ngh2
import uvloop
from prometheus_client import CollectorRegistry

# After PYTHONPATH, which selects the checkout's or the compiled picker.
sys.path.append(str(Path(__file__).resolve().parents[1]))
sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

from bench.cost.exchange import pool_of, streams_of
from bench.cost.in_memory import HEADERS
from ext_proc.compiled import compiled
from ext_proc.observability.metrics import Metrics
from ext_proc.server import transport
from ext_proc.server.h2.frames import framed
from ext_proc.server.port import security_of
from ext_proc.server.service import PickerServer
from support.streams import router
from tidegate.stack.certificates import make
from tidegate_common.tls.contexts import client_context
from tidegate_common.tls.files import Identity, TlsFiles
from tidegate_common.tls.roles import table
from tidegate_common.tls.settings import Secured

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection

ENDPOINTS: Final = 8
PROMPT: Final = 2048
PLAIN, TLS = "plain", "tls"


def identity(folder: str, name: str) -> Identity:
    """Return the identity of a machine."""
    own = Path(folder, name)
    return Identity(TlsFiles(own / "tls.crt", own / "tls.key", own / "ca.crt"))


def _serve(pipe: Connection, mode: str, kind: str, folder: str | None) -> None:
    """Serve in a child process; reply to each message of the pipe with CPU seconds."""
    secured = None
    if folder is not None:
        secured = Secured(identity(folder, "picker"), table(()), "required", 3600.0)
    picker = PickerServer(
        router(pool_of(mode, ENDPOINTS)),
        picker="bench",
        metrics=Metrics(CollectorRegistry()),
        transport=kind,  # type: ignore[arg-type]  # a choice of the command line
        security=security_of(secured, lambda *_: None),
    )

    async def serve() -> None:
        pipe.send(await picker.start("127.0.0.1:0"))
        loop = asyncio.get_running_loop()
        while await loop.run_in_executor(None, pipe.recv):
            usage = resource.getrusage(resource.RUSAGE_SELF)
            pipe.send(usage.ru_utime + usage.ru_stime)
        await picker.stop(0)

    uvloop.run(serve())


class Load(asyncio.Protocol):
    """One connection with a closed loop of exchanges.

    Args:
        streams: Messages of different requests.
        count: Exchanges until it ends.
        concurrency: Exchanges at a time.
    """

    def __init__(self, streams: list[list[bytes]], count: int, concurrency: int) -> None:
        self._h2 = ngh2.Connection(ngh2.Role.CLIENT)
        self._streams = [[framed(each) for each in sent] for sent in streams]
        self._left = iter(range(count))
        self._open: dict[int, Iterator[bytes]] = {}
        self._concurrency = concurrency
        self._transport: Any = None
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Open the first streams."""
        self._transport = transport
        self._h2.initiate_connection()
        for _ in range(self._concurrency):
            self._begin()
        self._flush()

    def data_received(self, data: bytes) -> None:
        """Go on with the streams that got a reply or ended."""
        self._h2.receive_data(data)
        for event in self._h2.events():
            if isinstance(event, ngh2.DataReceived):
                self._go_on(event.stream_id)
            elif isinstance(event, ngh2.StreamClosed):
                self._open.pop(event.stream_id, None)
                self._begin()
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the run."""
        if not self.done.done():
            self.done.set_exception(exc or ConnectionError("the picker closed the connection"))

    def _begin(self) -> None:
        number = next(self._left, None)
        if number is None:
            if not self._open and not self.done.done():
                self.done.set_result(None)
            return
        stream = self._h2.send_request(HEADERS)
        self._open[stream] = iter(self._streams[number % len(self._streams)])
        self._go_on(stream)

    def _go_on(self, stream: int) -> None:
        message = next(self._open[stream], None)
        if message is None:
            self._h2.end_stream(stream)
        else:
            self._h2.send_data(stream, message)

    def _flush(self) -> None:
        if data := self._h2.data_to_send():
            self._transport.write(data)


async def drive(
    address: str, folder: str | None, streams: list[list[bytes]], count: int, concurrency: int
) -> None:
    """Run exchanges over one connection."""
    host, _, port = address.rpartition(":")
    context = None
    if folder is not None:
        context = client_context(identity(folder, "envoy").material)
        context.set_alpn_protocols(["h2"])
    made, load = await asyncio.get_running_loop().create_connection(
        lambda: Load(streams, count, concurrency),
        host,
        int(port),
        ssl=context,
        server_hostname=None if context is None else host,
    )
    await load.done
    made.close()


def measure(mode: str, kind: str, folder: str, args: argparse.Namespace) -> dict[str, Any]:
    """Measure a transport of the picker in one body mode."""
    context = multiprocessing.get_context("spawn")
    children = {}
    for name, certificates in ((PLAIN, None), (TLS, folder)):
        pipe, theirs = context.Pipe()
        context.Process(target=_serve, args=(theirs, mode, kind, certificates), daemon=True).start()
        children[name] = (pipe, pipe.recv(), certificates)
    streams = streams_of(mode, PROMPT)
    spent: dict[str, list[float]] = {name: [] for name in children}
    for number in range(args.rounds + 1):
        order = list(children)[:: 1 if number % 2 else -1]
        for name in order:
            pipe, address, certificates = children[name]
            pipe.send(True)
            before = pipe.recv()
            uvloop.run(drive(address, certificates, streams, args.count, args.concurrency))
            pipe.send(True)
            if number:  # the first round warms up
                spent[name].append((pipe.recv() - before) / args.count * 1e6)
            else:
                pipe.recv()
    for pipe, _, _ in children.values():
        pipe.send(False)
    ratios = [tls / plain for plain, tls in zip(spent[PLAIN], spent[TLS], strict=True)]
    return {
        "mode": mode,
        "transport": kind,
        "compiled": compiled(),
        "concurrency": args.concurrency,
        "plain_us": round(min(spent[PLAIN]), 1),
        "tls_us": round(min(spent[TLS]), 1),
        "ratio": round(statistics.median(ratios), 2),
    }


def main() -> None:
    """Print one line of JSON per mode, transport and concurrency."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--modes", nargs="+", choices=("none", "peek"), default=["none", "peek"])
    parser.add_argument("--transport", nargs="+", default=["nghttp2"], choices=("grpc", "nghttp2"))
    parser.add_argument("--count", type=int, default=4_000, help="exchanges per round")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--concurrency", type=int, default=8)
    args = parser.parse_args()
    transport.choose(os.environ)  # the children read it when they load gRPC
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder))
        for kind in args.transport:
            for mode in args.modes:
                print(json.dumps(measure(mode, kind, folder, args)))


if __name__ == "__main__":
    main()
