"""Tables of replays beside the simulator."""

from __future__ import annotations

from typing import Any

from bench.compare.table import beside_peers, change, restarts, times_to_first_token, without_hop


def row(seed: int, restart: str = "", **mean: float) -> dict[str, Any]:
    """Return a row whose p99 is ten times each mean, with every second choice equal."""
    return {
        "traffic": "agents",
        "load": 0.7,
        "seed": seed,
        "restart": restart,
        "contender": "tidegate",
        "lost": 1,
        "ttft": {name: {"mean": each, "p99": 10 * each} for name, each in mean.items()},
        "followed": {"mean": 0.5},
        "agreement": {"decisions": 10, "equal": 0.5, "close": 0.9},
    }


def test_a_change_that_misses_its_aim_is_bold() -> None:
    """The mean over seeds decides, not the interval."""
    ours = {0: 1.1, 1: 1.1, 2: 1.1}
    theirs = dict.fromkeys(ours, 1.0)
    assert change(ours, theirs, 1.2) == "+10.0 % [+10.0, +10.0]"
    assert change(ours, theirs, 1.05) == "**+10.0 % [+10.0, +10.0]**"
    assert change({0: 1.1}, {0: 1.0}) == "+10.0 %"
    assert change({}, theirs) == "-"


def test_a_line_has_both_oracles_and_the_simulated_rule() -> None:
    """Each is compared with the fleet by seed; shares of equal choices are over all requests."""
    rows = [
        row(seed, fleet=1.0, oracle=1.0, auto=0.8, **{"oracle-exact": 0.9}) for seed in range(2)
    ]
    head, rule, line = times_to_first_token([*rows, row(0, "with", fleet=9.0)]).splitlines()
    assert head.count("|") == rule.count("|") == line.count("|")
    cells = [each.strip() for each in line.strip("|").split("|")]
    assert cells[:4] == ["agents, 70%", "2", "1 s", "+0.0 % [+0.0, +0.0]"]
    assert cells[4].startswith("**+11.1 %")
    assert cells[5].startswith("+25.0 %")
    assert cells[6].startswith("+100.0 %")
    assert cells[-2:] == ["50.0 %", "90.0 %"]


def test_a_restart_is_a_multiple_of_the_same_run_without() -> None:
    """Runs with and without have the same requests, so they are paired by seed."""
    rows = [row(seed, which, fleet=each) for seed in range(2) for which, each in RESTARTED]
    lines = restarts(rows).splitlines()
    assert len(lines) == 3
    expected = "| agents, 70% | 2 | 2 | fleet | 1 s | 1.2 s | 1.20 [1.20, 1.20] | 10 s | 12 s |"
    assert lines[2].startswith(expected)


def test_choices_are_compared_without_what_the_stack_adds() -> None:
    """Their simulated times are; the stack's part is beside them."""
    rows = [row(seed, fleet=1.0, oracle=0.4, **{"oracle-exact": 0.5}) for seed in range(2)]
    for each in rows:
        each["followed"]["p99"], each["machine_busy"] = 8.0, 0.3
    head, rule, line = without_hop(rows).splitlines()
    assert head.count("|") == rule.count("|") == line.count("|")
    cells = [each.strip().split(" %")[0] for each in line.strip("|").split("|")]
    assert cells[1:4] == ["2", "2", "30%"]
    assert cells[4:] == ["+100.0", "**+25.0", "+0.0", "+25.0", "**+100.0", "**+60.0"]


RESTARTED = (("without", 1.0), ("with", 1.2))


def test_a_peer_stands_beside_tidegate_on_the_same_requests() -> None:
    """Pairs are by seed; a seed that only one of them has does not count."""
    peers = [{**row(seed, fleet=1.5), "contender": "llm-d-chart"} for seed in range(3)]
    lines = beside_peers([*(row(seed, fleet=1.0) for seed in range(2)), *peers]).splitlines()
    expected = "| agents, 70% | llm-d-chart | 3 | 3 | 1.5 s | +50.0 % [+50.0, +50.0] | 15 s |"
    assert lines[2].startswith(expected)
    assert len(lines) == 3
