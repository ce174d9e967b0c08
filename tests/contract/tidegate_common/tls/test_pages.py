"""Pages of a service, and clients that send no HTTP."""

from __future__ import annotations

import asyncio
import logging

import pytest
from aiohttp import web

from tidegate_common.tls.pages import serve_pages


@pytest.fixture
async def address():
    """Serve a page, and one that fails."""

    async def health(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def faulty(_: web.Request) -> web.Response:
        raise KeyError("a fault of our own")

    app = web.Application()
    app.add_routes([web.get("/healthz", health), web.get("/faulty", faulty)])
    async with serve_pages(app, "127.0.0.1:0", None, lambda *_: None) as bound:
        yield bound


async def answer(address: str, data: bytes) -> bytes:
    """Send bytes and return the first line of the answer."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(data)
    line = await reader.readline()
    writer.close()
    return line


@pytest.mark.parametrize(
    "data",
    [b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\r\n\r\n", b"GET / HTTP/9\r\n\r\n", b"G\0T / \r\n\r\n"],
)
async def test_bytes_that_are_no_http_are_not_logged(address: str, caplog, data: bytes) -> None:
    """They get an answer, and no line: anybody could write as many as they like."""
    with caplog.at_level(logging.WARNING):
        assert b" 400 " in await answer(address, data)
    assert not caplog.records


async def test_a_fault_of_our_own_is_logged(address: str, caplog) -> None:
    """With its traceback."""
    assert b" 500 " in await answer(address, b"GET /faulty HTTP/1.1\r\nhost: x\r\n\r\n")
    assert "a fault of our own" in caplog.text
