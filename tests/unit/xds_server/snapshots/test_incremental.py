"""Changes at the cost of what they touch: the results are those of starting from scratch."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from hypothesis import given, settings
from hypothesis import strategies as st

from support.fleets import endpoint, pool
from support.tries import tries
from xds_server.fleet.change import merge
from xds_server.fleet.diff import diff, is_relief
from xds_server.fleet.memo import shared
from xds_server.fleet.model.fleet import Fleet
from xds_server.fleet.revision import next_incarnations
from xds_server.fleet.rules.bodies import body_reads
from xds_server.fleet.rules.fleet import problems
from xds_server.fleet.stored.written import stored
from xds_server.fleet.view import View, defaults_of
from xds_server.resources.routes.weights import neutral, weights_of
from xds_server.snapshots.build import Memo
from xds_server.snapshots.stages import plan

if TYPE_CHECKING:
    from collections.abc import Callable

NAMES = "abcd"

REMEMBERED: tuple[Callable[[Fleet], object], ...] = (
    problems,
    defaults_of,
    body_reads,
    weights_of,
    neutral,
    stored,
)
"""Functions that remember what they made of pools."""


def fresh(fleet: Fleet) -> Fleet:
    """Return an equal fleet that shares no object with this one."""
    return Fleet.model_validate_json(fleet.model_dump_json())


def start() -> dict[str, Any]:
    """Return a fleet of three pools; two of them share a replica."""
    return {
        "pools": [
            pool(
                "a",
                default=True,
                endpoints=[endpoint(1), endpoint(2), endpoint(9, variant="canary")],
            ),
            pool("b", endpoints=[endpoint(11), endpoint(12, variant="canary")]),
            pool("c", endpoints=[endpoint(1), endpoint(22, variant="canary")]),
        ]
    }


EDITS: dict[str, Any] = {
    "capacity": lambda p, n: p["endpoints"][n % len(p["endpoints"])].update(capacity=1 + n % 3),
    "drain": lambda p, n: p["endpoints"][n % len(p["endpoints"])].update(draining=bool(n % 2)),
    "move": lambda p, n: p["endpoints"][-1].update(variant=("stable", "canary", "gone")[n % 3]),
    "add": lambda p, n: p["endpoints"].append(endpoint(30 + n % 4, capacity=1 + n % 2)),
    "remove": lambda p, _: p["endpoints"].pop() if len(p["endpoints"]) > 1 else None,
    "address": lambda p, n: p["endpoints"][0].update(http=f"127.0.0.1:{7000 + n % 3}"),
    "taken": lambda p, _: p["endpoints"][0].update(http="127.0.0.1:8010"),
    "http only": lambda p, n: [e.update(grpc=None if n % 2 else e["grpc"]) for e in p["endpoints"]],
    "weight": lambda p, n: p["variants"][n % 2].update(weight=n % 4),
    "pin": lambda p, n: p["variants"][1].update(match={"headers": {"x-try": str(n % 2)}}),
    "model": lambda p, n: p.update(match={"models": [f"m{n % 5}"]}),
    "path": lambda p, n: p["match"].update(paths=["/v1/chat", "/x//y", "/v1/other"][: n % 4]),
    "default": lambda p, n: p.update(default=bool(n % 2)),
    "limit": lambda p, n: p.update(circuit_breaker={"max_requests": 100 + n % 3}),
    "brake": lambda p, n: p.update(drop_overload=float(n % 3)),
    "policy": lambda p, n: p.update(routing={"policy": ("auto", "envoy")[n % 2]}),
    "session": lambda p, n: p.update(routing={"session_header": ("x-s", "x-try")[n % 2]}),
    "shadow": lambda p, n: p.update(
        shadow={"pool": NAMES[n % 4], "variant": "canary", "percent": 5}
    ),
    "tls": lambda p, n: p.update(
        upstream_tls={"certificate": "/c.pem", "key": ("/k", None)[n % 2]}
    ),
    "name": lambda p, n: p.update(name=NAMES[n % 4]),
    "token": lambda p, n: p.update(jwt={"any_of": ["absent"]} if n % 2 else None),
    "events": lambda p, n: p["endpoints"][0].update(
        telemetry={"kv_events": {"address": "tcp://127.0.0.1:5557", "model": f"m{n % 3}"}}
    ),
}


@st.composite
def walks(draw) -> list[Fleet]:
    """Draw fleets of which each is an edit of the one before; some break rules."""
    here, found = start(), []
    for _ in range(draw(st.integers(1, 5))):
        here = copy.deepcopy(here)
        for _ in range(draw(st.integers(1, 2))):
            number = draw(st.integers(0, 11))
            kind = draw(st.sampled_from((*EDITS, "listener", "pickers", "drop pool", "new pool")))
            if kind == "listener":
                here["listener"] = {"address": ("127.0.0.1:1", "0.0.0.0:8010")[number % 2]}
            elif kind == "pickers":
                here["pickers"] = {"addresses": [f"127.0.0.1:{8010 + number % 2}"]}
            elif kind == "drop pool":
                del here["pools"][number % len(here["pools"])]
            elif kind == "new pool":
                here["pools"].insert(0, pool("d", endpoints=[endpoint(41)]))
            else:
                EDITS[kind](here["pools"][number % len(here["pools"])], number)
            if not here["pools"]:
                here = start()
        found.append(Fleet.model_validate(copy.deepcopy(here)))
    return found


@settings(max_examples=tries(50), deadline=None)
@given(walk=walks())
def test_a_walk_of_fleets_is_judged_as_if_each_were_new(walk: list[Fleet]) -> None:
    """What is remembered of unchanged pools hides no problem and invents none."""
    here = Fleet.model_validate(start())
    for new in walk:
        before, here = here, shared(here, new)
        assert here == new
        anew = fresh(new)
        assert problems(here, before) == problems(anew)
        assert [each(here) for each in REMEMBERED] == [each(anew) for each in REMEMBERED]


@settings(max_examples=tries(30), deadline=None)
@given(walk=walks())
def test_relief_is_told_from_other_changes_as_if_each_fleet_were_new(walk: list[Fleet]) -> None:
    """A change that is made although it cannot be stored must be nothing but relief."""
    here = Fleet.model_validate(start())
    for wanted in walk:
        new = shared(here, wanted)
        assert is_relief(here, new) == is_relief(fresh(here), fresh(new))
        here = new


@settings(max_examples=15, deadline=None)
@given(walk=walks())
def test_a_walk_of_fleets_is_published_as_if_each_were_new(walk: list[Fleet]) -> None:
    """Differences, incarnations and each resource of each stage are equal, byte for byte."""
    memo, here = Memo(), Fleet.model_validate(start())
    known = next_incarnations(None, {}, here, 1, 5)
    plan(None, View(here, known), memo)
    for number, wanted in enumerate(walk, 2):
        if problems(wanted):
            continue
        new = shared(here, wanted)
        after = next_incarnations(here, known, new, number, 5)
        lines, both = diff(here, new), merge(here, new, here)
        ours = plan(View(here, known), View(new, after), memo)
        was, now = fresh(here), fresh(new)
        assert after == next_incarnations(was, known, now, number, 5)
        assert lines == diff(was, now)
        assert both == merge(was, now, fresh(here))
        scratch = plan(View(was, known), View(now, after), Memo())
        assert [stage.label for stage in ours] == [stage.label for stage in scratch]
        for one, two in zip(ours, scratch, strict=True):
            assert one == two
            for type_url in two.snapshot.type_urls:
                assert one.snapshot.resources(type_url) == two.snapshot.resources(type_url)
        here, known = new, after


def test_a_change_of_one_pool_builds_nothing_for_the_others() -> None:
    """Resources of unchanged pools, and sets of unchanged types, are the same objects."""
    memo, old = Memo(), Fleet.model_validate(start())
    before = plan(None, View(old), memo)
    raw = start()
    raw["pools"][1]["endpoints"][0]["capacity"] = 2
    new = shared(old, Fleet.model_validate(raw))
    (*_, remove) = plan(View(old), View(new), memo)
    for type_url in remove.snapshot.type_urls:
        was, now = before[0].snapshot.type_set(type_url), remove.snapshot.type_set(type_url)
        if "ClusterLoadAssignment" not in type_url:
            assert was is now
            continue
        changed = {n for n, r in now.resources.items() if was.resources[n] is not r}
        assert changed == {"b/stable/http", "b/stable/grpc"}
