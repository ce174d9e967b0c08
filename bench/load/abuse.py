"""Clients that misbehave, for measurements beside honest ones.

An abuser sends one kind of traffic at a bounded rate until it is cancelled. It reads what it gets
and never fails: the suite judges the honest clients only.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from typing import TYPE_CHECKING, Final, NamedTuple

import orjson

from tidegate.stack.fleet import LLM_MODEL

if TYPE_CHECKING:
    from collections.abc import Callable

GENERATE: Final = f"/v2/models/{LLM_MODEL}/generate"
GENERATE_STREAM: Final = f"/v2/models/{LLM_MODEL}/generate_stream"
SESSION: Final = "tidegate-session-id"
PATIENCE_S: Final = 10.0
"""Seconds after which an abuser gives up a request."""
DEEP: Final = 100_000
"""Depth of a JSON array at which Triton 2.51 overflows its stack, and dies."""


_WRONG: Final = ("many", "1", True, None)
"""Values of ``max_tokens`` that Triton 2.51 answers with 500."""


class Abuse(NamedTuple):
    """One kind of abuse."""

    per_s: float
    """Requests per second."""
    request: Callable[[int], bytes]
    """Returns the bytes of the n-th request."""
    leaves_after_s: float = PATIENCE_S
    """Seconds after which the client closes its connection."""


def post(path: str, body: bytes, headers: str = "", length: int | None = None) -> bytes:
    """Return an HTTP/1.1 request that ends its connection.

    Args:
        path: The path.
        body: What is sent of the body.
        headers: Further header lines, each with its CRLF.
        length: Declared length of the body, bytes; ``None`` = its real one.
    """
    declared = len(body) if length is None else length
    head = f"POST {path} HTTP/1.1\r\nhost: abuse\r\nconnection: close\r\n{headers}"
    return f"{head}content-length: {declared}\r\n\r\n".encode() + body


def _mistake(number: int) -> bytes:
    body = {"text_input": f"mistake {number}", "max_tokens": _WRONG[number % len(_WRONG)]}
    return post(GENERATE, orjson.dumps(body), f"{SESSION}: one\r\n")


def _refused_prompt(number: int) -> bytes:
    text = f"{number:08d} " * 400
    return post(GENERATE, orjson.dumps({"text_input": text, "max_tokens": "many"}))


def _wide(number: int) -> bytes:
    body = orjson.dumps({"text_input": f"wide {number}", "max_tokens": 1})
    return post(GENERATE, body, f"x-wide: {'w' * 32_000}\r\n")


def _impatient(number: int) -> bytes:
    body = {"text_input": f"{number:08d} " * 200, "max_tokens": 2_000, "stream": True}
    return post(GENERATE_STREAM, orjson.dumps(body))


def _half(number: int) -> bytes:
    return post(GENERATE, b"{" + b"%d" % number + b" " * 65_000, length=131_072)


def _killer(_: int) -> bytes:
    return post(GENERATE, b'{"max_tokens":1,"text_input":' + b"[" * DEEP + b"]" * DEEP + b"}")


ABUSES: Final[dict[str, Abuse]] = {
    "mistakes of one session": Abuse(50.0, _mistake),
    "refused prompts": Abuse(50.0, _refused_prompt),
    "headers of 32 KB": Abuse(50.0, _wide),
    "long requests, left after 1 s": Abuse(5.0, _impatient, leaves_after_s=1.0),
    "half uploads": Abuse(20.0, _half),
    "nesting that ends Triton": Abuse(1.0, _killer),
}
"""Kinds of abuse by name; the rates are a small share of what one client can send."""


async def run_abuse(address: str, abuse: Abuse) -> None:
    """Send one kind of abuse until cancelled.

    Args:
        address: ``ip:port``.
        abuse: The kind.
    """
    host, _, port = address.rpartition(":")
    loop = asyncio.get_running_loop()
    start = loop.time()
    async with asyncio.TaskGroup() as tasks:
        for number in itertools.count():
            await asyncio.sleep(max(0.0, start + number / abuse.per_s - loop.time()))
            tasks.create_task(_one(host, int(port), abuse, number))


async def _one(host: str, port: int, abuse: Abuse, number: int) -> None:
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(abuse.leaves_after_s):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(abuse.request(number))
                while await reader.read(65_536):
                    pass
            finally:
                writer.close()
