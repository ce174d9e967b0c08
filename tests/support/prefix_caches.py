"""Two replicas whose prefix caches are indexed, and an index to which one of them reports."""

from __future__ import annotations

from ext_proc.routing.cache.prefix_index import PrefixIndex
from ext_proc.routing.values.pool import EndpointKey

A, B = (EndpointKey(name, 1) for name in "ab")


def reporting(**kwargs: float) -> PrefixIndex:
    """Return an index in which A reports all that it holds and B does not report."""
    index = PrefixIndex(**kwargs)
    index.reports.set_reporting(A, complete=True)
    return index
