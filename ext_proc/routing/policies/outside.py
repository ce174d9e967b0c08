"""Policies of other packages: what they are offered, and what is expected of them.

Rules:

1. The interface has a version, ``INTERFACE``. A policy states the one that it was written for, and
   is refused at the start where it differs. What is not in ``Offer`` may change at any time.
2. A policy is made once per pool and sees every eligible candidate. It gets copies: what it does
   to them changes no decision but by its prices.
3. Prices are a number per candidate, within ``MAX_PRICE`` of 0. Where a policy raises or returns
   anything else, least-in-flight decides; its state counts that and has the latest reason, and the
   first one is told to ``on_failure``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from ext_proc.routing.policies.base import Policy
from ext_proc.routing.policies.least_in_flight import LeastInFlight

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ext_proc.routing.state.candidates import Candidate, SchedulingContext
    from ext_proc.routing.values.request import Request
    from ext_proc.routing.values.rng import Rng

INTERFACE: Final = 1
"""Version of ``Offer`` and ``OutsidePolicy``."""
REASON: Final = "outside"
"""Label of the decisions of policies of other packages."""
MAX_REASON: Final = 300
MAX_PRICE: Final = 1e100
"""Sums and differences of prices stay finite."""


class Offer(NamedTuple):
    """One request and the replicas that may have it; the lists are parallel to ``candidates``."""

    request: Request
    """``pool``, ``protocol``, ``headers``, and of ``features`` ``model``, ``version``,
    ``session``, ``adapter``, ``priority``, ``max_tokens``, ``streaming``."""
    candidates: tuple[Candidate, ...]
    """At least one, each with ``key.id``, ``address``, ``variant``, ``zone``, ``capacity``, and
    ``position``, its index in the pool."""
    pending: tuple[float, ...]
    """Requests on each, those of other clients included where they are known."""
    work: tuple[float, ...]
    """Input tokens that we have in flight on each and that it does not have cached."""
    strength: tuple[float, ...]
    """Capacity of each, above 0."""
    matched: tuple[int, ...]
    """Leading blocks of the prompt that each probably has cached."""
    blocks: int
    """Whole blocks of the prompt; 0 = unknown."""
    tokens: float | None
    """Tokens of the prompt; ``None`` = unknown."""
    now: float
    """Monotonic seconds."""
    rng: Rng
    """The source of randomness."""


class OutsidePolicy(Protocol):
    """A policy of another package; ``picked`` may be missing."""

    interface: int
    """``INTERFACE`` when it was written."""

    def prices(self, offer: Offer) -> Sequence[float]:
        """Return a price per candidate, lower is better; change nothing but ``offer.rng``."""
        ...

    def picked(self, offer: Offer, index: int) -> object:
        """Note that the candidate at ``index`` got the request."""
        ...


class Outside(Policy):
    """A policy of another package, as the router calls it.

    Args:
        made: The policy.
        on_failure: Called with the reason of the first failure.
    """

    def __init__(
        self, made: OutsidePolicy, on_failure: Callable[[str], None] = lambda _: None
    ) -> None:
        self._made = made
        self._on_failure = on_failure
        self._least = LeastInFlight()
        self._failures = 0
        self._reason = ""

    def prices(self, context: SchedulingContext) -> Sequence[float]:
        """Return the policy's prices, or those of least-in-flight (rule 3)."""
        try:
            prices = [float(price) for price in self._made.prices(_offer(context))]
        except Exception as error:  # noqa: BLE001 - of another's code
            return self._instead(context, f"{type(error).__name__}: {error}")
        wanted = len(context.candidates)
        if len(prices) != wanted:
            return self._instead(context, f"{len(prices)} prices for {wanted} candidates")
        for price in prices:
            if not -MAX_PRICE <= price <= MAX_PRICE:
                return self._instead(context, f"{price} is no price")
        return prices

    def picked(self, context: SchedulingContext, index: int) -> str:
        """Tell the policy; return ``outside``."""
        try:
            picked = getattr(self._made, "picked", None)
            if picked is not None:
                picked(_offer(context), index)
        except Exception as error:  # noqa: BLE001 - of another's code
            self._note(f"{type(error).__name__}: {error}")
        return REASON

    def describe(self, now: float) -> Mapping[str, object]:
        """Return how often least-in-flight decided instead, and why the last time."""
        del now
        return {"failures": self._failures, "reason": self._reason}

    def _instead(self, context: SchedulingContext, reason: str) -> Sequence[float]:
        self._note(reason)
        return self._least.prices(context)

    def _note(self, reason: str) -> None:
        self._failures += 1
        self._reason = reason[:MAX_REASON]
        if self._failures == 1:
            self._on_failure(self._reason)


def _offer(context: SchedulingContext) -> Offer:
    return Offer(
        context.request,
        tuple(context.candidates),
        tuple(context.pending),
        tuple(context.work),
        tuple(context.strength),
        tuple(context.matched),
        context.blocks,
        context.tokens,
        context.now,
        context.rng,
    )
