"""co-batch: sends a burst for one model to one replica, so that its dynamic batcher fills.

Formula: ``price = -1`` for the replica that got a request for the same model and version less
than 0.5 ms ago, while its group has fewer than 4 members and the replica fewer than 8 requests in
flight per strength; otherwise the price of least-in-flight (above 0).
Inputs: time; own ledger; fresh queues; capacity; the model's request rate.
Default: ``co_batch_hold_ms`` 0.
Use it for: classic models with Triton's dynamic batching and more than about 1,000 requests/s.
Not for: engines with in-flight batching (vLLM, TensorRT-LLM), where a burst is best spread.

By default no request is held: the window only decides where the next request goes. If the pool sets
a hold ``H``, the members of a group are released together (``holds``), provided that another member
is likely at the model's rate over the last second (``rate * H >= 0.5``). Streams, sequences,
requests with a priority, and requests whose timeout would mostly be spent waiting for a replica are
neither held nor grouped.

Guarantee: a group never has more than 4 members, and never exists longer than its window.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from ext_proc.routing.policies.base import HELD, Policy
from ext_proc.routing.policies.least_in_flight import LeastInFlight
from ext_proc.routing.values.request import Form

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ext_proc.routing.state.candidates import SchedulingContext
    from ext_proc.routing.values.pool import EndpointKey, Pool

WINDOW_S: Final = 0.0005
GROUP: Final = 4
BUSY: Final = 8.0
MAX_GROUPS: Final = 1_024
"""Maximum number of kinds tracked; beyond it all groups and rates are reset."""
LIKELY: Final = 0.5
"""Minimum number of further requests expected within a hold for it to be worth the wait."""
MOST_OF_TIMEOUT: Final = 0.7
"""Share of a request's timeout that the expected wait for a replica may use."""
_STREAMS: Final = (Form.GRPC_STREAM, Form.GENERATE_STREAM)

_Kind = tuple[str, str | None, str | None]
"""Variant, model and version."""


class _Group(NamedTuple):
    key: EndpointKey
    members: int
    until: float


class _Rate:
    """Arrivals in about the last second: this second's, plus a share of the previous second's."""

    __slots__ = ("_before", "_count", "_second")

    def __init__(self) -> None:
        self._second = self._before = self._count = 0

    def add(self, now: float) -> float:
        """Count one arrival and return the rate before it, per second."""
        second = int(now)
        if second != self._second:
            self._before = self._count if second == self._second + 1 else 0
            self._count, self._second = 0, second
        rate = self._before * (second + 1 - now) + self._count
        self._count += 1
        return rate


class CoBatch(Policy):
    """The open group and the rate of each variant, model and version."""

    def __init__(self) -> None:
        self._groups: dict[_Kind, _Group] = {}
        self._rates: dict[_Kind, _Rate] = {}
        self._least = LeastInFlight()
        self._hold_s = 0.0

    def configure(self, pool: Pool) -> None:
        """Take the pool's hold time."""
        self._hold_s = pool.co_batch_hold_s

    def prices(self, context: SchedulingContext) -> Sequence[float]:
        """Return the price of least-in-flight, but -1 for the replica of the open group."""
        prices = self._least.prices(context)
        group = self._open(context) if _may_wait(context) else None
        if group is None:
            return prices
        return [
            -1.0 if candidate.key == group.key and pending < BUSY * strength else price
            for candidate, price, pending, strength in zip(
                context.candidates, prices, context.pending, context.strength, strict=True
            )
        ]

    def _open(self, context: SchedulingContext) -> _Group | None:
        group = self._groups.get(_kind(context))
        full = group is None or group.members >= GROUP or context.now > group.until
        return None if full else group

    def picked(self, context: SchedulingContext, index: int) -> str:
        """Join or open a group.

        The label is ``held`` if the group is held for further members, otherwise ``batch``, or
        ``least`` for the first member.
        """
        if not _may_wait(context):
            return "least"
        kind, key = _kind(context), context.candidates[index].key
        group = self._open(context)
        if len(self._rates) >= MAX_GROUPS and kind not in self._rates:
            self._rates.clear()
            self._groups.clear()
        rate = self._rates.setdefault(kind, _Rate()).add(context.now)
        held = self._hold_s > 0.0 and rate * self._hold_s >= LIKELY
        if group is not None and group.key == key:
            self._groups[kind] = group._replace(members=group.members + 1)
            return HELD if held else "batch"
        self._groups[kind] = _Group(key, 1, context.now + WINDOW_S)
        return HELD if held else "least"


def _kind(context: SchedulingContext) -> _Kind:
    features = context.request.features
    return context.variant, features.model, features.version


def _may_wait(context: SchedulingContext) -> bool:
    """Return whether a request can be batched and its timeout leaves time for it."""
    features = context.request.features
    if features.streaming or features.form in _STREAMS or features.sequence_id is not None:
        return False
    if features.timeout_s is not None:
        expected = (min(context.pending) + 1.0) * context.latency_model.service_s
        if expected > MOST_OF_TIMEOUT * features.timeout_s:
            return False
    return not features.priority
