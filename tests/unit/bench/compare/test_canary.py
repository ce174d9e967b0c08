"""The simulated canaries: their worlds, their rules, their table."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Self

import numpy as np
import pytest

from bench.compare import canary
from bench.compare.canary import (
    COLD,
    CONTROLLERS,
    KNOWN_MIN,
    ODDS,
    Sessions,
    TimesOfRuns,
    World,
    by_stratum,
    controlled,
    found,
    margins,
    measured,
    quick_ratio,
    strata_of,
    stress,
    table,
    upper,
)
from ext_proc.canary import stratum_of
from xds_server.applications.canary.evidence import DEFAULT
from xds_server.applications.canary.statistics import times
from xds_server.applications.canary.statistics.noncentral import log_likelihood_ratio
from xds_server.applications.canary.statistics.times import QUANTILES, TimeCell, TimeEvidence

if TYPE_CHECKING:
    from pathlib import Path


def test_a_minute_counts_each_failing_session_once() -> None:
    """In the arm that it began in, with the shares in force then and when it failed."""
    drawn = Sessions(World("w", 20.0, 0.1, 0.1, requests=30), 1)
    minutes = [drawn.minute(now, 0.5) for now in range(40)]
    failures = [minute.failures.get((0.5, 0.5), (0, 0)) for minute in minutes]
    begun = [sum(minute.begun[arm] for minute in minutes) for arm in (0, 1)]
    for arm in (0, 1):
        assert 0.08 < sum(both[arm] for both in failures) / begun[arm] < 0.11
    known = [minute.known for minute in minutes]
    assert known[:KNOWN_MIN] == [(0, 0)] * KNOWN_MIN
    assert known[KNOWN_MIN][0] == minutes[0].begun[0]


def test_a_step_censors_the_sessions_that_it_moves() -> None:
    """They are of neither arm; those that it leaves have other shares."""
    drawn = Sessions(World("w", 200.0, 1.0, 1.0, requests=30), 1)
    first = drawn.minute(0, 0.2)
    then = drawn.minute(1, 0.5)
    assert set(first.failures) == {(0.2, 0.8)}
    assert set(then.failures) == {(0.2, 0.5), (0.5, 0.5)}
    canary, stable = then.failures[0.2, 0.5]
    assert stable / canary == pytest.approx(2.5, rel=0.2)


@pytest.mark.parametrize("controller", sorted(CONTROLLERS))
def test_a_canary_that_always_fails_is_rolled_back_by_all(controller: str) -> None:
    """And the same seed ends the same."""
    world = World("all fail", 20.0, canary=1.0)
    ended = CONTROLLERS[controller](world, 7)
    assert ended.end == "back"
    assert ended == CONTROLLERS[controller](world, 7)


def test_a_good_canary_is_promoted() -> None:
    """With failures and times, in the least time of its three steps."""
    ended = controlled(World("good, never fails", 20.0, 0.0, 0.0), 3)
    assert (ended.end, ended.minutes, ended.failed) == ("promoted", 30, 0)


def test_the_worlds_cover_what_is_claimed() -> None:
    """Base rates of 0.1 to 20 %, 1 to 200 sessions/s, 1 to 30 requests."""
    drawn = [*margins(), *found(), *stress()]
    assert {0.001, 0.01, 0.05, 0.2} <= {each.base for each in drawn}
    assert {each.rate for each in drawn} == {1.0, 20.0, 200.0}
    assert {each.requests for each in drawn} == {1, 8, 30}
    for name in ("daily", "mixed", "unlike"):
        assert any(getattr(each, name) for each in drawn)
    assert {each.cold for each in margins()} >= {1.0, COLD}
    assert len({repr(each) for each in drawn}) == len(drawn), "each has its own seeds"


def test_a_cold_canary_at_the_margin_is_not_taken_for_worse(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its sessions have half as many uncached tokens again, so more within a stratum, too.

    Strata of whole doublings rolled both runs back in 12 minutes.
    """
    monkeypatch.setattr(times, "log_likelihood_ratio", quick_ratio)
    world = World("times", 200.0, 0.0, 0.0, slower=1.1, cold=COLD, failures=False)
    assert measured(world, "tidegate", 2)["undecided"] == 2


