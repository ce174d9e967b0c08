"""What is said of a control server's status and of an Envoy's admin page."""

from __future__ import annotations

from typing import Any

import pytest

from tidegate.doctor.diagnosis import Level
from tidegate.doctor.services import EnvoyFacts, facts_of, judge_envoy, judge_status

SOUND = EnvoyFacts((1, 40, 0), 86_400.0, immediate=True, concurrency=2, connected=True, skew_s=0.4)
STATUS: dict[str, Any] = {
    "verdict": "OK",
    "why": "",
    "reasons": [],
    "clients": [{"kind": "envoy"}, {"kind": "picker"}],
    "file_error": None,
    "store_error": None,
}
INFO = {
    "version": "b8b1c2/1.40.0/Clean/RELEASE/BoringSSL",
    "command_line_options": {
        "drain_time": "600s",
        "drain_strategy": "Gradual",
        "concurrency": 8,
    },
}
"""As Envoy 1.40 answers to ``/server_info``, started with its defaults on eight CPUs."""
STATS = {"stats": [{"name": "control_plane.connected_state", "value": 0}, {"histograms": {}}]}


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"build": (1, 20, 0)}, "none before 1.36.0 was tried"),
        ({"connected": False}, "no connection to a control server"),
        ({"drain_s": 600.0}, "cuts streams 600 s after"),
        ({"immediate": False}, "gradually"),
        ({"concurrency": 8}, "runs 8 workers on 2 CPUs"),
        ({"skew_s": -90.0}, "has a clock -90 s off"),
    ],
)
def test_each_fault_of_an_envoy_is_named(facts: dict[str, Any], words: str) -> None:
    """With the flag to start it with, or the place to look at."""
    found = list(judge_envoy(SOUND._replace(**facts), "127.0.0.1:19000", cpus=2))
    assert any(words in each.says and each.fix for each in found)


def test_a_sound_envoy_has_no_findings() -> None:
    """Neither one that does not tell."""
    assert list(judge_envoy(SOUND, "e", cpus=2)) == []
    silent = EnvoyFacts(None, None, immediate=True, concurrency=None, connected=None, skew_s=None)
    assert list(judge_envoy(silent, "e", cpus=2)) == []


def test_an_older_envoy_names_what_it_lacks() -> None:
    """Each feature that is left out for it is one risk."""
    found = list(judge_envoy(SOUND._replace(build=(1, 36, 4)), "e", cpus=2))
    assert found
    assert {each.level for each in found} == {Level.RISK}


def test_facts_are_read_from_envoys_answers() -> None:
    """Its own words for times and strategies, and its clock from the ``date`` header."""
    facts = facts_of(INFO, STATS, "Tue, 24 Nov 2026 15:00:00 GMT", 1_795_532_370.0)
    assert facts == EnvoyFacts(
        (1, 40, 0), 600.0, immediate=False, concurrency=8, connected=False, skew_s=30.0
    )


@pytest.mark.parametrize("info", [[], {}, {"version": 1, "command_line_options": {}}, None])
def test_what_is_no_envoy_is_a_value_error(info: Any) -> None:
    """Another server on that port."""
    with pytest.raises(ValueError, match="otherwise than Envoy"):
        facts_of(info, STATS, "", 0.0)


@pytest.mark.parametrize(
    ("change", "level", "words"),
    [
        ({"verdict": "DEGRADED", "reasons": ["pool a: slow"]}, Level.RISK, "pool a: slow"),
        ({"verdict": "OUTAGE", "why": "no replica"}, Level.FAULT, "no replica"),
        ({"clients": [{"kind": "picker"}]}, Level.FAULT, "no Envoy connected"),
        ({"clients": [{"kind": "envoy"}]}, Level.FAULT, "no picker connected"),
        ({"file_error": "line 3"}, Level.FAULT, "fleet file: line 3"),
        ({"store_error": "disk full"}, Level.FAULT, "store: disk full"),
    ],
)
def test_a_control_servers_troubles_are_findings(
    change: dict[str, Any], level: Level, words: str
) -> None:
    """As ``tidegate status`` tells them."""
    (found,) = judge_status(STATUS | change, "s")
    assert (found.level, words in found.says) == (level, True)
