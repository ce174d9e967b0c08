"""Tenants: on whose behalf a prompt is cached, as a number. Pure.

A tenant is the request's cache salt, else its session; all requests with neither are one tenant.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import xxhash

from ext_proc.routing.cache.prefix_uses import UNKNOWN_TENANT

if TYPE_CHECKING:
    from ext_proc.routing.values.request import Features


def tenant_of(features: Features, seed: int) -> int:
    """Return the tenant of a request: 1 to ``2 ** 63 - 1``, or ``UNKNOWN_TENANT``.

    Args:
        features: Features of the request.
        seed: The fleet's seed, below ``2 ** 64``; outsiders cannot search for equal numbers.
    """
    name = features.salt
    if name is None:
        name = features.session
        if name is None:
            return UNKNOWN_TENANT
    else:
        name = f"\0{name}"
    return xxhash.xxh3_64_intdigest(name.encode("utf-8", "surrogatepass"), seed) >> 1 | 1
