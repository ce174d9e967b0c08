"""What ends of requests say of variants, from the pick to the record that is told."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from ext_proc.blame.evidence import Ended
from ext_proc.canary import KNOWN_S, Arms
from ext_proc.feedback.canary_ends import has_failed, times_of
from ext_proc.feedback.entries import Usage
from ext_proc.feedback.fold import Feedback
from ext_proc.routing.pipeline.scheduler import Decision
from ext_proc.routing.router import Router
from ext_proc.routing.values.pool import Endpoint, EndpointKey, Pool, Variant
from ext_proc.routing.values.request import Features, Form, Request
from ext_proc.routing.values.ticket import Outcome
from support.log_entries import address, entry
from tidegate_api.names import AGAIN_HEADER
from tidegate_common.canary import KINDS, SessionRecord
from xds_server.applications.canary import evidence

ARMS = Arms("r1", "v2", "v1", 0)
OLD_S = KNOWN_S + 1.0
OVERFLOW = {"ended": Ended.LOCAL, "status": 503, "answered": False, "cause": "overflow"}


def usage(**told: Any) -> Usage:
    """Return what an answer told."""
    return Usage(**{"prompt": None, "cached": None, "output": None, "model": "", **told})


@pytest.mark.parametrize(
    ("changes", "failed"),
    [
        ({}, False),
        ({"usage": usage(output=3)}, False),
        ({"usage": usage(output=0)}, True),
        ({"answer_bytes": 0}, True),
        ({"answer_bytes": 0, "grpc_status": 0}, False),
        ({"status": 500}, True),
        ({"status": 503}, True),
        ({"status": 429}, True),
        ({"status": 200, "grpc_status": 8}, True),
        ({"status": 200, "grpc_status": 13}, True),
        ({"status": 200, "grpc_status": 3}, None),
        ({"status": 400}, None),
        ({"status": 422}, None),
        ({"status": 500, "unreadable": True}, None),
        ({"ended": Ended.LEFT}, None),
        ({"ended": Ended.LEFT, "status": 0}, None),
        ({"ended": Ended.BROKEN}, True),
        ({"ended": Ended.BROKEN, "status": 503, "answered": False, "cause": "broken"}, True),
        ({"ended": Ended.UNREACHED, "status": 503, "answered": False}, True),
        ({"ended": Ended.TRY_TIMEOUT, "status": 504, "answered": False}, True),
        ({"ended": Ended.TIMEOUT, "status": 504, "answered": False}, True),
        ({"ended": Ended.TRY_TIMEOUT, "status": 303, "answered": False, "cause": "moved"}, True),
        ({"ended": Ended.LOCAL, "status": 503, "answered": False, "cause": "other"}, True),
        ({**OVERFLOW, "read": False}, None),
        ({**OVERFLOW, "read": True}, True),
        ({**OVERFLOW, "read": False, "attempts": 2}, True),
        ({"ended": Ended.LOCAL, "status": 429, "answered": False, "cause": "rate-limited"}, None),
        ({"ended": Ended.LOCAL, "status": 413, "answered": False, "cause": "other"}, None),
    ],
)
def test_a_failure_is_what_the_service_failed(changes: dict[str, Any], failed: bool | None) -> None:
    """Whoever is to blame for it; what callers do says nothing."""
    assert has_failed(entry(**changes), listed=False) is failed


@pytest.mark.parametrize("changes", [{"status": 404}, {"status": 200, "grpc_status": 5}])
def test_a_listed_model_that_is_not_found_is_a_failure(changes: dict[str, Any]) -> None:
    """Another name is its caller's mistake."""
    assert has_failed(entry(**changes), listed=True) is True
    assert has_failed(entry(**changes), listed=False) is None


def test_times_begin_when_the_replica_was_sent_the_request() -> None:
    """Each as far as it is known; none of a request that was repeated."""
    told = entry(first_byte_s=0.2, first_at_s=1.0, last_at_s=2.0, usage=usage(output=5))
    assert times_of(told) == [("first-token", 0.2), ("per-token", 0.25), ("whole", 1.2)]
    assert times_of(told._replace(usage=None)) == [("first-token", 0.2), ("whole", 1.2)]
    assert times_of(told._replace(last_at_s=None)) == [("first-token", 0.2)]
    assert times_of(told._replace(attempts=2)) == []
    assert times_of(told._replace(first_byte_s=None)) == []


