"""Clients: who sends a request, as far as Envoy vouches for it.

Rules:

1. A client with a certificate that the listener has verified is named by it: its URI, else its
   subject, else its DNS name.
2. Any other client is its network: one IPv4 address, or the /64 of an IPv6 address, which is what
   one subscriber is given. Behind a proxy that the listener trusts the address is the one that this
   proxy reports, otherwise all clients of a proxy are one.
3. Tokens (JWT) name no client: Envoy verifies them behind the picker.
4. A client is known by at most ``MAX_NAME`` characters. It is compared, never logged.

Source: Envoy's attributes, https://www.envoyproxy.io/docs/envoy/latest/intro/arch_overview/advanced/attributes.
"""

from __future__ import annotations

import ipaddress
from functools import lru_cache
from hashlib import blake2b
from typing import Final

MAX_NAME: Final = 128
_NETWORKS: Final = 4096
"""IPv6 addresses whose networks are cached."""
_SUBSCRIBER: Final = 64
"""Bits of an IPv6 address that name one subscriber."""


def client_named(name: str) -> str:
    """Return a client by the name in its certificate; a long name becomes a digest."""
    if len(name) <= MAX_NAME:
        return name
    return blake2b(name.encode(errors="surrogatepass"), digest_size=16).hexdigest()


def client_at(address: str) -> str | None:
    """Return a client by its ``ip:port`` or ``[ip]:port``; ``None`` = no IP address."""
    host = address.rpartition(":")[0]
    first = host[:1]
    if first.isdigit():
        return host
    return _network(host) if first == "[" else None


@lru_cache(maxsize=_NETWORKS)
def _network(host: str) -> str | None:
    try:
        found = ipaddress.IPv6Address(host[1:-1])
    except ValueError:
        return None
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(found), _SUBSCRIBER), strict=False))
