"""Read-only verbs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from xds_server.fleet.load import load_text

if TYPE_CHECKING:
    from support.command_line import FakeAdmin, Run

EXAMPLES = Path(__file__).parents[5] / "docs" / "examples"


def test_pools_show_weights_as_shares(run: Run, admin: FakeAdmin) -> None:
    """Each variant has a line with its weight and share."""
    ran = run("get", "pools", "--server", admin.address)
    assert ran.code == 0
    assert "stable" in ran.out
    assert "95%" in ran.out
    assert "5%" in ran.out
    assert max(map(len, ran.out.splitlines())) <= 100
    assert "\x1b" not in ran.out


@pytest.mark.parametrize("example", ["minimal", "fleet", "operations"])
def test_the_fleet_can_be_applied_again(run: Run, admin: FakeAdmin, example: str) -> None:
    """What is printed is a fleet file of the same meaning, with all defaults."""
    fleet = load_text((EXAMPLES / f"{example}.yaml").read_text("utf-8"), example)
    admin.fleet_json = fleet.model_dump_json()
    ran = run("get", "fleet", "--server", admin.address)
    assert load_text(ran.out, "printed") == fleet


def test_endpoints_show_load_and_drain(run: Run, admin: FakeAdmin) -> None:
    """The table shows the state and the requests in flight."""
    rows = run("get", "endpoints", "--server", admin.address).out.splitlines()
    assert " ".join(rows[1].split()) == "r1 llm stable 127.0.0.1:8000 127.0.0.1:8001 in use 3"
    assert " ".join(rows[2].split()) == "r2 llm canary - 127.0.0.1:8011 draining 0"


def test_load_is_unknown_without_a_picker(run: Run, admin: FakeAdmin) -> None:
    """Where no picker reports, requests in flight are unknown, not 0."""
    admin.status.reports.clear()
    answer = json.loads(run("get", "endpoints", "--server", admin.address, "-o", "json").out)
    assert [row["in_flight"] for row in answer] == [None, None]


def test_clients_show_what_they_acknowledged(run: Run, admin: FakeAdmin) -> None:
    """A client's state is the worst of its types; ``NOT_SENT`` counts as ``SYNCED``."""
    answer = yaml.safe_load(run("get", "clients", "--server", admin.address, "-o", "yaml").out)
    assert [(row["client"], row["state"]) for row in answer] == [
        ("envoy-1", "SYNCED"),
        ("picker-1", "NACKED"),
    ]


@pytest.mark.parametrize("verb", [("get", "clients"), ("status",)], ids=" ".join)
def test_what_an_older_envoy_does_not_get_is_named(
    run: Run, admin: FakeAdmin, verb: tuple[str, ...]
) -> None:
    """An operator sees which Envoy to replace, and what it costs until then."""
    old = next(one for one in admin.status.clients if one.kind == "envoy")
    old.build = "1.37.0"
    old.lost.extend(["this feature", "that feature"])
    said = run(*verb, "--server", admin.address).out
    head = "envoy-1 is Envoy 1.37.0 and is not sent what that refuses; so:"
    assert f"{head}\n- this feature\n- that feature\n" in said
    assert said.count(" refuses; so:") == 1


def test_status_repeats_a_clients_own_words(run: Run, admin: FakeAdmin) -> None:
    """Revision, clients and the message of a rejection are shown."""
    ran = run("status", "--server", admin.address)
    assert ran.out.startswith("revision 7, settled")
    assert "POOL:NACKED" in ran.out
    assert "no such policy" in ran.out


def test_status_says_why_the_file_is_not_in_force(run: Run, admin: FakeAdmin) -> None:
    """Status reports an invalid fleet file on disk and a running change."""
    admin.status.file_error = "fleet.yaml:3: pools: missing"
    admin.status.settled = False
    del admin.status.clients[:]
    ran = run("status", "--server", admin.address)
    assert "a change is under way" in ran.out
    assert "fleet.yaml:3: pools: missing" in ran.out
    assert "no client is connected" in ran.out


def test_status_says_what_a_restart_would_lose(run: Run, admin: FakeAdmin) -> None:
    """While the store cannot be written, it says why, and which revisions are held in memory."""
    admin.status.store_error = "disk full"
    admin.status.unwritten.extend([8, 9])
    ran = run("status", "--server", admin.address)
    assert "revisions cannot be stored: disk full" in ran.out
    assert "lost by a restart: revision 8, 9" in ran.out


def test_status_shows_requests_without_a_pick(run: Run, admin: FakeAdmin) -> None:
    """A line per picker and reason; nothing where each request had one."""
    assert "no pick" not in run("status", "--server", admin.address).out
    admin.status.passes.add(picker="p1", by_reason={"no-pool": 3, "no-body": 1})
    data = json.loads(run("status", "--server", admin.address, "-o", "json").out)
    assert data["passes"] == {"p1": {"no-pool": 3, "no-body": 1}}
    shown = run("status", "--server", admin.address).out
    assert "p1 had no pick for 3 requests: no-pool" in shown


def test_status_shows_refused_peers(run: Run, admin: FakeAdmin) -> None:
    """The clients that the ADS port does not serve, and why; without any, no table."""
    assert "refused peer" not in run("status", "--server", admin.address).out
    admin.status.refused.add(
        peer="ipv4:10.0.0.9:5", node="old", reason="use ADS", count=3, last_seconds=2.04
    )
    assert "use ADS" in run("status", "--server", admin.address).out
    data = json.loads(run("status", "--server", admin.address, "-o", "json").out)
    assert data["refused"] == [
        {
            "peer": "ipv4:10.0.0.9:5",
            "node": "old",
            "reason": "use ADS",
            "count": 3,
            "last_seconds": 2.0,
        }
    ]


def test_status_shows_sick_replicas(run: Run, admin: FakeAdmin) -> None:
    """Sick replicas are listed with conditions, pickers and publication; without any, no table."""
    assert "sick" not in run("status", "--server", admin.address).out
    admin.status.sick.add(
        pool="llm", endpoint="r2", conditions=["dead-backend", "ejected"], pickers=2, told=True
    )
    ran = run("status", "--server", admin.address)
    assert "sick replica" in ran.out
    assert "dead-backend" in ran.out
    data = json.loads(run("status", "--server", admin.address, "-o", "json").out)
    assert data["sick"] == [
        {
            "pool": "llm",
            "endpoint": "r2",
            "conditions": ["dead-backend", "ejected"],
            "pickers": 2,
            "told": True,
        }
    ]


@pytest.mark.parametrize("arguments", [("history", "-n", "3"), ("get", "revisions")])
def test_revisions_show_author_reason_and_time(
    run: Run, admin: FakeAdmin, arguments: tuple[str, ...]
) -> None:
    """A revision shows author, reason and time; long lists of changes are shortened."""
    ran = run(*arguments, "--server", admin.address)
    assert "2023-11-14 22:13:20Z" in ran.out
    assert "ada" in ran.out
    assert "and 2 more" in ran.out
    assert admin.requests[0].limit in (3, 20)


@pytest.mark.parametrize(
    "arguments",
    [("get", "pools"), ("get", "endpoints"), ("get", "clients"), ("status",), ("history",)],
)
def test_json_and_yaml_say_the_same(run: Run, admin: FakeAdmin, arguments: tuple[str, ...]) -> None:
    """Both formats carry the same data."""
    as_json = json.loads(run(*arguments, "--server", admin.address, "-o", "json").out)
    assert as_json == yaml.safe_load(run(*arguments, "--server", admin.address, "-o", "yaml").out)
