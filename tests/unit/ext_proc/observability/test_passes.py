"""Requests without a pick are counted by reason and logged once."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from ext_proc.observability.passes import OTHER, REASONS, Passes


@pytest.mark.parametrize(
    ("required", "event"), [(False, "request_passed"), (True, "request_refused_without_pick")]
)
def test_each_reason_is_logged_once_with_its_remedy(required, event):
    """However many requests follow."""
    passes = Passes(CollectorRegistry(), required=required)
    with capture_logs() as logged:
        for reason in ("no-pools", "no-pool", "no-pools"):
            passes.add(reason)
    assert [(each["event"], each["reason"]) for each in logged] == [
        (event, "no-pools"),
        (event, "no-pool"),
    ]
    assert all(each["remedy"] == REASONS[each["reason"]] for each in logged)
    assert passes.state() == {
        "required": required,
        "by_reason": {"no-pools": 2, "no-pool": 1},
    }


def test_the_label_is_bounded():
    """A reason that is not listed counts under another label."""
    registry = CollectorRegistry()
    passes = Passes(registry)
    for number in range(50):
        passes.add(f"reason {number}")
    assert passes.by_reason() == {OTHER: 50}
    name = "tidegate_picker_passes_total"
    assert registry.get_sample_value(name, {"pool": "", "reason": OTHER}) == 50
