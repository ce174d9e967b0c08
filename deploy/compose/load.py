# ruff: noqa: INP001 - a program that is mounted into a container, of no package
"""Load of a running system: conversations that grow by a turn at a time, over ``generate``.

``python load.py URL [SECONDS]``: ``CLIENTS`` conversations (a variable, 8) in a closed loop, for so
many seconds, without end by default. Each 10 s, and at its end, it prints what was answered since
its start.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from collections import Counter

import aiohttp

TURNS = 6
"""Turns of a conversation."""
REPORT_S = 10.0
PATH = "/v2/models/toy-llm/generate"


async def _talk(http: aiohttp.ClientSession, url: str, counts: Counter[str], ends: float) -> None:
    draw = random.Random()  # noqa: S311 - prompts are no secrets
    while time.monotonic() < ends:
        session, text = f"{draw.getrandbits(64):x}", "You are a helpful assistant. " * 20
        for _ in range(TURNS):
            text += " ".join(f"{draw.getrandbits(32):x}" for _ in range(20))
            body = {"text_input": text, "max_tokens": draw.randrange(4, 32)}
            try:
                headers = {"x-session-id": session}
                async with http.post(f"{url}{PATH}", json=body, headers=headers) as answer:
                    await answer.read()
                    counts[str(answer.status)] += 1
            except (aiohttp.ClientError, TimeoutError) as error:
                counts[type(error).__name__] += 1
            await asyncio.sleep(draw.random())
            if time.monotonic() >= ends:
                return


async def _report(counts: Counter[str]) -> None:
    while True:
        await asyncio.sleep(REPORT_S)
        print(dict(counts), flush=True)  # noqa: T201 - its report


async def main() -> None:
    """Run until the end."""
    url, *seconds = sys.argv[1:]
    ends = time.monotonic() + float(seconds[0]) if seconds else float("inf")
    counts: Counter[str] = Counter()
    timeout = aiohttp.ClientTimeout(total=60)
    async with aiohttp.ClientSession(timeout=timeout) as http:
        report = asyncio.create_task(_report(counts))
        clients = int(os.environ.get("CLIENTS", "8"))
        await asyncio.gather(*(_talk(http, url, counts, ends) for _ in range(clients)))
        report.cancel()
    print(dict(counts), flush=True)  # noqa: T201 - its report


if __name__ == "__main__":
    asyncio.run(main())
