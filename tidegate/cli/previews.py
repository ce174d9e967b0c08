"""What a dry run tells: channels, effect on connections, what remains of each variant. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tidegate_api.admin.v1.admin_pb2 import ChangePreview


def data(found: ChangePreview) -> dict[str, Any]:
    """Return what a change would do."""
    return {
        "channels": list(found.channels),
        "drains": list(found.drains),
        "warms": list(found.warms),
        "draining": [
            {
                "endpoint": each.endpoint,
                "in_flight": each.in_flight if each.HasField("in_flight") else None,
            }
            for each in found.draining
        ],
        "remaining": [
            {
                "pool": each.pool,
                "variant": each.variant,
                "weight": each.weight,
                "weight_before": each.weight_before,
                "replicas": each.replicas,
                "usable": each.usable,
                "usable_before": each.usable_before,
                "capacity": each.capacity,
                "capacity_before": each.capacity_before,
            }
            for each in found.remaining
        ],
    }


def lines(found: ChangePreview) -> Iterator[str]:
    """Yield what a dry run tells: channels, effect on connections, what remains."""
    yield f"it would be sent over {', '.join(found.channels) or 'no channel'}"
    if found.drains:
        yield (
            "open connections would drain, each closed once its answers are complete: "
            f"{', '.join(found.drains)} changes"
        )
    else:
        yield "no connection would be closed"
    if found.warms:
        yield f"Envoy would open new connections to the replicas of {', '.join(found.warms)}"
    for one in found.draining:
        known = one.HasField("in_flight")
        count = str(one.in_flight or "none") if known else "an unknown number"
        yield f"{one.endpoint} would get no new requests; in flight on it: {count}"
    for each in found.remaining:
        was = "" if each.usable == each.usable_before else f" (now {each.usable_before})"
        line = (
            f"pool {each.pool}: variant {each.variant} would have {each.usable} of"
            f" {each.replicas} replicas usable{was}, weight {each.weight}"
        )
        if each.usable_before and each.usable != each.usable_before:
            line += f", {each.capacity / each.capacity_before:.0%} of its capacity"
        if each.weight and not each.usable:
            line += ": its requests would be refused"
        yield line
