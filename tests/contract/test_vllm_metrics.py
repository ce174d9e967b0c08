"""A recorded page of a real vLLM is read as meant."""

from __future__ import annotations

from pathlib import Path

from ext_proc.routing.values.reading import Reading
from ext_proc.telemetry.dialects import ModelVersion, read_all

FOLDER = Path(__file__).parent / "fixtures" / "vllm-0.32.0"
PAGE = (FOLDER / "metrics.txt").read_text()


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
            prompt_tokens=560,
            prompts=3,
            first_tokens=3,
            first_tokens_s=0.06074643135070801,
        ),
    )
    assert page.successes == {ModelVersion("tiny", None): 3}


def test_a_sleeping_engine():
    """After `/sleep` its health probe was 200 still, and a completion got no answer in 5 s."""
    (reading,) = read_all((FOLDER / "metrics-asleep.txt").read_text(), at=1.0).readings
    assert (reading.asleep, reading.queued, reading.running) == (True, 0, 0)


def test_requests_that_wait_for_an_adapters_slot():
    """With one slot, two requests of a second adapter are deferred, whatever room there is."""
    (reading,) = read_all((FOLDER / "metrics-lora.txt").read_text(), at=1.0).readings
    assert (reading.running, reading.queued, reading.deferred) == (3, 2, 2)
    assert (reading.adapters, reading.adapter_slots, reading.asleep) == ({"a"}, 1, False)
