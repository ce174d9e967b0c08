"""What a source of endpoints reports: values without I/O, and the protocol that sources follow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_ENDPOINTS: Final = 4096
"""Most endpoints of one observation; a source that sees more reports trouble instead."""


@dataclass(frozen=True, slots=True)
class Found:
    """One endpoint as a source sees it. At least one of the addresses is set."""

    identity: str
    """Stable across changes of the address where the source has such a name (a pod, the target of
    an SRV record), else the address."""
    http: str | None
    """``ip:port`` of its HTTP port, IPv6 in brackets."""
    grpc: str | None
    """``ip:port`` of its gRPC port, IPv6 in brackets."""
    variant: str | None = None
    """Its variant; ``None`` is the pool's first."""
    zone: str | None = None
    """Where it stands; ``None`` if the source does not say."""
    device: str | None = None
    """What it computes on; ``None`` if the source does not say."""
    serving: bool = True
    """The source holds it for able to serve. One that never was is not admitted."""
    terminating: bool = False
    """It is about to end: no new work."""


@dataclass(frozen=True, slots=True)
class Observation:
    """The whole answer of one source at one time. A failed look is no observation."""

    endpoints: tuple[Found, ...]
    """All endpoints that the source knows, at most ``MAX_ENDPOINTS``."""
    final: bool = False
    """What it does not list was taken out by an operator, and leaves without a hold."""
    low_objectives: tuple[str, ...] = ()
    """Names of InferenceObjectives whose requests are in the lower band, sorted."""


class Source(Protocol):
    """Looks for endpoints until it is cancelled."""

    async def run(
        self, found: Callable[[Observation], None], trouble: Callable[[str], None]
    ) -> None:
        """Report what is found.

        Args:
            found: Called with the whole answer, first as soon as there is one, then after each
                change; repeated equal answers do no harm.
            trouble: Called with the reason, in one sentence, when a look failed; what was found
                last stays in force. Called with an empty text when looks succeed again.
        """
