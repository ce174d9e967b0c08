"""Each fault has its reason in `status`: one stack of real Envoy, picker and control server.

The replicas stand in for sick ones. Faults that need real Tritons, other processes or more time
are in `test_slowness.py`, `test_queues.py`, `test_chat_files.py`, `test_status.py`,
`tests/lab/test_versions.py`, `tests/soak/test_slow_tritons.py` and `tests/soak/test_calm.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from aiohttp import web
from tokenizers import Tokenizer, models

from ext_proc.control.chat_files import TEXT
from support.certificates import Authority
from support.incidents import Paged, status_of, stopped
from support.replicas import stack_over
from support.traffic import GENERATE, admin, eventually, fresh_prompt, in_force
from tidegate.stack.local import PICKER
from tidegate.stack.processes.ports import HeldPorts
from tidegate_api.admin.v1 import admin_pb2 as api

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tidegate.stack.local import LocalStack

pytestmark = pytest.mark.timeout(180)


@dataclass
class Engine(Paged):
    """A replica with a queue and a tokenizer."""

    waiting: int = 0
    tokens: tuple[int, ...] = ()
    """Tokens that it makes of any text."""
    hangs: bool = False
    """Whether it answers no question about its state."""
    killed: contextlib.AsyncExitStack = field(default_factory=contextlib.AsyncExitStack)
    """Ends it."""

    async def _ready(self, request: web.Request) -> web.Response:
        if self.hangs:
            await asyncio.sleep(3.0)
        if request.path != "/metrics":
            return await super()._ready(request)
        labels = 'model="toy-llm",version="1"'
        return web.Response(text=f"nv_inference_pending_request_count{{{labels}}} {self.waiting}\n")

    async def _infer(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/tokenize":
            return web.json_response({"tokens": self.tokens})
        return await super()._infer(request)


@pytest.fixture(scope="module")
def engines() -> list[Engine]:
    """Return four replicas, which fall sick in turn."""
    return [Engine(f"r{number}") for number in (1, 2, 3, 4)]


@pytest.fixture(scope="module")
async def stack(engines: list[Engine], tmp_path_factory: Any) -> AsyncIterator[LocalStack]:
    """Run one stack for all faults."""
    file: Path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    known = {letter: number for number, letter in enumerate(sorted(set(TEXT)))}
    Tokenizer(models.BPE(known, [])).save(str(file))
    for each in engines:
        each.tokens = tuple(known[letter] for letter in TEXT)
    killed = await engines[3].killed.__aenter__()
    await killed.enter_async_context(engines[3].serve())
    health = {"interval": "300ms", "timeout": "1s", "unhealthy_after": 1}
    more = {"health": health, "routing": {"tokenizer": str(file)}}
    async with stack_over(*engines, more=more) as running:
        yield running


async def said(stack: LocalStack, *words: str) -> None:
    """Wait until a reason has all the words."""
    status, seen = status_of(stack.admin_address), list[str]()

    async def look() -> bool:
        seen[:] = await status()
        return any(all(each in line for each in words) for line in seen)

    assert await eventually(look, 45.0), seen


async def unsaid(stack: LocalStack, word: str) -> None:
    """Wait until no reason has the word."""
    status, seen = status_of(stack.admin_address), list[str]()

    async def look() -> bool:
        seen[:] = await status()
        return not any(word in line for line in seen)

    assert await eventually(look, 45.0), seen


async def send(http: aiohttp.ClientSession, stack: LocalStack, count: int, within_s: float) -> None:
    """Send requests at once; callers leave after some seconds."""

    async def one() -> None:
        limit = aiohttp.ClientTimeout(total=within_s)
        body = {"text_input": fresh_prompt(64), "max_tokens": 2}
        with contextlib.suppress(TimeoutError, aiohttp.ClientError):
            async with http.post(stack.http_url + GENERATE, json=body, timeout=limit) as answer:
                await answer.read()

    await asyncio.gather(*(one() for _ in range(count)))


async def test_a_queue(stack: LocalStack, engines: list[Engine]) -> None:
    """More waits than the replicas will soon work off."""
    for each in engines:
        each.waiting = 20
    await said(stack, "pool llm has a queue", "20 requests wait", "at r1; also r2, r3, r4")
    for each in engines:
        each.waiting = 0
    await unsaid(stack, "queue")


async def test_another_tokenizer(stack: LocalStack, engines: list[Engine]) -> None:
    """Of one replica; its peers have the pool's."""
    right = engines[2].tokens
    engines[2].tokens = right[:7]
    await said(
        stack,
        "replica r3 of pool llm has other tokens",
        f"it makes 7 tokens of a test text, the picker {len(TEXT)}",
    )
    engines[2].tokens = right
    await unsaid(stack, "tokens")


