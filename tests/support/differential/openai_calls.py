"""Calls of the `openai` client, blocking and with asyncio, and raw ones, to an emulated engine."""

from __future__ import annotations

import asyncio
import gzip
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import openai

from support.differential.answers import Answer, Call, Target
from support.differential.http import exchange
from support.differential.raw_calls import JSON, text

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

MODEL: Final = "emulated"
CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
_MESSAGES: Final[Any] = [{"role": "user", "content": "tides"}]


def _clients(target: Target) -> dict[str, Any]:
    return {
        "base_url": f"http://{target.openai}/v1",
        "api_key": "none",
        "max_retries": 0,
        "timeout": 20,
    }


def _refused(error: openai.APIStatusError) -> Answer:
    return {"status": error.status_code, "body": error.response.json()}


def _distinct(chunks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Drop chunks that repeat the one before: a busy engine puts several tokens into one."""
    return [one for before, one in pairwise([{}, *chunks]) if one != before]


def _call(name: str, method: Callable[[Any], Any]) -> tuple[Call, Call]:
    """Return the call of a method by the blocking client and by that of asyncio."""

    def asked(target: Target) -> Answer:
        with openai.OpenAI(**_clients(target)) as client:
            try:
                result = method(client)
                if isinstance(result, openai.Stream):
                    return {"result": _distinct([one.model_dump() for one in result])}
                return {"result": result.model_dump()}
            except openai.APIStatusError as error:
                return _refused(error)

    async def blocking(target: Target) -> Answer:
        return await asyncio.to_thread(asked, target)

    async def waited(target: Target) -> Answer:
        async with openai.AsyncOpenAI(**_clients(target)) as client:
            try:
                result = await method(client)
                if isinstance(result, openai.AsyncStream):
                    return {"result": _distinct([one.model_dump() async for one in result])}
                return {"result": result.model_dump()}
            except openai.APIStatusError as error:
                return _refused(error)

    return Call(f"openai: {name}", blocking), Call(f"openai async: {name}", waited)


def _raw(
    path: str, body: bytes | None = None, *lines: str, method: str = ""
) -> Callable[[Target], Awaitable[Answer]]:
    verb = method or ("GET" if body is None else "POST")
    top = [f"{verb} {path} HTTP/1.1", "host: test", *lines]
    if body is not None:
        top.append(f"content-length: {len(body)}")
    data = "\r\n".join((*top, "", "")).encode() + (body or b"")

    async def ask(target: Target) -> Answer:
        return await exchange(target.openai, data, method=verb)

    return ask


def _distinct_events(
    call: Callable[[Target], Awaitable[Answer]],
) -> Callable[[Target], Awaitable[Answer]]:
    """Drop events that repeat the one before, as ``_distinct`` does."""

    async def ask(target: Target) -> Answer:
        answer = await call(target)
        events = str(answer.get("body")).split("\n\n")
        kept = [one for before, one in pairwise(["", *events]) if one != before]
        return {**answer, "body": "\n\n".join(kept)}

    return ask


_CHAT_BODY: Final = text({"model": MODEL, "messages": _MESSAGES, "max_tokens": 2})
_STREAM_BODY: Final = text({"model": MODEL, "messages": _MESSAGES, "max_tokens": 2, "stream": True})

OPENAI: Final = (
    *_call(
        "chat",
        lambda c: c.chat.completions.create(model=MODEL, messages=_MESSAGES, max_tokens=2),
    ),
    *_call(
        "chat as a stream",
        lambda c: c.chat.completions.create(
            model=MODEL, messages=_MESSAGES, max_tokens=2, stream=True
        ),
    ),
    *_call(
        "completion",
        lambda c: c.completions.create(model=MODEL, prompt="tides", max_tokens=2),
    ),
    *_call(
        "completion as a stream",
        lambda c: c.completions.create(model=MODEL, prompt="tides", max_tokens=2, stream=True),
    ),
    *_call("list of models", lambda c: c.models.list()),
    *_call("no messages", lambda c: c.chat.completions.create(model=MODEL, messages=[])),
    *_call(
        "extra headers",
        lambda c: c.chat.completions.create(
            model=MODEL, messages=_MESSAGES, max_tokens=2, extra_headers={"x-session-id": "s"}
        ),
    ),
    *_call(
        "unknown model",
        lambda c: c.chat.completions.create(model="missing", messages=_MESSAGES, max_tokens=2),
    ),
    *_call("embeddings", lambda c: c.embeddings.create(model=MODEL, input="tides")),
    *_call("responses", lambda c: c.responses.create(model=MODEL, input="tides")),
    Call("openai raw: chat", _raw(CHAT, _CHAT_BODY, JSON)),
    Call("openai raw: chat with a query", _raw(CHAT + "?a=b", _CHAT_BODY, JSON)),
    Call(
        "openai raw: stream",
        _distinct_events(_raw(CHAT, _STREAM_BODY)),
    ),
    Call("openai raw: no model", _raw(CHAT, text({"messages": _MESSAGES, "max_tokens": 2}), JSON)),
    Call("openai raw: malformed", _raw(CHAT, b"{", JSON)),
    Call("openai raw: empty", _raw(CHAT, b"", JSON)),
    Call("openai raw: array", _raw(CHAT, b"[]", JSON)),
    Call("openai raw: gzip", _raw(CHAT, gzip.compress(_CHAT_BODY), "content-encoding: gzip")),
    Call("openai raw: list of models", _raw("/v1/models")),
    Call("openai raw: one model", _raw("/v1/models/" + MODEL)),
    Call("openai raw: slash behind chat", _raw(CHAT + "/", _CHAT_BODY, JSON)),
    Call("openai raw: unknown path", _raw("/v1/nothing", b"{}", JSON)),
    Call("openai raw: a path of the engine", _raw("/server_info")),
)
