"""Requests whose head and body come apart, through a real Envoy whose addresses differ in pools.

A generator draws fleet, address, protocol, way of naming a model, model and split. How a request is
split changes neither its answer nor who sees it, and no request ends Envoy. ``TIDEGATE_SPLITS``
says how many requests are drawn, ``TIDEGATE_SPLITS_SEED`` out of what; a failure prints its draw.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
from typing import Any, NamedTuple

import pytest
from tritonclient.grpc import service_pb2

from support.edge_stack import CHAT, GRPC, EdgeStack
from support.in_process_stack import ENVOY
from support.infer_requests import frame
from support.sockets import Raw, chunks, h2_request, head
from support.stand_in import StandIn
from tidegate.stack.processes.ports import HeldPorts

COUNT = int(os.environ.get("TIDEGATE_SPLITS", "200"))
SEED = int(os.environ.get("TIDEGATE_SPLITS_SEED", "1"))
PER_FLEET = 50
"""Requests between two changes of the fleet."""
AT_ONCE = 8
MAX_FRAME_BYTES = 16_384
APART_S = 0.01
"""Between parts of a request, seconds; whether Envoy has read one by then changes no answer."""

pytestmark = [
    pytest.mark.timeout(120 + COUNT // 4),
    pytest.mark.usefixtures("demo_extra"),
]

REFUSED = "404"
SERVED = {"main": ("llm", "vision"), "host": ("llm",), "inner": ("vision",)}
"""Pools of each address, its default one first."""
POOL_OF = {"toy-llm": "llm", "vision": "vision"}
MODELS = (*POOL_OF, "stranger", "")
HTTP = ("path", "body", "model-header", "pool-header")
CALLS = ("message", "message-header", "stream")
WAYS = (
    *((each, way) for each in ("length", "chunked", "h2") for way in HTTP),
    *(("grpc", way) for way in CALLS),
)
SIZES = (0, 3_000, 30_000)
"""Bytes beside the model, below and above `peek_bytes`."""


class Draw(NamedTuple):
    """A request."""

    front: str
    protocol: str
    way: str
    model: str
    size: int
    parts: int
    """Pieces of the body; 0 = it comes with the head."""
    trailers: bool
    number: int

    @property
    def expected(self) -> set[str]:
        """The pools and refusals (404; 400 and 411 for trailers) that are right."""
        pools = SERVED[self.front]
        pool = POOL_OF.get(self.model)
        if pool in pools:
            right = {pool}
        elif self.model or self.way == "path" or self.front == "inner":
            right = {REFUSED}  # the pool of `inner` is the default one of nothing
        else:
            right = {pools[0]}
        if self.way == "stream" and self.front != "main":
            right.add(pools[0])  # unless a stream is routed by its message, any replica answers
        if self.protocol == "h2" and self.trailers:
            right |= {"400", "411"}
        return right


def drawn(rng: random.Random, number: int) -> Draw:
    """Draw a request."""
    protocol, way = rng.choice(WAYS)
    return Draw(
        rng.choice([*SERVED]),
        protocol,
        way,
        rng.choice(MODELS),
        rng.choice(SIZES),
        rng.choice((0, 1, 1, 2, 5)),
        rng.random() < 0.3,
        number,
    )


def change(rng: random.Random, fleet: dict[str, Any], canary: StandIn) -> dict[str, Any]:
    """Draw the rest of a fleet."""
    for pool in fleet["pools"]:
        pool["routing"] = {
            "body": rng.choice(("peek", "peek", "full", "none")),
            "peek_bytes": rng.choice((4096, 16_384)),
            "first_message": rng.choice(("auto", "none", "duplex")),
            "hung_requests": rng.choice(("wait", "move")),
        }
        if pool["name"] == "llm":
            kind = rng.choice(("", "canary", "shadow"))
            if kind:
                weights = {"stable": 50, kind: 50 if kind == "canary" else 0}
                pool["variants"] = [{"name": n, "weight": w} for n, w in weights.items()]
                pool["endpoints"][0]["variant"] = "stable"
                more = {"id": kind, "http": canary.http, "grpc": canary.grpc, "variant": kind}
                pool["endpoints"].append(more)
            if kind == "shadow":
                pool["shadow"] = {"variant": kind}
    return fleet


def body_of(draw: Draw) -> tuple[str, dict[str, str], bytes]:
    """Return path, headers and body."""
    pad = "x" * draw.size
    if draw.protocol == "grpc":
        message = service_pb2.ModelInferRequest(id=pad, model_name=draw.model)
        method = "ModelStreamInfer" if draw.way == "stream" else "ModelInfer"
        headers = {"content-type": "application/grpc", "te": "trailers"}
        if draw.way == "message-header" and draw.model:
            headers["tidegate-model"] = draw.model
        return GRPC + method, headers, frame(message)
    headers = {"content-type": "application/json"}
    if draw.way == "path":
        name = draw.model or "/"
        return f"/v2/models/{name}/infer", headers, json.dumps({"pad": pad}).encode()
    said: dict[str, Any] = {"messages": [], "pad": pad}
    if draw.model:
        said = {**said, "model": draw.model}
        if draw.way == "model-header":
            headers["tidegate-model"] = draw.model
        elif draw.way == "pool-header":
            headers["tidegate-pool"] = POOL_OF.get(draw.model, draw.model)
    return CHAT, headers, json.dumps(said).encode()


async def answered(address: str, host: str, draw: Draw) -> str:
    """Send a request; return its status."""
    path, headers, body = body_of(draw)
    headers["x-number"] = str(draw.number)
    count = max(1, draw.parts)
    size = min(MAX_FRAME_BYTES, -(-len(body) // count))
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    async with asyncio.timeout(60), Raw(address) as raw:
        if draw.protocol in {"h2", "grpc"}:
            trailers = {"x-end": "1"} if draw.trailers and draw.protocol == "h2" else None
            apart = APART_S if draw.parts else None
            got = await h2_request(
                raw, path, pieces, trailers, headers, authority=host, apart_s=apart
            )
            if draw.protocol == "h2":
                return got.headers[":status"]
            told = got.headers.get("grpc-status", "none")
            return {"0": "200", "5": REFUSED, "12": REFUSED}.get(told, f"grpc-status {told}")
        if draw.protocol == "chunked":
            ends = [b"%x\r\n%s\r\n" % (len(each), each) for each in pieces]
            pieces = [*ends, chunks([], {"x-end": "1"} if draw.trailers else None)]
            headers["transfer-encoding"] = "chunked"
        else:
            headers["content-length"] = str(len(body))
        lines = (f"{name}: {value}" for name, value in headers.items())
        top = head(path, *lines).replace(b"host: test", b"host: " + host.encode())
        if not draw.parts:
            await raw.send(top + b"".join(pieces))
        else:
            # Read from the start: Envoy resets the connection a second after a refusal.
            status = asyncio.create_task(raw.status())
            try:
                with contextlib.suppress(ConnectionError):  # a refusal may come before the rest
                    for each in (top, *pieces):
                        await raw.send(each)
                        await asyncio.sleep(APART_S)
                return str(await status)
            finally:
                status.cancel()
        return str(await raw.status())


@pytest.fixture
def inner():
    """Return the address of a further listener."""
    with HeldPorts() as ports:
        yield ports.address()


async def test_how_a_request_is_split_changes_no_answer(inner: str) -> None:
    """Nor does it end Envoy, nor reach a pool that the address has not."""
    rng = random.Random(SEED)
    listener = {
        "hosts": [{"names": ["llm.test"], "pools": ["llm"]}],
        "further": [{"name": "inner", "address": inner, "pools": ["vision"]}],
    }
    canary = StandIn()
    edge = EdgeStack(listener=listener, vision={"default": False})
    async with canary.serve(), edge as stack:
        places = {
            "main": (stack.listener, "test"),
            "host": (stack.listener, "llm.test"),
            "inner": (inner, "test"),
        }
        pools = {"llm": [stack.llm, canary], "vision": [stack.vision]}
        gate = asyncio.Semaphore(AT_ONCE)
        wrong: list[str] = []

        async def check(draw: Draw) -> None:
            async with gate:
                try:
                    status = await answered(*places[draw.front], draw)
                except (OSError, EOFError, TimeoutError, KeyError) as error:
                    status = repr(error)
            served = ",".join(name for name, each in pools.items() if reached(each, draw.number))
            got = f"{status} of {served}" if served and status != "200" else served or status
            if got not in draw.expected:
                wrong.append(f"{got}, not {sorted(draw.expected)}: {draw}, fleet {number}")

        pid = stack.supervisor.pid(ENVOY)
        for number in range(-(-COUNT // PER_FLEET)):
            for each in (stack.llm, stack.vision, canary):
                each.seen.clear()
                each.headers.clear()
            fleet = change(rng, stack.first_fleet(), canary)
            numbers = range(number * PER_FLEET, (number + 1) * PER_FLEET)
            asking = [check(drawn(rng, each)) for each in numbers]
            await asyncio.gather(stack.apply(fleet), *asking)
        assert not wrong, f"{len(wrong)} with seed {SEED}:\n" + "\n".join(wrong[:20])
        assert stack.supervisor.pid(ENVOY) == pid


def reached(replicas: list[StandIn], number: int) -> bool:
    """Return whether a request reached any of these replicas."""
    seen = (headers for each in replicas for headers in each.headers)
    return any(headers.get("x-number") == str(number) for headers in seen)
