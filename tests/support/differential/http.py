"""Raw requests over HTTP/1.0, HTTP/1.1 and cleartext HTTP/2, and the facets of their answers."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, Final

from support.sockets import H2Answer, Raw, h2_request

if TYPE_CHECKING:
    from collections.abc import Mapping

    from support.differential.answers import Answer

PATIENCE_S: Final = 20.0
LENGTH: Final = "inference-header-content-length"
_LEFT_OUT: Final = ("date",)


async def exchange(
    address: str, *parts: bytes, method: str = "POST", expects: bool = False
) -> Answer:
    """Send the bytes of one request and return the answer's facets.

    Args:
        address: ``ip:port`` of the server.
        parts: What is sent, piece by piece.
        method: Method in the bytes; the answer to ``HEAD`` has no body.
        expects: Whether the last part waits for ``100 Continue``.
    """
    async with Raw(address) as raw:
        async with asyncio.timeout(PATIENCE_S):
            try:
                return await _exchange(raw, parts, method, expects=expects)
            except (asyncio.IncompleteReadError, ConnectionError):
                return {"closed": "without an answer"}


async def h2c(address: str, path: str, body: bytes, headers: Mapping[str, str]) -> Answer:
    """Send one request over cleartext HTTP/2 and return the answer's facets."""
    async with Raw(address) as raw:
        async with asyncio.timeout(PATIENCE_S):
            try:
                got: H2Answer = await h2_request(raw, path, [body], headers=headers)
            except Exception as error:  # noqa: BLE001 - h2 raises much where a peer speaks HTTP/1.1
                return {"closed": type(error).__name__}
    if got.reset or ":status" not in got.headers:
        return {"closed": "reset"}
    fields = {name: value for name, value in got.headers.items() if not name.startswith(":")}
    return _facets("HTTP/2", int(got.headers[":status"]), fields, got.body)


async def _exchange(raw: Raw, parts: tuple[bytes, ...], method: str, *, expects: bool) -> Answer:
    continued = None
    *first, last = parts
    await raw.send(*first)
    if expects:
        top = await raw.reader.readuntil(b"\r\n\r\n")
        if b" 100 " not in top.partition(b"\r\n")[0]:
            return await _answer(raw, top, method)
        continued = True
    await raw.send(last)
    top = await raw.reader.readuntil(b"\r\n\r\n")
    answer = await _answer(raw, top, method)
    if continued:
        answer["continued"] = True
    return answer


async def _answer(raw: Raw, top: bytes, method: str) -> Answer:
    first, *lines = top.decode("latin1").removesuffix("\r\n\r\n").split("\r\n")
    version, status, *_ = first.split(" ", 2)
    fields: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        key = name.strip().lower()
        fields[key] = f"{fields[key]}, {value.strip()}" if key in fields else value.strip()
    if method == "HEAD" or status in {"204", "304"}:
        body = b""
    elif fields.get("transfer-encoding") == "chunked":
        body = await _chunked(raw)
    elif "content-length" in fields:
        body = await raw.reader.readexactly(int(fields["content-length"]))
    else:
        body = await raw.reader.read()
    return _facets(version, int(status), fields, body)


async def _chunked(raw: Raw) -> bytes:
    body = b""
    while size := int((await raw.reader.readline()).split(b";")[0], 16):
        body += (await raw.reader.readexactly(size + 2))[:-2]
    while (await raw.reader.readline()).strip():
        pass
    return body


def _facets(version: str, status: int, fields: Mapping[str, str], body: bytes) -> Answer:
    answer: Answer = {"version": version, "status": status}
    answer |= {f"header {name}": value for name, value in fields.items() if name not in _LEFT_OUT}
    if LENGTH in fields:
        size = int(fields[LENGTH])
        answer["body"] = [_value(body[:size]), body[size:]]
    else:
        answer["body"] = _value(body)
    return answer


def _value(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return body.decode("latin1")