def test_both_sides_have_the_same_kinds_of_times() -> None:
    """A kind that the control server does not know would be compared with nothing."""
    assert KINDS == evidence.KINDS


class Fleet:
    """A pool of two variants, and what a picker tells of its rollout."""

    def __init__(self, arms: Arms | None = ARMS) -> None:
        self.router = Router(random.Random(1))
        self.pool = Pool(
            name="llm",
            models=frozenset({"m"}),
            variants=(
                Variant("v1", 1_000_000),
                Variant("v2", 234_567, "2", headers=(("x-canary", "yes"),)),
            ),
            endpoints=tuple(
                Endpoint(EndpointKey(f"r{n}", 1), f"v{n}", http=address(n), grpc=None)
                for n in (1, 2)
            ),
            seed=7,
        )
        self.now = 0.0
        self.set(None)
        self.now = OLD_S
        self.set(arms)
        self.feedback = Feedback(self.router, picker="p", life="x-")

    def set(self, arms: Arms | None) -> None:
        """Put a rollout in force."""
        self.router.set_pools({"llm": replace(self.pool, canary=arms)}, self.now)

    def pick(self, variant: str | None = None, **more: Any) -> Decision:
        """Decide a request."""
        headers = more.pop("headers", {})
        features = Features(**{"form": Form.GENERATE, "model": "m", **more})
        request = Request("llm", variant, "http", features, headers=headers)
        decision = self.router.decide(request, self.now, self.now)
        assert isinstance(decision, Decision)
        return decision

    def end(self, decision: Decision, **changes: Any) -> None:
        """End it."""
        assert decision.ticket is not None
        self.router.settle(decision.ticket, Outcome.DONE, self.now)
        made = entry(
            ticket=f"x-{decision.ticket.id}",
            served=decision.addresses[0],
            cluster=f"llm/{decision.variant}/http",
            **changes,
        )
        self.feedback.take(made, self.now)

    @property
    def told(self) -> list[SessionRecord]:
        """What is told."""
        return self.router.registry.canaries.sessions["llm"].untold()


def drawn(session: str) -> dict[str, Any]:
    """Return a request of a session by header."""
    return {"session": session, "headers": {"x-session-id": session}}


def test_a_session_is_told_with_the_end_of_its_first_request() -> None:
    """The variant is the one that Envoy drew, or that the picker did by the same arithmetic."""
    fleet = Fleet()
    fleet.end(fleet.pick("v2", **drawn("a")), first_at_s=0.1, last_at_s=0.3)
    fleet.end(fleet.pick("v2", **drawn("a")), status=500)
    for name in "bcdefgh":
        fleet.end(fleet.pick(**drawn(name)))
    first, *others = fleet.told
    assert first.canary
    assert first.first is not None
    assert first.first.stratum == "generate/0"
    assert [kind for kind, _ in first.first.times] == ["first-token", "whole"]
    assert first.failure is not None
    assert {each.canary for each in others} == {True, False}
    assert all(each.first is not None and each.failure is None for each in others)


def test_processes_agree_on_digests_and_others_cannot_know_them() -> None:
    """They are keyed by the fleet's seed."""
    told = []
    for seed in (7, 7, 8):
        fleet = Fleet()
        fleet.pool = replace(fleet.pool, seed=seed)
        fleet.set(ARMS)
        fleet.pick("v1", **drawn("a"))
        told.append(fleet.told[0].digest)
    assert told[0] == told[1] != told[2]


@pytest.mark.parametrize(
    "more",
    [
        {"headers": {"x-canary": "yes"}, "session": "a"},
        {"version": "2", "session": "a"},
        {"headers": {AGAIN_HEADER: "1"}},
    ],
)
def test_a_request_that_no_weights_drew_begins_no_session(more: dict[str, Any]) -> None:
    """Its caller chose the variant, or it is the same request again."""
    fleet = Fleet()
    fleet.end(fleet.pick("v2", **more), status=500)
    assert fleet.told == []


