"""Clients and an operator that ask all the time at bounded rates, and keep what they saw."""

from __future__ import annotations

import asyncio
import contextlib
import time
from itertools import count
from typing import TYPE_CHECKING, Any, Final, Self

import aiohttp
import grpc
import grpc.aio
import orjson
from tritonclient.grpc import service_pb2, service_pb2_grpc

from support.chaos.real.checker import Change, Request
from tidegate_api.admin.v1 import admin_pb2 as api
from tidegate_api.admin.v1 import admin_pb2_grpc
from tidegate_api.names import MODEL_HEADER, REASON_HEADER

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from support.identities import Presented

PAUSES_S: Final = {"http": 0.2, "unnamed": 0.4, "grpc": 0.3, "sse": 0.5, "pick": 0.25}
"""Between two requests of a kind through an Envoy."""
SEQUENCES: Final = 4
"""Sequences at once, each with steps through both Envoys in turn."""
STEPS: Final = 6
TRIES: Final = 3
"""Of a step but the last; then its client gives the sequence up."""
WAITS_S: Final = 60.0
LATEST_S: Final = 20.0
_QUICK: Final = (
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
)
PROMPT: Final = " and so on" * 20


class Load:
    """The clients.

    Args:
        envoys: Name -> ``ip:port`` of a listener.
    """

    def __init__(self, envoys: Mapping[str, str]) -> None:
        self._envoys = envoys
        self.done: list[Request] = []
        self._numbers = count(1)
        self._tasks: list[asyncio.Task[None]] = []
        self._open: set[asyncio.Task[Request]] = set()
        self._stubs: dict[str, Any] = {}

    async def __aenter__(self) -> Self:
        self._http = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=WAITS_S))
        for name, address in self._envoys.items():
            channel = grpc.aio.insecure_channel(address, options=_QUICK)
            self._stubs[name] = (channel, service_pb2_grpc.GRPCInferenceServiceStub(channel))
            self._tasks += [asyncio.create_task(self._repeat(kind, name)) for kind in PAUSES_S]
        self._tasks += [asyncio.create_task(self._sequences()) for _ in range(SEQUENCES)]
        return self

    async def __aexit__(self, *_: object) -> None:
        tasks = [*self._tasks, *self._open]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for channel, _ in self._stubs.values():
            await channel.close()
        await self._http.close()

    async def _repeat(self, kind: str, envoy: str) -> None:
        while True:
            task = asyncio.create_task(self._ask(kind, envoy, f"q{next(self._numbers)}"))
            self._open.add(task)
            task.add_done_callback(self._open.discard)
            await asyncio.sleep(PAUSES_S[kind])

    async def _ask(self, kind: str, envoy: str, name: str, **sequence: Any) -> Request:
        began = time.monotonic()
        pool = "counter" if kind in ("pick", "sequence") else "llm"
        seen: dict[str, Any] = {}
        error = ""
        try:
            async with asyncio.timeout(WAITS_S):
                if kind == "grpc" or sequence.pop("grpc", False):
                    await self._grpc(envoy, name, pool, sequence, seen)
                else:
                    await self._over_http(kind, envoy, name, sequence, seen)
        except grpc.aio.AioRpcError as failed:
            error = f"{failed.code().name} {failed.details()}"
        except (aiohttp.ClientError, OSError, ValueError, TimeoutError) as failed:
            error = f"{type(failed).__name__} {failed}"
        found = seen.get("answer", {})
        made = Request(
            name,
            kind,
            pool,
            envoy,
            began,
            time.monotonic(),
            error[:200],
            seen.get("begun", False),
            found.get("id", ""),
            found.get("replica", ""),
        )
        self.done.append(made)
        return made

    async def _grpc(
        self, envoy: str, name: str, pool: str, sequence: dict[str, Any], seen: dict[str, Any]
    ) -> None:
        model = "toy-llm" if pool == "llm" else pool
        asked = service_pb2.ModelInferRequest(model_name=model, id=name)
        for key, value in sequence.items():
            if isinstance(value, bool):
                asked.parameters[key].bool_param = value
            else:
                asked.parameters[key].int64_param = value
        answer = await self._stubs[envoy][1].ModelInfer(asked, metadata=((MODEL_HEADER, model),))
        seen["answer"] = {
            "id": answer.id,
            "replica": answer.parameters["replica"].string_param,
        }

    async def _over_http(
        self, kind: str, envoy: str, name: str, sequence: dict[str, Any], seen: dict[str, Any]
    ) -> None:
        path, body = {
            "http": ("/v2/models/toy-llm/generate", {"text_input": name + PROMPT}),
            "sse": ("/v2/models/toy-llm/generate_stream", {"text_input": name + PROMPT}),
            "unnamed": ("/v1/completions", {"model": "toy-llm", "prompt": name + PROMPT}),
        }.get(kind, ("/v2/models/counter/infer", {"id": name, "inputs": []}))
        if sequence:
            body = {**body, "parameters": sequence}
        url = f"http://{self._envoys[envoy]}{path}"
        async with self._http.post(url, json=body) as answer:
            if answer.status != 200:
                reason = answer.headers.get(REASON_HEADER)
                raise ValueError(f"{answer.status} {reason} {(await answer.read())[:120]!r}")
            seen["begun"] = kind == "sse"
            said = await answer.read()
        if kind == "sse":
            events = said.split(b"\n\n")
            if len(events) != 6:
                raise ValueError(f"a stream of {len(events) - 1} events")
            said = events[0].removeprefix(b"data: ")
        seen["answer"] = orjson.loads(said)

    async def _sequences(self) -> None:
        envoys = list(self._envoys)
        while True:
            number = next(self._numbers)
            step = failed = 0
            while step < STEPS and failed < TRIES:
                flags = {
                    "sequence_id": number,
                    "sequence_start": step == 0,
                    "sequence_end": step == STEPS - 1,
                    "grpc": number % 2 == 0,
                }
                envoy = envoys[(number + step + failed) % len(envoys)]
                name = f"s{next(self._numbers)}"
                made = await self._ask("sequence", envoy, name, **flags)
                if made.error and step < STEPS - 1:
                    failed += 1
                else:  # the last step ends the sequence, whatever becomes of it
                    step, failed = step + 1, 0
                await asyncio.sleep(0.3)


