"""Input of every phase: the running stack, its clients and the amount of traffic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import aiohttp

from tidegate.demo.clients import fetch_all
from tidegate.demo.counters import ReplicaCounters, read_counts

if TYPE_CHECKING:
    from tidegate.demo.clients import Clients
    from tidegate.demo.operator import Operator
    from tidegate.stack.local import LocalStack
    from tidegate.stack.tritons.replica import TritonReplica

LLM_POOL: Final = "llm"
STABLE: Final = "stable"
CANARY: Final = "canary"
PAGE_TIMEOUT_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Scene:
    """A running stack with its clients."""

    stack: LocalStack
    clients: Clients
    operator: Operator
    pages: aiohttp.ClientSession
    """HTTP session for Prometheus and debug pages, outside the data path."""
    requests: int
    """Requests of the largest load; other loads are proportional."""

    @property
    def replicas(self) -> tuple[TritonReplica, ...]:
        """All replicas."""
        return tuple(self.stack.replicas)

    @property
    def stable(self) -> tuple[TritonReplica, ...]:
        """The replicas of the stable variant."""
        return tuple(one for one in self.replicas if one.variant == STABLE)

    @property
    def picker_url(self) -> str:
        """URL of the picker's pages, without a trailing slash."""
        return f"http://{self.stack.picker_metrics}"

    def variant_of(self, replica: str) -> str:
        """Return the variant of a replica by name."""
        return next(one.variant for one in self.replicas if one.name == replica)

    async def counts(self) -> dict[str, ReplicaCounters]:
        """Return the current counters of each replica."""
        pages = await fetch_all(self.pages, [one.metrics_url for one in self.replicas])
        return {one.name: read_counts(page) for one, page in zip(self.replicas, pages, strict=True)}


def page_session() -> aiohttp.ClientSession:
    """Return an HTTP session for Prometheus and debug pages."""
    return aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=PAGE_TIMEOUT_S))