def test_a_session_that_only_the_body_names_is_not_what_envoy_drew_by() -> None:
    """Envoy drew each request by itself, so each is its own; the picker draws by the session."""
    fleet = Fleet()
    for variant in ("v1", "v2"):
        fleet.end(fleet.pick(variant, session="a"))
    assert len(fleet.told) == 2
    for _ in range(3):
        fleet.end(fleet.pick(session="b"))
    assert len(fleet.told) == 3


def test_a_sequence_is_one_session() -> None:
    """Its lease keeps it in the variant that was drawn with its first request."""
    fleet = Fleet()
    fleet.end(fleet.pick(sequence_id=9, sequence_start=True))
    for _ in range(3):
        fleet.end(fleet.pick(sequence_id=9), status=500)
    (record,) = fleet.told
    assert record.failure is not None


def test_a_retried_request_has_its_final_outcome() -> None:
    """One request, whatever was tried before."""
    fleet = Fleet()
    fleet.end(fleet.pick("v1"), attempts=2)
    (record,) = fleet.told
    assert record.failure is None
    assert record.first is not None
    assert record.first.times == ()


def test_a_stream_that_ends_after_its_rollout_is_told_in_no_other_one() -> None:
    """Neither after the end of the rollout, nor where another one took its place."""
    fleet = Fleet()
    before, own = fleet.pick("v1", **drawn("a")), fleet.pick("v2")
    fleet.set(None)
    fleet.end(before, status=500)
    fleet.set(ARMS._replace(rollout="r2"))
    fleet.end(own, status=500)
    assert fleet.told == []
    fleet.end(fleet.pick("v1", **drawn("a")))
    assert fleet.told == [], "it began before the second rollout"
    fleet.end(fleet.pick("v1", **drawn("new")))
    assert len(fleet.told) == 1


def test_a_rollout_replaced_while_requests_run_begins_anew() -> None:
    """Their ends are nothing to it."""
    fleet = Fleet()
    running = [fleet.pick(**drawn(f"s{number}")) for number in range(20)]
    fleet.set(Arms("r2", "v1", "v2", 0))
    for each in running:
        fleet.end(each, status=500)
    assert fleet.told == []
    assert fleet.router.registry.canaries.describe()["llm"] == {
        "rollout": "r2",
        "canary": "v1",
        "stable": "v2",
        "step": 0,
        "sessions": {"canary": 0, "stable": 0},
        "failed": {"canary": 0, "stable": 0},
        "known": 20,
        "open": 0,
        "untold": 0,
        "sample": 1.0,
    }


def test_sessions_are_known_before_a_rollout_begins() -> None:
    """Where there is a second variant; else the process is too young to tell which are new."""
    fleet = Fleet(None)
    fleet.end(fleet.pick("v1", **drawn("a")))
    fleet.set(ARMS)
    for name in ("a", "b"):
        fleet.end(fleet.pick("v1", **drawn(name)))
    assert len(fleet.told) == 1
    sessions = fleet.router.registry.canaries
    sessions.set_pools({"llm": replace(fleet.pool, variants=fleet.pool.variants[:1])}, fleet.now)
    assert (sessions.sessions, sessions.running) == ({}, {})
    fleet.set(ARMS)
    fleet.end(fleet.pick("v1", **drawn("c")))
    assert fleet.told == []
    fleet.end(fleet.pick("v1"))
    assert len(fleet.told) == 1


def test_entries_of_another_picker_or_pool_end_nothing() -> None:
    """Only the one that picked knows the request."""
    fleet = Fleet()
    decision = fleet.pick("v1")
    assert decision.ticket is not None
    ticket = f"x-{decision.ticket.id}"
    fleet.feedback.take(entry(ticket=ticket, picker="other", status=500), fleet.now)
    fleet.feedback.take(entry(ticket=ticket, cluster="no/v1/http", status=500), fleet.now)
    fleet.feedback.take(entry(ticket=ticket, cluster="llm/v1/http", final=False), fleet.now)
    assert fleet.told == []
    fleet.end(decision)
    assert len(fleet.told) == 1
