"""What is known without a key: when a certificate holds, and whether a key is encrypted.

Source: RFC 5280 (certificates), RFC 7468 (PEM), X.690 (DER).
"""

from __future__ import annotations

import asyncio
import ssl
from datetime import UTC, datetime
from functools import cache
from typing import Final, NamedTuple

_BEGIN: Final = "-----BEGIN CERTIFICATE-----"
_END: Final = "-----END CERTIFICATE-----"
_VERSION: Final = 0xA0
_UTC_TIME: Final = 0x17
_LONG: Final = 0x80
_MAX_LENGTH_BYTES: Final = 4
SOON_S: Final = 14 * 86_400.0
"""Certificates of a long life end soon from this many seconds before their end on."""
SOON_SHARE: Final = 0.25
LIVES: Final = 2.0
"""The others from this share of their life on."""

WITHIN_S: Final = 2.0
_PROXY: Final = b"PROXY UNKNOWN\r\n"
"""Says whose connection it is to a server that demands it: the sender's own."""


class Validity(NamedTuple):
    """When a certificate holds, Unix seconds."""

    begins: float
    ends: float

    @property
    def life_s(self) -> float:
        """The whole time, in seconds."""
        return self.ends - self.begins

    def ends_soon(self, now: float) -> bool:
        """Return whether it should have been replaced by now, Unix seconds."""
        return self.ends - now < min(SOON_S, SOON_SHARE * self.life_s)

    def is_overdue(self, now: float, max_age_s: float) -> bool:
        """Return whether a peer's certificate should have been replaced, by that of its connection.

        A connection may be ``max_age_s`` old, and its certificate may have been replaced since. So
        it is judged only where it has ``LIVES`` such ages of life left when it begins to count.
        """
        return self.ends_soon(now) and SOON_SHARE * self.life_s >= LIVES * max_age_s


def is_encrypted(key: bytes) -> bool:
    """Return whether a private key (PEM) needs a passphrase."""
    return b"ENCRYPTED" in key


def validity(certificate: bytes) -> Validity:
    """Return when the first certificate of a PEM file holds.

    Raises:
        ValueError: There is no certificate, or it cannot be read.
    """
    text = certificate.decode("ascii", errors="replace")
    begin, end = text.find(_BEGIN), text.find(_END)
    if begin < 0 or end < begin:
        raise ValueError("it contains no certificate")
    try:
        der = ssl.PEM_cert_to_DER_cert(text[begin : end + len(_END)])
    except ValueError as error:
        raise ValueError("its certificate cannot be read") from error
    return der_validity(der)


def der_validity(der: bytes) -> Validity:
    """Return when a certificate in DER holds.

    Raises:
        ValueError: It cannot be read.
    """
    try:
        at = _inside(der, _inside(der, 0))  # the certificate, and what is signed of it
        if der[at] == _VERSION:
            at = _after(der, at)
        for _ in ("serial number", "algorithm", "issuer"):
            at = _after(der, at)
        begins = _inside(der, at)
        return Validity(_time(der, begins), _time(der, _after(der, begins)))
    except (IndexError, ValueError, OverflowError) as error:
        raise ValueError("its certificate cannot be read") from error


def _time(der: bytes, at: int) -> float:
    text = der[_inside(der, at) : _after(der, at)].decode("ascii")
    if der[at] == _UTC_TIME:  # two digits of the year, from 1950 to 2049
        text = ("19" if text >= "5" else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()


def _span(der: bytes, at: int) -> tuple[int, int]:
    """Return where the content of the element at a position begins and ends."""
    first, start = der[at + 1], at + 2
    if first < _LONG:
        return start, start + first
    count = first - _LONG
    if not 0 < count <= _MAX_LENGTH_BYTES:
        raise ValueError("length")
    end = start + count
    return end, end + int.from_bytes(der[start:end], "big")


def _inside(der: bytes, at: int) -> int:
    return _span(der, at)[0]


def _after(der: bytes, at: int) -> int:
    return _span(der, at)[1]


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
