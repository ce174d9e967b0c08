"""Asks a TLS server which certificate it shows to clients.

Nothing is checked of it, and no request is sent. A server that demands a client's certificate shows
its own first.
"""

from __future__ import annotations

import asyncio
import ssl
from functools import cache
from typing import TYPE_CHECKING, Final

from tidegate_common.tls.pem import der_validity

if TYPE_CHECKING:
    from tidegate_common.tls.pem import Validity

WITHIN_S: Final = 2.0
_PROXY: Final = b"PROXY UNKNOWN\r\n"
"""Says whose connection it is to a server that demands it: the sender's own."""


async def shown_validity(host: str, port: int, *, proxy_protocol: bool = False) -> Validity:
    """Return when the certificate that a server shows holds.

    Args:
        host: Its IP address.
        port: Its port.
        proxy_protocol: It expects a PROXY header first.

    Raises:
        OSError: It cannot be reached within ``WITHIN_S``, or does not speak TLS.
        ValueError: It shows no certificate, or none that can be read.
    """
    async with asyncio.timeout(WITHIN_S):
        _, writer = await asyncio.open_connection(host, port)
        try:
            if proxy_protocol:
                writer.write(_PROXY)
            await writer.start_tls(_context())
            handshake: ssl.SSLObject | None = writer.get_extra_info("ssl_object")
            shown = None if handshake is None else handshake.getpeercert(binary_form=True)
        finally:
            writer.transport.abort()
    if shown is None:
        raise ValueError("it shows no certificate")
    return der_validity(shown)


@cache
def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # its end is what is asked for, whoever signed it
    context.set_alpn_protocols(["h2", "http/1.1"])
    return context
