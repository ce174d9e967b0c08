"""co-batch: a burst for one model goes to one replica, so that its dynamic batcher fills.

Formula: ``price = -1`` for the replica that got a request for the same model and version less
than 0.5 ms ago, while its group has fewer than 4 members and the replica fewer than 8 requests in
flight per strength; else that of least-in-flight (above 0).
Inputs: time; own ledger; fresh queues; capacity.
Use it for: classic models with Triton's dynamic batching and more than some 1,000 requests/s.
Not for: engines that batch in flight (vLLM, TensorRT-LLM): a burst there is best spread.

No request is held: the window only decides where the next one goes. Guarantee: a group never has
more than 4 members, and none outlives its window.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from ext_proc.routing.policies.base import Policy
from ext_proc.routing.policies.least_in_flight import LeastInFlight

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ext_proc.routing.policies.base import Offer
    from ext_proc.routing.types import EndpointKey

WINDOW_S: Final = 0.0005
GROUP: Final = 4
BUSY: Final = 8.0
MAX_GROUPS: Final = 1_024
"""Groups kept; models and versions beyond them start afresh."""


class _Group(NamedTuple):
    key: EndpointKey
    members: int
    until: float


class CoBatch(Policy):
    """The open group of each variant, model and version."""

    def __init__(self) -> None:
        self._groups: dict[tuple[str, str | None, str | None], _Group] = {}
        self._least = LeastInFlight()

    def prices(self, offer: Offer) -> Sequence[float]:
        """Return the price of least-in-flight, but -1 for the replica of the open group."""
        prices = self._least.prices(offer)
        group = self._open(offer)
        if group is None:
            return prices
        return [
            -1.0 if seat.key == group.key and pending < BUSY * strength else price
            for seat, price, pending, strength in zip(
                offer.seats, prices, offer.pending, offer.strength, strict=True
            )
        ]

    def _open(self, offer: Offer) -> _Group | None:
        group = self._groups.get(_kind(offer))
        full = group is None or group.members >= GROUP or offer.now > group.until
        return None if full else group

    def picked(self, offer: Offer, index: int) -> str:
        """Join or open a group; the label is ``batch``, or ``least`` for the first member."""
        group, key = self._open(offer), offer.seats[index].key
        if group is not None and group.key == key:
            self._groups[_kind(offer)] = group._replace(members=group.members + 1)
            return "batch"
        if len(self._groups) >= MAX_GROUPS:
            self._groups.clear()
        self._groups[_kind(offer)] = _Group(key, 1, offer.now + WINDOW_S)
        return "least"


def _kind(offer: Offer) -> tuple[str, str | None, str | None]:
    features = offer.request.features
    return offer.variant, features.model, features.version
