"""DNS look-ups: names to addresses and services, by dnspython.

Source of the records: RFC 1035, RFC 3596 (AAAA), RFC 2782 (SRV). ``/etc/hosts`` is not read. A name
without a final dot is also tried in the domains that ``resolv.conf`` searches.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import dns.asyncresolver
import dns.exception
import dns.rdatatype
import dns.resolver

if TYPE_CHECKING:
    from collections.abc import Sequence

LIFETIME_S: Final = 5.0
"""Longest time for one look-up, all name servers and attempts included."""

MAX_RECORDS: Final = 4096
"""Most records of one answer."""


class LookFailed(Exception):  # noqa: N818 - reads as the sentence it is
    """There is no answer; the message says why."""


class Answer(NamedTuple):
    """What a name stands for."""

    values: tuple[str, ...]
    """Addresses, sorted; empty = DNS says that there are none."""
    ttl_s: float
    """For how long this may be believed."""


class Service(NamedTuple):
    """One SRV record."""

    target: str
    """Without a final dot, in lower case."""
    port: int


class Services(NamedTuple):
    """The SRV records of a name."""

    values: tuple[Service, ...]
    ttl_s: float


class Resolver:
    """Looks names up.

    Args:
        servers: Name servers, address and port; those of ``/etc/resolv.conf`` if empty.
        lifetime_s: Longest time for one look-up, in seconds.
    """

    def __init__(
        self, servers: Sequence[tuple[str, int]] = (), lifetime_s: float = LIFETIME_S
    ) -> None:
        self._servers = tuple(servers)
        self._lifetime_s = lifetime_s
        self._resolver: dns.asyncresolver.Resolver | None = None

    async def addresses(self, name: str) -> Answer:
        """Return the IPv4 and IPv6 addresses of a name.

        Raises:
            LookFailed: One of the two questions has no answer.
        """
        four, six = await asyncio.gather(self._ask(name, "A"), self._ask(name, "AAAA"))
        ttls = [ttl for values, ttl in (four, six) if values]
        values = sorted({record.address for values, _ in (four, six) for record in values})
        return Answer(tuple(values), min(ttls, default=0.0))

    async def services(self, name: str) -> Services:
        """Return the SRV records of a name; none if its only target is the root.

        Raises:
            LookFailed: There is no answer.
        """
        records, ttl = await self._ask(name, "SRV")
        found = {
            Service(target, record.port)
            for record in records
            if (target := record.target.to_text(omit_final_dot=True).lower()) not in {".", ""}
            and record.port
        }
        return Services(tuple(sorted(found)), ttl)

    async def _ask(self, name: str, kind: str) -> tuple[list[Any], float]:
        try:
            answer = await self._configured().resolve(
                name,
                kind,
                raise_on_no_answer=False,
                lifetime=self._lifetime_s,
                search=not name.endswith("."),
            )
        except dns.resolver.NXDOMAIN:
            return [], 0.0
        except (dns.exception.DNSException, OSError, ValueError) as error:
            raise LookFailed(f"{name} {kind}: {_reason(error)}") from None
        records = [] if answer.rrset is None else list(answer.rrset)
        if len(records) > MAX_RECORDS:
            raise LookFailed(f"{name} {kind}: more than {MAX_RECORDS} records")
        return records, float(answer.chaining_result.minimum_ttl)

    def _configured(self) -> dns.asyncresolver.Resolver:
        if self._resolver is None:
            resolver = dns.asyncresolver.Resolver(configure=not self._servers)
            if self._servers:
                resolver.nameservers = [host for host, _ in self._servers]
                resolver.nameserver_ports = dict(self._servers)
            self._resolver = resolver
        return self._resolver


def _reason(error: Exception) -> str:
    if isinstance(error, dns.exception.Timeout):
        return "no name server answers in time"
    if isinstance(error, dns.resolver.NoNameservers):
        return "all name servers failed to answer"
    return str(error).partition("\n")[0][:200] or type(error).__name__