def test_the_strata_are_those_of_the_picker() -> None:
    """By number here, by name there."""
    tokens = np.array([128, 159, 160, 191, 192, 224, 255, 256, 1_000, 1_023, 1_024, 99_999])
    named = [f"chat/{number // 4}.{number % 4}" for number in strata_of(tokens)]
    assert named == [stratum_of("chat", int(each)) for each in tokens]


@pytest.mark.parametrize(
    "sizes", [(3, 9, 5, 2), (60, 200, 90, 40), (900, 700, 800, 500), (1, 1, 2, 1)]
)
def test_quick_likelihood_ratios_are_those_of_the_controller(
    sizes: tuple[int, int, int, int],
) -> None:
    """For all alternatives, small cells and large ones, and one without a choice."""
    for odds in ODDS:
        assert quick_ratio(*sizes, odds) == pytest.approx(
            log_likelihood_ratio(*sizes, odds), rel=1e-8, abs=1e-8
        )


@pytest.mark.parametrize("rule", ["flagger", "argo"])
def test_published_rules_promote_what_never_fails_and_is_fast(rule: str) -> None:
    """After five checks of a minute, and after four steps of ten."""
    world = World("good", 20.0, 0.0, 0.0, slower=0.5)
    ended = CONTROLLERS[rule](world, 1)
    assert (ended.end, ended.minutes) == ("promoted", {"flagger": 5, "argo": 40}[rule])


def test_flagger_takes_no_requests_for_a_failed_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """As its controller does."""
    monkeypatch.setitem(canary.LONGEST, 0.0, 30)
    ended = CONTROLLERS["flagger"](World("idle", 0.0), 1)
    assert (ended.end, ended.minutes) == ("back", 6)


def test_finished_runs_are_kept_and_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A second start with more runs runs only those; with none it prints what is kept."""
    path = tmp_path / "runs.jsonl"
    told = ["canary.py", "--part", "found", "--only", "all fail", "--into", str(path), "--json"]
    monkeypatch.setattr(canary, "ProcessPoolExecutor", _Here)
    monkeypatch.setattr(canary, "CHUNK", 2)
    seen = []
    for runs in ("2", "4", "0"):
        monkeypatch.setattr(sys, "argv", [*told, "--runs", runs])
        canary.main()
        rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        seen.append((len(path.read_text().splitlines()), {row["runs"] for row in rows}))
    assert seen == [(9, {2}), (18, {4}), (18, {4})]


class _Here:
    """A pool of processes that is this one."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    map = staticmethod(map)


def test_the_table_has_bounds_and_what_is_undecided() -> None:
    """A share of few runs is not much better than its bound."""
    row = measured(World("w", 20.0, canary=1.0), "tidegate", 2)
    assert "100.0 % (≤ 100.0) | 0.0 % (≤ 57.5) | 0 %" in table([row])
    assert upper(50, 1_000) == pytest.approx(0.0625, abs=1e-3)


def test_evidence_of_many_runs_is_that_of_each() -> None:
    """Of cells without a choice, small and large ones, to the last minute."""
    world = World("w", 20.0, slower=1.3)
    drawn, of = [Sessions(world, seed) for seed in (1, 2)], TimesOfRuns(2)
    each = [TimeEvidence(DEFAULT.time) for _ in drawn]
    for now in range(12):
        arms = []
        for number, one in enumerate(drawn):
            arm = one.first_times(now, (20 * number + 3, 1_500 * number + 400))
            arms.append(arm)
            cells = [by_stratum(*told) for told in arm]
            strata = {*cells[0], *cells[1]}
            each[number].fold(
                {str(s): TimeCell(cells[0].get(s, {}), cells[1].get(s, {})) for s in strata}
            )
        both = [
            [
                np.concatenate(part)
                for part in zip(
                    *((np.full(a[0].size, n), *a) for n, a in enumerate(x)), strict=True
                )
            ]
            for x in zip(*arms, strict=True)
        ]
        of.fold((both[0][0], both[0][1], both[0][2]), (both[1][0], both[1][1], both[1][2]))
    for place, share in enumerate(QUANTILES):
        assert of.worse[place] == pytest.approx([e.log_worse(share) for e in each], abs=1e-8)
        assert of.better[place] == pytest.approx([e.log_not_worse(share) for e in each], abs=1e-8)
