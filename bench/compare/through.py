"""What one change and one request run through: ``python bench/compare/through.py``.

Prints for each how many files of the product it runs through, how many functions, how many
different lines, and how many lines in all (a line of a loop counts each time). The change is
an operator's weight change, from the admin service's method to the last acknowledgement of an Envoy
and a picker over a loopback connection; the request is a whole exchange of the picker in which it
reads the body, from Envoy's first message to the last reply. Both run in this process, after a few
others of their kind.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import grpc
import orjson
from envoy.service.discovery.v3 import ads_pb2_grpc, discovery_pb2
from prometheus_client import CollectorRegistry

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from bench.control import TYPES, simulated_fleet
from bench.cost.bare_picker import BODIES, Scripted, messages
from ext_proc.observability.metrics import Metrics
from ext_proc.server.service import PickerServer
from support.streams import llm, replicas, router
from tidegate_api.admin.v1 import admin_pb2
from tidegate_api.names import PICKER_NODE_CLUSTER, POOL_TYPE
from tidegate_common import logs
from xds_server.admin.service import AdminService
from xds_server.control.fleet_control import Control
from xds_server.fleet.store import RevisionStore
from xds_server.observability import XdsMetrics
from xds_server.server.service import AdsServer

if TYPE_CHECKING:
    from types import FrameType

ROOT: Final = Path(__file__).resolve().parents[2]
PRODUCT: Final = tuple(f"{ROOT / name}/" for name in ("ext_proc", "xds_server", "tidegate_common"))
WARM: Final = 3
POOLS, ENDPOINTS = 4, 16


class Lines:
    """Counts the lines of the product that run, in all threads; a context manager.

    Threads that were started before are not looked at.
    """

    def __init__(self) -> None:
        self.total = 0
        self._lines: set[tuple[str, int]] = set()
        self._functions: set[Any] = set()

    def _trace(self, frame: FrameType, event: str, _: object) -> Any:
        code = frame.f_code
        if not code.co_filename.startswith(PRODUCT):
            return None
        if event == "call":
            self._functions.add(code)
        elif event == "line":
            self.total += 1
            self._lines.add((code.co_filename, frame.f_lineno))
        return self._trace

    def __enter__(self) -> Self:
        threading.settrace(self._trace)
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)
        threading.settrace(None)

    def __str__(self) -> str:
        files = {name for name, _ in self._lines}
        return (
            f"{len(files)} files, {len(self._functions)} functions, {len(self._lines)} lines, "
            f"{self.total} lines in all"
        )


async def _follow(channel: Any, node: str, cluster: str, types: tuple[str, ...]) -> None:
    """Acknowledge all that is sent to a client."""
    call = ads_pb2_grpc.AggregatedDiscoveryServiceStub(channel).DeltaAggregatedResources()
    for type_url in types:
        request = discovery_pb2.DeltaDiscoveryRequest(type_url=type_url)
        request.node.id, request.node.cluster = node, cluster
        request.resource_names_subscribe.append("*")
        await call.write(request)
    while (response := await call.read()) is not grpc.aio.EOF:
        await call.write(
            discovery_pb2.DeltaDiscoveryRequest(
                type_url=response.type_url, response_nonce=response.nonce
            )
        )


async def change() -> Lines:
    """Count one weight change."""
    ads, store = AdsServer(XdsMetrics(CollectorRegistry())), RevisionStore(None)
    control = Control(store, ads, lambda: int(time.time() * 1000), time.monotonic)
    admin = AdminService(control, ads)
    address = await ads.start("127.0.0.1:0")
    await control.start(orjson.dumps(simulated_fleet(POOLS, ENDPOINTS)).decode(), "fleet")
    found = Lines()
    async with grpc.aio.insecure_channel(address) as channel:
        clients = [
            asyncio.create_task(_follow(channel, "envoy", "edge", TYPES)),
            asyncio.create_task(_follow(channel, "picker", PICKER_NODE_CLUSTER, (POOL_TYPE,))),
        ]
        while len(ads.clients()) < len(clients) or not all(  # noqa: ASYNC110 - it has no event
            each.state == "SYNCED" for client in ads.clients() for each in client.types
        ):
            await asyncio.sleep(0.05)
        for turn in range(WARM + 1):
            request = admin_pb2.SetWeightsRequest(pool="p1", weights={"canary": 20 + turn})
            request.options.wait = True
            if turn == WARM:
                asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor())
                with found:
                    await admin.SetWeights(request, None)
            else:
                await admin.SetWeights(request, None)
        for each in clients:
            each.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
    await ads.stop(0)
    await control.stop()
    store.close()
    return found


def request() -> Lines:
    """Count one exchange."""
    server = PickerServer(
        router(llm(body=BODIES["peek"], endpoints=replicas(8))),
        picker="through",
        metrics=Metrics(CollectorRegistry()),
        clock=(number * 0.001 for number in range(10**9)).__next__,
        wall_clock=lambda: 0.0,
    )
    loop = asyncio.new_event_loop()
    for turn in range(WARM):
        loop.run_until_complete(server.process(None, Scripted(messages("peek", f"text {turn}"))))
    with Lines() as found:
        loop.run_until_complete(server.process(None, Scripted(messages("peek", "another text"))))
    loop.close()
    return found


def main() -> None:
    """Count both."""
    logs.configure("console", "error")
    print(f"one weight change: {asyncio.run(change())}")
    print(f"one request: {request()}")


if __name__ == "__main__":
    main()
