"""Processes of a picker with several workers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from tidegate.stack.local import PICKER

if TYPE_CHECKING:
    import aiohttp

    from tidegate.stack.local import LocalStack


async def states(http: aiohttp.ClientSession, stack: LocalStack) -> list[dict[str, Any]]:
    """Return the ``/debug/state`` of each worker."""
    found = []
    for page in stack.picker_pages:
        async with http.get(f"http://{page}/debug/state") as answer:
            found.append(orjson.loads(await answer.read()))
    return found


def worker_pids(stack: LocalStack) -> dict[int, int]:
    """Return the process ids of the workers by their number, but of those that end meanwhile."""
    parent = stack.pid(PICKER)
    found = {}
    for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
        try:
            name = Path(f"/proc/{pid}/comm").read_text().split()
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if name[0] == "worker":  # a fork (`support.prefork`)
            found[int(name[1])] = int(pid)
        elif b"ext_proc.workers" in words:
            found[int(words[words.index(b"ext_proc.workers") + 2])] = int(pid)
    return found
