"""Refusals in Triton's words."""

from __future__ import annotations

import pytest

from ext_proc.routing.values.refusal import RefusalKind, unknown_in_triton

WRONG = "failed to get model version from specified version string '{}' (details: stol)"


@pytest.mark.parametrize(
    ("model", "version", "served", "kind", "text"),
    [
        ("m", None, False, "unknown-model", "Request for unknown model: 'm' is not found"),
        ("m", "3", False, "unknown-model", "Request for unknown model: 'm' is not found"),
        (
            "m",
            "9",
            True,
            "unknown-version",
            "Request for unknown model: 'm' version 9 is not found",
        ),
        ("\ud800", None, False, "unknown-model", "Request for unknown model: '?' is not found"),
        ("m", "x", False, "bad-request", f"{WRONG.format('x')}, "),
        ("m", "9" * 5000, True, "bad-request", f"{WRONG.format('9' * 5000)}, "),
        ("m", "-3", True, "bad-request", "invalid model version specified '-3' , "),
        ("m", str(-(2**63) - 1), True, "bad-request", f"{WRONG.format(-(2**63) - 1)}, "),
    ],
)
def test_what_is_not_there_is_refused_as_triton_says_it(model, version, served, kind, text):
    """Recorded of Triton 2.51, which ``tests/e2e/test_differential.py`` asks again."""
    refusal = unknown_in_triton(model, version, served=served)
    if kind == "bad-request":
        text += "version should be an integral value > 0"
    assert (refusal.kind, refusal.message) == (RefusalKind(kind), text)
