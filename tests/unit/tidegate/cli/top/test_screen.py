"""The screens of ``top``: whatever the size of the terminal, the important is on them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.cli.top.model import Glance, ReplicaRow, Sort, VariantRow, glance
from tidegate.cli.top.screen import KEYS, screen
from tidegate_api.admin.v1 import admin_pb2 as api

STATUS = api.GetStatusResponse(
    verdict="DEGRADED",
    why="pool llm: r2 is not ready",
    revision=7,
    settled=True,
    reports={"picker-1": 1.0},
    pools=[
        api.PoolStatus(
            pool="llm",
            refused={"no-pick": 3},
            variants=[
                api.VariantStatus(
                    variant="stable",
                    weight=90,
                    replicas=2,
                    usable=1,
                    seconds=60,
                    requests=120,
                    errors=4,
                    first_byte_p50=0.01,
                    duration_p50=0.02,
                    duration_p99=1.5,
                ),
                api.VariantStatus(variant="canary", weight=10, replicas=1, usable=1, seconds=60),
            ],
        ),
        api.PoolStatus(pool="vision", variants=[api.VariantStatus(variant="stable", weight=1)]),
    ],
)
REPLICAS = [
    api.ReplicaStatus(
        pool="llm",
        endpoint="r1",
        variant="stable",
        state="in use",
        usable=True,
        in_flight=2,
        requests=120,
        errors=1,
        age_seconds=0.3,
        counted=True,
        minute=api.RequestTimes(requests=119, duration=0.5),
        peers=api.RequestTimes(requests=40, duration=0.1),
        hour=api.RequestTimes(requests=900, duration=0.09),
    ),
    api.ReplicaStatus(
        pool="llm",
        endpoint="r2",
        variant="stable",
        state="not ready",
        in_flight=1,
        errors=3,
        counted=True,
    ),
    api.ReplicaStatus(
        pool="llm", endpoint="r3", variant="canary", state="in use", usable=True, counted=True
    ),
]
FOUND = glance(STATUS, REPLICAS)


def replicas(lines: list[str]) -> list[str]:
    """Return the first words of the replicas' lines."""
    at = next(number for number, line in enumerate(lines) if line.startswith("ENDPOINT"))
    return [line.split()[0] for line in lines[at + 1 :] if line]


def test_a_wide_screen_shows_all() -> None:
    """Verdict, variants with rates and quantiles, replicas with their states."""
    lines = screen(FOUND, 120, 0)
    assert lines[0] == "DEGRADED: pool llm: r2 is not ready"
    assert lines[1] == "revision 7, 0 clients, 3 requests refused in the last minute; by name"
    squeezed = [" ".join(line.split()) for line in lines]
    assert "llm stable 1/2 2.0 4 3 20 ms 1.5 s 10 ms 90" in squeezed
    assert "r1 llm stable in use 2.0 1 2 500 ms 100 ms 90 ms 0.3 s" in squeezed
    assert "r2 llm stable not ready 0.0 3 1 - - - -" in squeezed


def test_what_is_unknown_is_not_0() -> None:
    """A variant is in flight with as much as its replicas, if all are known."""
    lines = [" ".join(line.split()) for line in screen(FOUND, 120, 0)]
    assert "llm canary 1/1 0.0 0 - - - - 10" in lines
    unheard = api.GetStatusResponse()
    unheard.CopyFrom(STATUS)
    unheard.reports["picker-1"] = 99.0
    mute = api.ReplicaStatus(pool="llm", endpoint="r1", variant="stable", state="in use")
    lines = [" ".join(e.split()) for e in screen(glance(unheard, [mute]), 120, 0)]
    assert "llm canary 1/1 - - - - - - 10" in lines
    assert "r1 llm stable in use - - - - - - -" in lines


