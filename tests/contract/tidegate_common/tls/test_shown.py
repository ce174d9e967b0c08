"""Which certificate a TLS server shows: asked of real servers over loopback."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from typing import TYPE_CHECKING

import pytest

from support.certificates import Authority
from tidegate.stack.processes.ports import HeldPorts
from tidegate_common.tls.pem import shown_validity

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator

DAYS = 30


@contextlib.asynccontextmanager
async def served(context: ssl.SSLContext | None, first: bytes = b"") -> AsyncIterator[int]:
    """Serve one connection after a first line; yield the port.

    Args:
        context: Settings of TLS; ``None`` = it answers in clear text.
        first: What the client sends before the handshake, in bytes of their own.
    """
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(30)

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.settimeout(30)
                if context is None:
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                    return
                assert connection.recv(len(first)) == first
                with (
                    contextlib.suppress(OSError),
                    context.wrap_socket(connection, server_side=True) as secured,
                ):
                    secured.recv(1)

        serving = asyncio.create_task(asyncio.to_thread(serve))
        yield listening.getsockname()[1]
        await serving


@pytest.mark.parametrize("ask_clients", [False, True])
@pytest.mark.parametrize("proxy_protocol", [False, True])
async def test_the_end_of_a_servers_certificate_is_known(
    tmp_path, ask_clients: bool, proxy_protocol: bool
) -> None:
    """Also where it demands a certificate, or a PROXY header first; nothing is checked of it."""
    authority = Authority(tmp_path, "ca")
    context = authority.server(
        authority.sign("a", "DNS:a.example", days=DAYS), ask_clients=ask_clients
    )
    async with served(context, b"PROXY UNKNOWN\r\n" if proxy_protocol else b"") as port:
        found = await shown_validity("127.0.0.1", port, proxy_protocol=proxy_protocol)
    assert found.ends == pytest.approx(time.time() + DAYS * 86_400, abs=60)


async def test_what_is_no_server_of_tls_is_an_error() -> None:
    """One that speaks clear text, and an address where nothing listens."""
    async with served(None) as port:
        with pytest.raises(OSError, match="SSL"):
            await shown_validity("127.0.0.1", port)
    with HeldPorts() as ports, pytest.raises(ConnectionRefusedError):
        await shown_validity("127.0.0.1", ports.take())
