"""A recorded page of a real vLLM is read as meant."""

from __future__ import annotations

from pathlib import Path

from ext_proc.routing.values.reading import Reading
from ext_proc.telemetry.dialects import ModelVersion, read_all

PAGE = (Path(__file__).parent / "fixtures" / "vllm-0.32.0" / "metrics.txt").read_text()


def test_recorded_page():
    """Queue, cache and its configuration are read; three requests had finished."""
    page = read_all(PAGE, at=1.0)
    assert page.readings == (
        Reading(
            at=1.0,
            model="tiny",
            queued=0,
            running=0,
            deferred=0,
            asleep=False,
            kv_used=0,
            kv_block_tokens=32,
            kv_blocks=21631,
            reused_blocks=5,
        ),
    )
    assert page.successes == {ModelVersion("tiny", None): 3}
