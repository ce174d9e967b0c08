"""A stack whose replicas answer every path, to see what Envoy lets through, and requests to it."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from support.in_process_stack import ENVOY, InProcessStack
from support.sockets import Raw, head
from support.stand_in import HEALTH, StandIn
from tidegate.stack.envoy import envoy_binary, envoy_command, envoy_environment, render_bootstrap

if TYPE_CHECKING:
    from collections.abc import Mapping

CHAT = "/v1/chat/completions"
"""Path of OpenAI that both pools share."""
INFER = "/v2/models/toy-llm/infer"
GRPC = "/inference.GRPCInferenceService/"


class EdgeStack(InProcessStack):
    """Control server, picker and Envoy over two pools, one stand-in each.

    Args:
        listener: Settings of the listener beside its address.
        timeouts: The pools' ``timeouts``.
        routing: The pools' ``routing``.
        bounds: Bounds of the bootstrap, arguments of ``render_bootstrap``.
        vision: Further settings of the pool `vision`.
    """

    follows_late = True

    def __init__(
        self,
        *,
        listener: Mapping[str, Any] | None = None,
        timeouts: Mapping[str, Any] | None = None,
        routing: Mapping[str, Any] | None = None,
        bounds: Mapping[str, int] | None = None,
        vision: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__("delta", spare=3)
        self._listener = dict(listener or {})
        self._timeouts = dict(timeouts or {})
        self._routing = dict(routing or {})
        self._bounds = dict(bounds or {})
        self._vision = dict(vision or {})
        self._stand_ins = AsyncExitStack()
        self.llm, self.vision = StandIn(), StandIn()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as exit_:
            for stand_in in (self.llm, self.vision):
                await exit_.enter_async_context(stand_in.serve())
            await super().__aenter__()
            self._stand_ins = exit_.pop_all()
        self.forget()
        return self

    async def __aexit__(self, *_: object) -> None:
        await super().__aexit__(*_)
        await self._stand_ins.aclose()

    def first_fleet(self) -> dict[str, Any]:
        """Return two pools that share a path of OpenAI, each with a replica of its own."""
        fleet = super().first_fleet()
        fleet["listener"] |= self._listener
        pools = (("llm", ["toy-llm"], self.llm), ("vision", ["vision"], self.vision))
        fleet["pools"] = [
            {
                "name": name,
                "default": name == "llm",
                "match": {"models": models, "paths": [CHAT]},
                "endpoints": [{"id": name, "http": stand_in.http, "grpc": stand_in.grpc}],
                "health": {"path": HEALTH, "timeout": "20s"},
                "timeouts": self._timeouts,
                "routing": self._routing,
            }
            for name, models, stand_in in pools
        ]
        fleet["pools"][1] |= self._vision
        return fleet

    async def _start_envoy(self) -> None:
        text = render_bootstrap(
            "envoy-1", "test", self.client_address, self.envoy_admin, "delta", **self._bounds
        )
        config = self.run.write("envoy.yaml", text)
        command = envoy_command(envoy_binary(), config, 1)
        await self.supervisor.start(ENVOY, command, envoy_environment())

    def forget(self) -> None:
        """Forget the requests that reached the stand-ins."""
        for stand_in in (self.llm, self.vision):
            stand_in.seen.clear()
            stand_in.headers.clear()

    @property
    def seen(self) -> list[tuple[str, str]]:
        """(method, path) of the requests that reached a replica."""
        return self.llm.seen + self.vision.seen

    def envoy_rss(self) -> int:
        """Return Envoy's resident memory in bytes."""
        pid = self.supervisor.pid(ENVOY)
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


async def answer(raw: Raw) -> tuple[int, dict[str, str], bytes]:
    """Read one response with a content length."""
    top = (await asyncio.wait_for(raw.reader.readuntil(b"\r\n\r\n"), 30)).decode("latin1")
    status, *lines = top.splitlines()
    pairs = (line.partition(":") for line in lines if line)
    headers = {name.lower(): value.strip() for name, _, value in pairs}
    body = await raw.reader.readexactly(int(headers.get("content-length", "0")))
    return int(status.split(" ", 2)[1]), headers, body


async def ask(
    stack: EdgeStack, path: str, *lines: str, method: str = "POST", body: bytes = b""
) -> tuple[int, dict[str, str], bytes]:
    """Send one request on a connection of its own."""
    async with Raw(stack.listener) as raw:
        await raw.send(head(path, f"content-length: {len(body)}", *lines, method=method), body)
        return await answer(raw)


async def served(stack: EdgeStack) -> bool:
    """Wait until a request is served."""
    for _ in range(100):
        try:
            if (await ask(stack, "/v2", method="GET"))[0] == 200:
                return True
        except (OSError, EOFError):
            pass
        await asyncio.sleep(0.2)
    return False
