"""Which addresses can be reached from other machines. Pure."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

from tidegate_common.unix import is_unix

if TYPE_CHECKING:
    from collections.abc import Mapping


def is_local(address: str) -> bool:
    """Return whether only this machine can reach a bound ``host:port``.

    A Unix socket is local. A name other than ``localhost`` may be resolved to anything, so it is
    not.
    """
    if is_unix(address):
        return True
    host = address.rpartition(":")[0].strip("[]")
    if host.lower() == "localhost":
        return True
    try:
        found = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(found, "ipv4_mapped", None)
    return (mapped or found).is_loopback


def open_ports(given: Mapping[str, str]) -> str:
    """Return the options that bind addresses which others can reach; empty if there are none.

    Args:
        given: Addresses by option; several of one option are separated by commas.
    """
    return ", ".join(
        f"{option} {each}"
        for option, addresses in given.items()
        for each in addresses.split(",")
        if each and not is_local(each)
    )
