"""Which requests may come from a browser: those of pages that this server itself could serve. Pure.

A page of another site can let a browser send requests to addresses that only the browser's machine
reaches, and can let its own name point to such an address (DNS rebinding).

Rules:

1. ``Host`` is an IP address, ``localhost`` or a name that the server was given. A page whose name
   was pointed here has another one.
2. ``Origin``, if there is one, is that of ``Host``: only browsers send it.
3. ``Sec-Fetch-Site``, if there is one, is ``same-origin`` or ``none``.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Collection

_OWN_SITES: Final = frozenset({"same-origin", "none"})
_SCHEMES: Final = ("http", "https")


def foreign(
    host: str | None, origin: str | None, site: str | None, names: Collection[str] = ()
) -> str | None:
    """Return why a request is refused, in one sentence; ``None`` if it is not.

    Args:
        host: The header ``Host``.
        origin: The header ``Origin``; ``None`` = there is none.
        site: The header ``Sec-Fetch-Site``; ``None`` = there is none.
        names: Names besides ``localhost`` that may be the host, in lower case.
    """
    named = _host_of(f"//{host or ''}")
    if named is None or not (named == "localhost" or named in names or _is_address(named)):
        return "the host of the request is none of this server; --admin-host gives it another name"
    if origin is not None and origin not in {f"{scheme}://{host}" for scheme in _SCHEMES}:
        return "requests of pages of another origin are not taken"
    if site is not None and site not in _OWN_SITES:
        return "requests of pages of another site are not taken"
    return None


def _host_of(url: str) -> str | None:
    try:
        found = urlsplit(url)
        _ = found.port  # raises if it is no number
    except ValueError:
        return None
    if found.path or found.query or found.fragment or "@" in found.netloc:
        return None
    return found.hostname


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