def test_a_narrow_screen_keeps_names_states_and_errors() -> None:
    """Columns go by importance; words are shortened before that."""
    lines = screen(FOUND, 48, 0)
    title = next(line for line in lines if line.startswith("ENDPOINT"))
    assert title.split() == ["ENDPOINT", "STATE", "REQ/S", "ERRORS", "IN", "FLIGHT"]
    tiny = screen(FOUND, 20, 0)
    assert any(line.startswith("r2") and "not r" in line for line in tiny)


def test_a_low_screen_counts_what_it_leaves_out() -> None:
    """The verdict and the keys stay."""
    lines = screen(FOUND, 100, 10, keys=True)
    assert len(lines) <= 10
    assert lines[0].startswith("DEGRADED")
    assert lines[-1] == KEYS
    assert any("more" in line for line in lines)


@pytest.mark.parametrize(
    ("sort", "reverse", "order"),
    [
        (Sort.NAME, False, ["r1", "r2", "r3"]),
        (Sort.NAME, True, ["r3", "r2", "r1"]),
        (Sort.ERRORS, False, ["r2", "r1", "r3"]),
        (Sort.REQUESTS, False, ["r1", "r2", "r3"]),
        (Sort.IN_FLIGHT, False, ["r1", "r2", "r3"]),
        (Sort.IN_FLIGHT, True, ["r2", "r1", "r3"]),
        (Sort.STATE, False, ["r2", "r1", "r3"]),
        (Sort.P99, False, ["r1", "r2", "r3"]),
    ],
)
def test_rows_are_sorted(sort: Sort, reverse: bool, order: list[str]) -> None:
    """Most first; what is unknown is last either way, and what is left alone is first by state."""
    assert replicas(screen(FOUND, 100, 0, sort, reverse=reverse)) == order


def test_one_pool_can_be_shown_alone() -> None:
    """Others are left out."""
    alone = glance(STATUS, REPLICAS, "vision")
    assert [each.pool for each in alone.variants] == ["vision"]
    assert alone.replicas == []


def test_old_news_say_so() -> None:
    """Who looks must know that it is not now."""
    lines = screen(FOUND, 100, 0, trouble="cannot reach it; shown is what was 6 s ago")
    assert lines[1] == "cannot reach it; shown is what was 6 s ago"


NAMES = st.text(max_size=30)
NUMBERS = st.none() | st.floats(0, 1e6)


@given(
    st.builds(
        Glance,
        verdict=NAMES,
        why=NAMES,
        revision=st.integers(0, 2**63),
        settled=st.booleans(),
        clients=st.integers(0, 10**6),
        refused=st.integers(0, 10**9),
        variants=st.lists(
            st.builds(
                VariantRow,
                pool=NAMES,
                variant=NAMES,
                weight=st.integers(0, 10**6),
                replicas=st.integers(0, 10**6),
                usable=st.integers(0, 10**6),
                rate=st.floats(0, 1e6),
                errors=st.integers(0, 10**9),
                first_byte_p50=NUMBERS,
                p50=NUMBERS,
                p99=NUMBERS,
                in_flight=st.none() | st.integers(0, 10**6),
            ),
            max_size=8,
        ),
        replicas=st.lists(
            st.builds(
                ReplicaRow,
                endpoint=NAMES,
                pool=NAMES,
                variant=NAMES,
                state=NAMES,
                usable=st.booleans(),
                rate=st.floats(0, 1e6),
                errors=st.integers(0, 10**9),
                in_flight=st.none() | st.integers(0, 10**6),
                age_s=NUMBERS,
            ),
            max_size=8,
        ),
    ),
    st.integers(1, 200),
    st.integers(1, 60),
    st.sampled_from(Sort),
    st.booleans(),
)
def test_every_screen_fits(
    found: Glance, width: int, height: int, sort: Sort, reverse: bool
) -> None:
    """Nothing wraps, nothing scrolls, and no name moves the cursor."""
    lines = screen(found, width, height, sort, reverse=reverse, trouble="late", keys=True)
    assert len(lines) <= height
    assert all(len(line) <= width and line.isprintable() for line in lines)
