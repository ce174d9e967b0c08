"""A replica whose page and models are read over TLS, as its pool says."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import orjson
from aiohttp import web
from prometheus_client import CollectorRegistry

from ext_proc.routing.values.pool import Endpoint, EndpointKey, Pool, Variant
from ext_proc.telemetry.hub import Hub
from support.certificates import Authority
from tidegate_common.upstream.contexts import ReplicaContexts, ReplicaTls

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ext_proc.routing.values.reading import Reading

PAGE = 'nv_inference_pending_request_count{model="m",version="1"} 3\n'
CONFIG = orjson.dumps({"name": "m", "model_transaction_policy": {"decoupled": True}})


class Router:
    """Takes readings until the decoupled model is known as one."""

    def __init__(self) -> None:
        self.known: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.queued: list[float | None] = []

    def observe(self, _: str, readings: Sequence[Reading]) -> None:
        """Take readings."""
        self.queued += [each.queued for each in readings if each.model == "m"]
        if None in self.queued and not self.known.done():
            self.known.set_result(None)

    def silent(self, _: str) -> None:
        """Ignore it."""

    def restarted(self, _: str, __: float) -> None:
        """Ignore it."""

    def in_flight(self) -> dict[str, int]:
        """Return nothing."""
        return {}


async def test_pages_and_models_of_such_a_pool_are_read(tmp_path: Path) -> None:
    """The page of the replica, and whether its models are decoupled."""
    authority = Authority(tmp_path, "ca")
    pair = authority.sign("replica", "DNS:triton.test")

    async def answer(request: web.Request) -> web.Response:
        body = PAGE.encode() if request.path == "/metrics" else CONFIG
        return web.Response(body=body)

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    tls = authority.server(pair, ask_clients=False)
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    address = f"127.0.0.1:{runner.addresses[0][1]}"
    replica = Endpoint(
        EndpointKey("r1", 1), "stable", address, None, metrics_url=f"https://{address}/metrics"
    )
    pool = Pool(
        "p",
        models=frozenset({"m"}),
        variants=(Variant("stable", 1, probe_path="/ready"),),
        endpoints=(replica,),
        upstream_tls=ReplicaTls(ca=str(authority.own.certificate), server_name="triton.test"),
    )
    router = Router()
    hub = Hub(
        router,  # type: ignore[arg-type] # the part that pages need
        CollectorRegistry(),
        interval_s=0.02,
        contexts=ReplicaContexts(),
    )
    hub.set_pools({"p": pool})
    collecting = asyncio.create_task(hub.run())
    try:
        async with asyncio.timeout(60):
            await router.known
    finally:
        collecting.cancel()
        await asyncio.gather(collecting, return_exceptions=True)
        await runner.cleanup()
    assert set(router.queued) <= {3, None}
