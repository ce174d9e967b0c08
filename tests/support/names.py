"""A name server on loopback, for UDP and TCP, whose answers a test sets, loses and breaks."""

from __future__ import annotations

import asyncio
import struct
from types import TracebackType
from typing import Any, Self

import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset


class NameServer(asyncio.DatagramProtocol):
    """Answers A, AAAA and SRV.

    ``fault`` is how it answers: nothing = as it should; ``lost``, ``refused`` (SERVFAIL), ``empty``
    (no records), ``missing`` (NXDOMAIN), ``garbage``. ``fault_kind`` = only questions of this type.
    """

    def __init__(self) -> None:
        self.fault = ""
        self.fault_kind = ""
        self.asked = 0
        self._records: dict[tuple[str, str], tuple[list[str], int]] = {}
        self._transport: Any = None
        self._tcp: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        """Listen on one port for both protocols."""
        loop = asyncio.get_running_loop()
        while True:
            self._tcp = await asyncio.start_server(self._stream, "127.0.0.1", 0)
            self.address = self._tcp.sockets[0].getsockname()
            try:
                self._transport, _ = await loop.create_datagram_endpoint(
                    lambda: self, local_addr=self.address
                )
            except OSError:  # another program has the port of the other protocol
                self._tcp.close()
            else:
                return self

    async def __aexit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        """Close the port."""
        self._transport.close()
        if self._tcp is not None:
            self._tcp.close()

    def set(self, name: str, kind: str, values: list[str], ttl: int = 1) -> None:
        """Set the records of a name."""
        self._records[name, kind] = (values, ttl)

    def forget(self, name: str, kind: str) -> None:
        """Remove the records of a name."""
        self._records.pop((name, kind), None)

    def connection_made(self, transport: Any) -> None:
        """Keep the transport."""
        self._transport = transport

    def datagram_received(self, data: bytes, addr: Any) -> None:
        """Answer one question."""
        answer = self._answer(data, 1232)
        if answer is not None:
            self._transport.sendto(answer, addr)

    async def _stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        (length,) = struct.unpack("!H", await reader.readexactly(2))
        answer = self._answer(await reader.readexactly(length), 65_535)
        if answer is not None:
            writer.write(struct.pack("!H", len(answer)) + answer)
            await writer.drain()
        writer.close()

    def _answer(self, data: bytes, most: int) -> bytes | None:
        self.asked += 1
        query = dns.message.from_wire(data)
        question = query.question[0]
        kind = dns.rdatatype.to_text(question.rdtype)
        fault = self.fault if self.fault_kind in ("", kind) else ""
        if fault == "lost":
            return None
        if fault == "garbage":
            return data[:2] + b"\xff" * 30
        answer = dns.message.make_response(query)
        answer.flags |= dns.flags.RA
        name = question.name.to_text().lower()
        known = any(each == name for each, _ in self._records)
        if fault == "refused":
            answer.set_rcode(dns.rcode.SERVFAIL)
        elif fault == "missing" or not known:
            answer.set_rcode(dns.rcode.NXDOMAIN)
        elif fault != "empty":
            values, ttl = self._records.get((name, kind), ([], 0))
            if values:
                answer.answer.append(dns.rrset.from_text(question.name, ttl, "IN", kind, *values))
        wire = answer.to_wire(max_size=65_535)
        if len(wire) > most:
            answer.answer.clear()
            answer.flags |= dns.flags.TC
            wire = answer.to_wire()
        return wire
