"""A server that speaks as much of Triton's HTTP API as loading a model needs, and misbehaves."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Self

from aiohttp import web

from support.sites import end

NOT_EXPLICIT = "explicit model load / unload is not allowed if polling is enabled"


class ModelServer:
    """One replica; an async context manager.

    Args:
        name: Its id.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.repository = {"m": ["1"]}
        """Versions that a load makes READY, by model."""
        self.ready: dict[str, list[str]] = {}
        self.config: dict[str, Any] = {"name": "m", "backend": "python", "max_batch_size": 8}
        self.explicit = True
        self.load_error = ""
        self.unload_errors = 0
        """Unloads that fail before one succeeds."""
        self.infer_status = 200
        self.stats: Any = {"error": "no statistics"}
        self.free_mib = 1000
        self.calls: list[str] = []
        """Loads, unloads and inferences, in order."""
        self.hold: asyncio.Event | None = None
        """Loads wait for it."""
        self.at_once = 0
        self.most_at_once = 0
        self.address = ""
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_post("/v2/repository/index", self._index)
        app.router.add_post("/v2/repository/models/{model}/{kind}", self._change)
        app.router.add_get("/v2/models/{model}/config", self._config)
        app.router.add_get("/v2/models/{model}/stats", self._stats)
        app.router.add_get("/v2/models/{model}", self._metadata)
        app.router.add_post("/v2/models/{model}/infer", self._infer)
        app.router.add_get("/metrics", self._metrics)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.address = f"127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._runner is not None:
            await end(self._runner)

    @property
    def endpoint(self) -> dict[str, str]:
        """It as an endpoint of a fleet."""
        metrics = f"http://{self.address}/metrics"
        return {"id": self.name, "http": self.address, "metrics": metrics}

    async def _index(self, _request: web.Request) -> web.Response:
        rows: list[dict[str, str]] = []
        for model in self.repository:
            rows += [
                {"name": model, "version": each, "state": "READY"}
                for each in self.ready.get(model, ())
            ] or [{"name": model}]
        return web.json_response(rows)

    async def _change(self, request: web.Request) -> web.Response:
        model, kind = request.match_info["model"], request.match_info["kind"]
        if not self.explicit:
            return web.json_response({"error": NOT_EXPLICIT}, status=503)
        if model not in self.repository:
            return web.json_response({}, status=200 if kind == "unload" else 500)
        self.calls.append(kind)
        if kind == "unload":
            if self.unload_errors:
                self.unload_errors -= 1
                return web.json_response({"error": "not now"}, status=400)
            self.ready.pop(model, None)
            return web.Response()
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            if self.hold is not None:
                await self.hold.wait()
            if self.load_error:
                return web.json_response({"error": self.load_error}, status=400)
            self.ready[model] = self.repository[model]
            return web.Response()
        finally:
            self.at_once -= 1

    async def _config(self, request: web.Request) -> web.Response:
        return self._of_ready(request, self.config)

    async def _metadata(self, request: web.Request) -> web.Response:
        versions = self.ready.get(request.match_info["model"], [])
        told = {
            "name": "m",
            "versions": versions,
            "platform": "python",
            "inputs": [],
            "outputs": [],
        }
        return self._of_ready(request, told)

    def _of_ready(self, request: web.Request, told: dict[str, Any]) -> web.Response:
        if request.match_info["model"] not in self.ready:
            return web.json_response({"error": "Request for unknown model"}, status=404)
        return web.json_response(told)

    async def _stats(self, request: web.Request) -> web.Response:
        return self._of_ready(request, self.stats)

    async def _infer(self, request: web.Request) -> web.Response:
        self.calls.append("infer " + json.dumps(await request.json()))
        return web.json_response(
            {"error": "no"} if self.infer_status != 200 else {}, status=self.infer_status
        )

    async def _metrics(self, _request: web.Request) -> web.Response:
        total = 2000 * 2**20
        used = total - self.free_mib * 2**20
        text = f"nv_cpu_memory_total_bytes {total}\nnv_cpu_memory_used_bytes {used}\n"
        return web.Response(text=text)
