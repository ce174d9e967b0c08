"""Requests for which there was no pick: counted by reason, and logged once for each.

Rules:

1. Reasons are those of `REASONS`; another one counts as ``other``. So labels and log are bounded.
2. The first request of a reason is logged as a warning with the remedy; later ones only count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog

from ext_proc.observability.counts import Counts

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

REASONS: Final = {
    "no-pools": "no pools are known yet; see --xds or --fleet",
    "unknown-cluster": "the route leads to a pool that this picker does not know, or no longer",
    "no-pool": "the request names no model and no pool is the default for HTTP;"
    " mark one with `default: true`",
    "no-body": "the proxy sent no body although the picker waits for one;"
    " let the filter allow mode_override, or announce a body mode",
    "ungated": "the control server is older than the picker: upgrade it",
    "too-late": "the body came first and a replica had been chosen already; send request headers,"
    " or hold them with envoy.filters.http.buffer behind ext_proc, in mode BUFFERED",
    "overloaded": "the picker's CPU does not suffice; give it more workers (--workers)",
    "failed": "the picker could not handle the stream; see the errors before this",
}
"""Reasons and what to do about them."""
OTHER: Final = "other"

_log = structlog.stdlib.get_logger("ext_proc.passes")


class Passes:
    """Counts requests without a pick; see the module's rules.

    Args:
        registry: Registry of the metric.
        required: Such requests are refused with 503.
    """

    def __init__(self, registry: CollectorRegistry, *, required: bool = False) -> None:
        self._counts = Counts(
            "tidegate_picker_passes",
            "Requests without a pick: left to the proxy's own balancing, or refused"
            " (--require-pick).",
            ["pool", "reason"],
            registry,
        )
        self.required = required
        self._by_reason: dict[str, int] = {}

    def add(self, reason: str, pool: str = "") -> None:
        """Count a request; log the first one of a reason.

        Args:
            reason: Why there is no pick.
            pool: Its pool; empty = not known.
        """
        known = reason if reason in REASONS else OTHER
        self._counts.add((pool, known))
        before = self._by_reason.get(known, 0)
        self._by_reason[known] = before + 1
        if before:
            return
        remedy = REASONS.get(known, "")
        if self.required:
            _log.warning("request_refused_without_pick", reason=known, remedy=remedy)
        else:
            _log.warning("request_passed", reason=known, remedy=remedy)

    def by_reason(self) -> dict[str, int]:
        """Return the counts since the start, of the reasons that occurred."""
        return dict(self._by_reason)

    def state(self) -> dict[str, object]:
        """Return counts and setting, ready for JSON."""
        return {"required": self.required, "by_reason": self.by_reason()}