class Operator:
    """Makes a change after another, each with a greater value, and keeps what was acknowledged.

    Args:
        servers: Admin addresses of the control servers.
        who: What it presents to them.
    """

    def __init__(self, servers: Sequence[str], who: Presented) -> None:
        self._channels = [
            grpc.aio.secure_channel(each, who.channel_credentials(), options=_QUICK)
            for each in servers
        ]
        self._first = 0
        self.changes: list[Change] = []
        self.said: dict[str, int] = {}
        """Why changes failed, and how often."""

    async def ask(self, call: Callable[[Any], Any], timeout_s: float = LATEST_S) -> Any:
        """Ask the server that leads.

        Raises:
            grpc.aio.AioRpcError: None answers.
        """
        for last in (False, True):
            stub = admin_pb2_grpc.AdminStub(self._channels[self._first])
            try:
                async with asyncio.timeout(timeout_s):
                    return await call(stub)
            except grpc.aio.AioRpcError as error:
                self._first = (self._first + 1) % len(self._channels)
                if last or error.code() not in (
                    grpc.StatusCode.UNAVAILABLE,
                    grpc.StatusCode.FAILED_PRECONDITION,
                ):
                    raise
            except TimeoutError:
                self._first = (self._first + 1) % len(self._channels)
                raise
        return None

    async def run(self, first: int) -> None:
        """Change all the time."""
        for value in count(first):
            began, revision = time.monotonic(), 0
            options = api.ChangeOptions(author="chaos", reason=f"value {value}", wait=True)
            asked = api.SetBreakerRequest(pool="llm", max_requests=value, options=options)
            try:
                answer = await self.ask(lambda stub, asked=asked: stub.SetBreaker(asked))
                revision = answer.revision
            except grpc.aio.AioRpcError as error:
                said = f"{error.code().name} {error.details()}"[:160]
                self.said[said] = self.said.get(said, 0) + 1
            except TimeoutError:
                self.said["no answer"] = self.said.get("no answer", 0) + 1
            self.changes.append(Change(value, began, time.monotonic(), revision))
            await asyncio.sleep(1.0)

    async def history(self) -> dict[int, int]:
        """Return the values by revision."""
        asked = api.ListRevisionsRequest(limit=100_000)
        found = await self.ask(lambda stub: stub.ListRevisions(asked))
        return {
            each.number: int(each.reason.removeprefix("value "))
            for each in found.revisions
            if each.reason.startswith("value ")
        }

    async def status(self) -> api.GetStatusResponse | None:
        """Return the status; ``None`` = no server leads."""
        with contextlib.suppress(grpc.aio.AioRpcError, TimeoutError):
            return await self.ask(lambda stub: stub.GetStatus(api.GetStatusRequest()), 3.0)
        return None

    async def close(self) -> None:
        """Close its connections."""
        for each in self._channels:
            await each.close()
