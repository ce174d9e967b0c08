"""Constants of a simulated world of control servers, and what happens to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    pass


SERVERS: Final = 2
MEMBERS: Final = ("etcd-0:1", "etcd-1:1", "etcd-2:1")
WAY_S: Final = 0.001
BEGINS_S: Final = 6.0
"""Clients have the fleet; the script begins."""
AGAIN_S: Final = 1.0
"""What has ended is started again after so long, and an operator tries again."""
ENDS_S: Final = 75.0
"""Longest time from the beginning to the end."""
GONE_S: Final = 2.0
"""After so long a client leaves a server that is stopped."""
LONG_S: Final = 9.0
"""How long a leader is stopped, or cut off: longer than its lease."""
MOST_POINTS: Final = 120
"""Points in which a follower has taken over."""
SKEW_S: Final = 1.0
ADS: Final = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources"
FAULTS: Final = (
    "kill",
    "kill-twice",
    "end",
    "stop",
    "cut",
    "cut-shortly",
    "lose-reply",
    "slow",
    "full",
)
MODEL: Final = "extra"


class BrokenError(AssertionError):
    """What must be true is not."""


class Point(NamedTuple):
    """What happens, and at which point of the script."""

    script: str
    fault: str
    number: int
