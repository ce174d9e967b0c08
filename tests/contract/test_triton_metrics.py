"""A recorded Triton metrics page is read as meant."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from ext_proc.routing.values.reading import Reading
from ext_proc.telemetry.dialects import BadPage, ModelVersion, read_all

PAGE = (Path(__file__).parent / "fixtures" / "triton-2.51.0" / "metrics.txt").read_text()


def test_recorded_page():
    """The page's model, its cache and its finished requests are read; the rest is unknown."""
    page = read_all(PAGE, at=1.0)
    assert page.readings == (
        Reading(at=1.0, model="echo", version="1", kv_used=0.03, kv_block_tokens=64, kv_blocks=100),
    )
    assert page.successes == {ModelVersion("echo", "1"): 3}


def test_recorded_page_without_an_engine():
    """Without the engine's gauges Triton's own queue counts."""
    core = "".join(line for line in PAGE.splitlines(keepends=True) if "trt_llm" not in line)
    assert read_all(core, at=1.0).readings == (
        Reading(at=1.0, model="echo", version="1", queued=0),
    )


@given(st.data())
def test_mutated_pages(data):
    """A page cut or changed anywhere is read or refused."""
    end = data.draw(st.integers(0, len(PAGE)))
    place = data.draw(st.integers(0, len(PAGE)))
    text = PAGE[:place] + data.draw(st.text(max_size=3)) + PAGE[place:]
    try:
        read_all(text[: max(end, 1)], at=1.0)
    except BadPage as error:
        assert "line" in str(error)  # noqa: PT017 - either outcome is right