async def test_callers_that_leave(http, stack: LocalStack, engines: list[Engine]) -> None:
    """Before an answer begins."""
    gate = asyncio.Event()
    for each in engines:
        each.gate = gate
    sending = asyncio.create_task(send(http, stack, 20, 60.0))

    async def there() -> bool:
        return sum(each.at_once for each in engines) >= 8

    assert await eventually(there)
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    gate.set()
    for each in engines:
        each.gate = None
    await said(stack, "callers (", "left in the last minute before an answer began")


async def test_a_limit_of_envoy(http, stack: LocalStack, engines: list[Engine]) -> None:
    """Its circuit breaker refuses what is too much."""
    async with admin(stack) as stub:
        wait = api.ChangeOptions(wait=True, timeout_seconds=60)
        request = api.SetBreakerRequest(pool="llm", max_requests=1, options=wait)
        await in_force(stack, await stub.SetBreaker(request))
        for each in engines:
            each.hold_s = 0.2
        await send(http, stack, 30, 10.0)
        for each in engines:
            each.hold_s = 0.0
        await said(stack, "pool llm: ", "were refused in the last minute", "overflow (")
        request.max_requests = 1024
        await in_force(stack, await stub.SetBreaker(request))


async def test_a_picker_that_hangs(stack: LocalStack) -> None:
    """It is connected and does not report."""
    with stopped(stack.pid(PICKER)):
        await said(stack, "picker picker-1 is connected and has not reported", "it hangs")
    await unsaid(stack, "it hangs")


async def test_a_replica_that_is_not_ready(stack: LocalStack, engines: list[Engine]) -> None:
    """Each cause by itself: without its model, hung, killed."""
    engines[0].ready, engines[1].hangs = False, True
    await engines[3].killed.aclose()
    is_not = "of pool llm is not ready for"
    await said(stack, f"replica r1 {is_not}", "s: has no version 1 of toy-llm that is ready")
    await said(stack, f"replica r2 {is_not}", "s: does not answer within 1 s")
    await said(stack, f"replica r4 {is_not}", "s: refuses connections")
    engines[0].ready, engines[1].hangs = True, False
    await unsaid(stack, "replica r1")


async def test_a_certificate_of_a_listener_that_has_ended(stack: LocalStack, tmp_path) -> None:
    """By its file, and by what Envoy shows to clients until the file's successor is moved there."""
    authority = Authority(tmp_path, "own")
    pair = authority.aged("edge", "DNS:edge.test", life_days=10, left_days=-1)
    with HeldPorts() as ports:
        fleet = stack.read_fleet()
        tls = {"certificate": str(pair.certificate), "key": str(pair.key)}
        front = {"name": "edge", "address": ports.address(), "tls": tls}
        fleet["listener"]["further"] = [front]
        stack.fleet_file.write_text(json.dumps(fleet))
        await said(stack, "the certificate of listener edge has ended")
        later = authority.sign("later", "DNS:edge.test", days=90)
        # Written over, not moved: Envoy does not read it.
        pair.key.write_bytes(later.key.read_bytes())
        pair.certificate.write_bytes(later.certificate.read_bytes())
        await said(stack, "the certificate of listener edge at Envoy envoy-1 has ended")
        later.key.rename(pair.key)
        later.certificate.rename(pair.certificate)
        await unsaid(stack, "certificate")
