"""What a real Triton tells of its models, and what the picker makes of it.

See ``support.record_placement``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ext_proc.blame.evidence import Attempt, Ended
from ext_proc.blame.law import lacks_model
from ext_proc.feedback.placement.index import read_grpc_index, read_index
from ext_proc.routing.values.listing import Listing, PlacementState, Row
from support.record_mistakes import unpacked
from support.record_placement import MISSING

FILE = Path(__file__).parent / "fixtures" / "triton-2.51.0" / "placement.json"
RECORDED: dict[str, Any] = json.loads(FILE.read_text())
READY, _, UNAVAILABLE = PlacementState
LISTING = Listing(
    1.0,
    (
        Row("broken", "", UNAVAILABLE, "not loaded"),
        Row("loaded", "1", READY),
        Row("never", "", UNAVAILABLE, "not loaded"),
        Row("unloaded", "1", UNAVAILABLE, "unloaded"),
        Row("vision", "1", READY),
    ),
)


def test_both_protocols_tell_the_same() -> None:
    """Loaded, unloaded, never loaded, and one whose load failed."""
    assert read_index(unpacked(RECORDED["index"]), 1.0) == LISTING
    assert read_grpc_index(unpacked(RECORDED["grpc_index"]), 1.0) == LISTING


@pytest.mark.parametrize("name", [*MISSING, "version"])
def test_a_model_that_is_missing_is_404(name: str) -> None:
    """Whatever the reason; a version that is missing too."""
    answer = RECORDED["http"][name]
    assert unpacked(answer["body"]).startswith(b'{"error":"Request for unknown model: ')
    attempt = Attempt("10.0.0.1:8000", Ended.DONE, True, True, True, answer["status"])
    assert lacks_model(attempt)


@pytest.mark.parametrize("name", MISSING)
def test_a_model_that_is_missing_is_not_found(name: str) -> None:
    """The same words, as status 5."""
    answer = RECORDED["grpc"][name]
    assert answer["message"].startswith("Request for unknown model: ")
    status = answer["grpc_status"]
    assert lacks_model(Attempt("10.0.0.1:8001", Ended.DONE, True, True, False, 200, status))
