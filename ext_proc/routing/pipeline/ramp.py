"""Ramp: Envoy's slow-start formula for a new replica, applied by the picker.

Envoy's own slow start has no effect on a host that the picker selects, so the picker applies the
same formula (``envoy.extensions.load_balancing_policies.common.v3.SlowStartConfig``)::

    factor = max(min_weight, (max(age, 1 s) / window) ** (1 / aggression))   while age < window
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ext_proc.routing.values.settings import SlowStart

MIN_AGE_S: Final = 1.0
"""Envoy's minimum of the age; it also covers a joining time in the future by a skewed clock."""


def factor(slow_start: SlowStart, joined_unix_s: float | None, unix_now: float) -> float:
    """Return the share of its weight that a replica may use.

    Args:
        slow_start: The pool's slow-start settings.
        joined_unix_s: When the replica joined, wall-clock seconds; ``None`` = it is warm.
        unix_now: Wall-clock seconds.

    Returns:
        A number in (0, 1]; 1 = warm.
    """
    if joined_unix_s is None:
        return 1.0
    age = max(unix_now - joined_unix_s, MIN_AGE_S)
    if age >= slow_start.window_s:
        return 1.0
    risen = float((age / slow_start.window_s) ** (1.0 / slow_start.aggression))
    # The fleet file allows a minimum of 0 %. Loads are divided by the factor, so it stays above 0.
    return max(slow_start.min_weight, risen, 1e-3)
