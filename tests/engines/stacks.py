"""Stacks over real engines."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from engines.lab import BLOCK
from support.replicas import PATIENT
from tidegate.stack.local import LocalStack

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from engines.lab import Lab

PATHS = ["/v1/completions", "/v1/chat/completions"]


@asynccontextmanager
async def stack_of(
    lab: Lab, *, events: bool, page: bool = True, template: bool = False, **more: Any
) -> AsyncIterator[LocalStack]:
    """Run a stack over the engines, with their KV events, pages and chat template or without."""

    def over(fleet: dict[str, Any]) -> None:
        (pool,) = fleet["pools"]
        pool["match"] = {"models": ["tiny"], "paths": PATHS}
        pool["endpoints"] = [engine.endpoint(events=events, page=page) for engine in lab.engines]
        pool["variants"] = [{"name": "stable", "weight": 1}]
        pool["slow_start"] = {"window": 0}
        pool["health"] = {"interval": "300ms", "timeout": PATIENT}
        pool["routing"] = {"block_tokens": BLOCK, "tokenizer": str(lab.tokenizer), "body": "full"}
        if template:
            del pool["routing"]["body"]  # it follows from the template
            pool["routing"]["chat_template"] = str(lab.template)
        pool.update(more)
        fleet["pickers"]["timeout"] = PATIENT

    stack = LocalStack(replicas=(), models=("toy-llm",), fleet=over, transport="nghttp2")
    async with stack:
        yield stack
