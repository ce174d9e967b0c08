"""Deaths of replicas: which requests become suspects, which wait, and which are refused."""

from __future__ import annotations

import pytest

from ext_proc.blame import deaths as module
from ext_proc.blame.deaths import (
    BACK_S,
    CONFIRM_S,
    DEATH_S,
    LEFT_S,
    MAX_CONDEMNED,
    MAX_DEATHS,
    MAX_OF_REPLICA,
    MAX_SHARE,
    MAX_SHARE_OF_SEVERAL,
    MAX_SUSPECTS,
    MAX_TRIALS,
    REFUSED_S,
    TOGETHER_S,
    VERDICT_S,
    WINDOW_S,
    Deaths,
    SuspectStanding,
    Who,
)

KILLER, FIRST, SECOND = b"killer".ljust(16), b"first".ljust(16), b"second".ljust(16)
CLEAR, SUSPECT = SuspectStanding.CLEAR, SuspectStanding.SUSPECT
MEMBER, WAITS = SuspectStanding.MEMBER, SuspectStanding.WAITS
CONDEMNED = SuspectStanding.CONDEMNED
LATER = 10.0
"""Seconds between two deaths that did not happen together; all before are complete then."""


def kill(deaths: Deaths, replica: str, at: float, *suspects: bytes | None) -> None:
    """Let a replica die with these requests, confirmed."""
    for each in suspects:
        deaths.died(replica, Who(each), at)
    deaths.gone(replica, at + 0.5)


def twice(*both: bytes, first: tuple[bytes | None, ...] = (), apart: float = LATER) -> Deaths:
    """Return two deaths with common suspects; the first has further ones."""
    deaths = Deaths()
    kill(deaths, "a", 0.0, *both, *first)
    kill(deaths, "b", apart, *both)
    return deaths


DONE = LATER + DEATH_S
"""When both deaths of ``twice`` are complete."""


def test_nothing_is_held_before_a_replica_dies():
    """The picker asks for ``active`` before it takes any fingerprint."""
    deaths = Deaths()
    assert not deaths.active
    assert deaths.standing(KILLER, 0.0) is CLEAR


def test_one_death_makes_suspects_and_nothing_else():
    """A replica dies for many reasons; every request on it would be blamed for them."""
    deaths = Deaths()
    kill(deaths, "a", 0.0, KILLER, FIRST)
    for each in (KILLER, FIRST):
        assert deaths.standing(each, DEATH_S) is SUSPECT
    assert deaths.standing(SECOND, DEATH_S) is CLEAR
    assert not deaths.sweep(DEATH_S)


def test_two_deaths_of_one_replica_make_no_member():
    """A replica that dies again and again may be broken by itself."""
    deaths = Deaths()
    kill(deaths, "a", 0.0, KILLER)
    kill(deaths, "a", LATER, KILLER)
    assert deaths.standing(KILLER, DONE) is SUSPECT


def test_the_only_request_common_to_two_deaths_is_refused():
    """This is the rule that ends a series of deaths."""
    deaths = twice(KILLER, first=(FIRST,))
    assert deaths.standing(KILLER, DONE) is CONDEMNED
    assert deaths.standing(FIRST, DONE) is SUSPECT
    (found,) = deaths.sweep(DONE)
    assert (found.fingerprint, found.replicas) == (KILLER, ("a", "b"))
    assert not deaths.sweep(DONE)


def test_a_request_waits_until_its_deaths_are_complete():
    """Entries of one death come in batches: the second suspect may be in the next one."""
    deaths = twice(KILLER)
    assert deaths.standing(KILLER, DONE - 0.1) is WAITS
    assert not deaths.sweep(DONE - 0.1)
    deaths.died("b", Who(FIRST), LATER + 0.3)
    deaths.died("a", Who(FIRST), 0.3)
    assert deaths.standing(KILLER, DONE) is MEMBER


def test_a_refusal_ends():
    """A body is refused for a minute, not for ever: the replica may have been repaired."""
    deaths = twice(KILLER)
    assert deaths.standing(KILLER, DONE) is CONDEMNED
    assert deaths.standing(KILLER, DONE + REFUSED_S - 0.1) is CONDEMNED
    deaths.sweep(DONE + REFUSED_S)
    assert deaths.standing(KILLER, DONE + REFUSED_S) is CLEAR
    assert not deaths.active


def test_a_death_that_nothing_confirms_refuses_nothing():
    """An idle connection that a healthy replica closes looks like a death of one request."""
    deaths = Deaths()
    deaths.died("a", Who(KILLER), 0.0)
    kill(deaths, "b", LATER, KILLER)
    assert deaths.standing(KILLER, DONE) is MEMBER
    deaths.gone("a", CONFIRM_S + 0.1)
    assert deaths.standing(KILLER, DONE) is MEMBER


def test_a_third_death_needs_no_confirmation():
    """A replica without a metrics page that restarts at once is never seen to be gone."""
    deaths = Deaths()
    for number, replica in enumerate("aba"):
        deaths.died(replica, Who(KILLER), number * LATER)
    assert deaths.standing(KILLER, 2 * LATER + DEATH_S) is CONDEMNED


def test_the_confirmation_may_come_first():
    """The picker may read the metrics page before the log arrives."""
    deaths = Deaths()
    deaths.gone("a", 0.0)
    deaths.died("a", Who(KILLER), DEATH_S)
    kill(deaths, "b", LATER, KILLER)
    assert deaths.standing(KILLER, DONE) is CONDEMNED


@pytest.mark.parametrize("which", ["a", "b", "both"])
def test_an_unknown_suspect_in_every_death_protects_the_known_one(which: str):
    """A body that was not read to its end may be the killer."""
    deaths = twice(KILLER)
    for replica, at in (("a", 0.0), ("b", LATER)):
        if which in (replica, "both"):
            deaths.died(replica, Who(None), at + 0.1)
    assert deaths.standing(KILLER, DONE) is (MEMBER if which == "both" else CONDEMNED)


def test_an_abandoned_request_is_an_unknown_suspect():
    """A client that leaves early would have others blamed for what its request does."""
    deaths = Deaths()
    deaths.left("a", 0.0)
    kill(deaths, "a", LEFT_S, KILLER)
    kill(deaths, "b", LEFT_S + LATER, KILLER)
    deaths.left("b", LEFT_S + LATER + 1.0)
    assert deaths.standing(KILLER, LEFT_S + DONE) is MEMBER


def test_replicas_that_die_together_with_many_requests_condemn_none():
    """``kill -9`` of two replicas: one request, moved from one to the other, is in both sets."""
    deaths = twice(FIRST, first=(SECOND,), apart=TOGETHER_S)
    assert deaths.standing(FIRST, DONE) is MEMBER
    assert not deaths.sweep(DONE)


def test_replicas_that_die_together_with_one_request_condemn_it():
    """The killing request on an idle fleet: sent, and sent again by the proxy."""
    deaths = twice(KILLER, apart=0.01)
    assert deaths.standing(KILLER, DONE) is CONDEMNED


def test_members_run_one_at_a_time_and_never_where_one_runs():
    """If two ran on one replica, its death would tell nothing."""
    deaths = twice(KILLER, FIRST)
    assert deaths.standing(KILLER, DONE) is MEMBER
    assert deaths.avoided(DONE) == frozenset()
    deaths.started(KILLER, "c")
    assert deaths.standing(KILLER, DONE) is WAITS
    assert deaths.standing(FIRST, DONE) is MEMBER
    assert deaths.avoided(DONE) == {"c"}
    deaths.ended(KILLER, DONE)
    assert deaths.avoided(DONE) == frozenset()


def test_a_member_avoids_replicas_that_have_just_died():
    """The picker may not know yet that nothing listens there."""
    deaths = twice(FIRST, KILLER)
    kill(deaths, "c", DONE, SECOND)
    assert deaths.avoided(DONE) == {"c"}


def test_a_member_that_ended_waits_for_its_verdict():
    """The log tells a moment later whether it was answered or killed again."""
    deaths = twice(KILLER, FIRST)
    deaths.started(KILLER, "c")
    deaths.ended(KILLER, DONE)
    assert deaths.standing(KILLER, DONE + VERDICT_S - 0.1) is WAITS
    assert deaths.standing(KILLER, DONE + VERDICT_S) is MEMBER


def test_a_member_that_kills_again_alone_is_refused():
    """Its companions in the first two deaths were not there."""
    deaths = twice(KILLER, FIRST, SECOND)
    deaths.started(KILLER, "c")
    kill(deaths, "c", DONE, KILLER, b"other".ljust(16))
    assert deaths.standing(KILLER, DONE) is WAITS
    assert deaths.standing(KILLER, DONE + DEATH_S) is CONDEMNED
    assert deaths.standing(FIRST, DONE + DEATH_S) is MEMBER


def test_an_answer_clears_a_member():
    """The replica survived it."""
    deaths = twice(KILLER, FIRST)
    deaths.started(FIRST, "c")
    assert deaths.answered(FIRST)
    assert deaths.standing(FIRST, DONE) is CLEAR
    assert not deaths.answered(FIRST)


def test_clearing_the_others_never_condemns_the_last():
    """After an operator's kill, the last innocent request to come back must not be refused."""
    deaths = twice(FIRST, SECOND, KILLER)
    deaths.answered(FIRST)
    deaths.answered(SECOND)
    assert deaths.standing(KILLER, DONE) is MEMBER


def test_an_answer_lifts_a_refusal():
    """Another copy of the body was running elsewhere and got an answer."""
    deaths = twice(FIRST)
    deaths.sweep(DONE)
    assert deaths.answered(FIRST)
    assert deaths.standing(FIRST, DONE) is CLEAR


def test_a_body_that_was_answered_lately_is_no_suspect():
    """A load test sends one body all the time: it is on each replica that an operator kills."""
    deaths = Deaths()
    for replica in "ab":
        deaths.died(replica, Who(FIRST), 0.0, answered=True)
    assert deaths.standing(FIRST, DONE) is CLEAR


def test_a_body_that_was_answered_lately_still_stands_beside_another():
    """The intersection had two members when the replicas died, even if one is cleared since."""
    deaths = Deaths()
    for replica, at in (("a", 0.0), ("b", LATER)):
        deaths.died(replica, Who(FIRST), at, answered=True)
        kill(deaths, replica, at, KILLER)
    assert deaths.standing(KILLER, DONE) is MEMBER


def test_a_peer_that_is_gone_runs_nothing():
    """Its members would keep their places for ever."""
    deaths = twice(KILLER, FIRST)
    deaths.started(KILLER, "c", owner=3)
    deaths.started(FIRST, "d")
    deaths.lost(3)
    assert deaths.avoided(DONE) == {"d"}
    assert deaths.standing(KILLER, DONE) is MEMBER


def test_deaths_are_forgotten_after_a_minute():
    """Two deaths further apart have nothing to do with each other."""
    deaths = Deaths()
    kill(deaths, "a", 0.0, KILLER)
    kill(deaths, "b", WINDOW_S + 0.1, KILLER)
    assert deaths.standing(KILLER, WINDOW_S + 3.0) is SUSPECT
    deaths.sweep(2 * WINDOW_S + 1.0)
    assert (deaths.active, deaths.suspects) == (False, 0)


def test_deaths_are_bounded():
    """The oldest are dropped, those of one flapping replica first among its own."""
    deaths = Deaths()
    for number in range(MAX_DEATHS + 10):
        deaths.died(f"r{number}", Who(KILLER), number * 1e-3)
    for number in range(MAX_OF_REPLICA + 10):
        deaths.died("flapping", Who(FIRST), 10.0 + 3.0 * number)
    kept = [replica for replica, *_ in deaths.kept()]
    assert len(kept) == MAX_DEATHS
    assert kept.count("flapping") == MAX_OF_REPLICA


def test_suspects_are_bounded():
    """A death with more suspects has an unknown one."""
    deaths = Deaths()
    for number in range(MAX_SUSPECTS + 1):
        deaths.died("a", Who(number.to_bytes(16, "big")), 0.0)
    assert deaths.suspects == MAX_SUSPECTS
    (death,) = deaths.kept()
    assert death[2]


def test_refusals_are_bounded():
    """Beyond the bound a request runs alone instead."""
    deaths = Deaths()
    for number in range(MAX_CONDEMNED):
        deaths.condemned[number.to_bytes(16, "big")] = 1000.0
    kill(deaths, "a", 0.0, KILLER)
    kill(deaths, "b", LATER, KILLER)
    assert deaths.standing(KILLER, DONE) is MEMBER


def test_running_members_are_bounded():
    """Beyond the bound members wait."""
    deaths = twice(KILLER, FIRST)
    for number in range(MAX_TRIALS):
        deaths.started(number.to_bytes(16, "big"), f"r{number}")
    assert deaths.standing(FIRST, DONE) is WAITS


def test_the_page_shows_what_is_held():
    """An operator sees which replicas died, and what is refused for how long."""
    deaths = twice(KILLER)
    deaths.sweep(DONE)
    page = deaths.describe(DONE)
    assert page["deaths"][0] == {  # type: ignore[index]  # JSON
        "endpoint": "a",
        "age_s": DONE,
        "suspects": 1,
        "unknown": False,
        "confirmed": True,
    }
    assert list(page["refused"].values()) == [{"for_s": REFUSED_S}]  # type: ignore[attr-defined]  # JSON
    assert KILLER.hex() not in str(page)


# --- Kinds and callers --------------------------------------------------------------------------

KIND = b"the first".ljust(16)
CALLER, STRANGER, THIRD = b"caller".ljust(16), b"stranger".ljust(16), b"third".ljust(16)


def of(caller: bytes | None, fingerprint: bytes | None = KILLER, *kinds: bytes) -> Who:
    return Who(fingerprint, kinds, caller)


def besieged(*both: Who, apart: float = LATER) -> Deaths:
    """Return two deaths, of replicas that are back, with these suspects in both."""
    deaths = Deaths()
    for replica, at in (("a", 0.0), ("b", apart)):
        for each in both:
            deaths.died(replica, each, at)
        deaths.gone(replica, at)
    for replica in "ab":
        deaths.alive(replica, apart + DEATH_S)
    return deaths


def test_variants_of_one_kind_are_confined_to_where_it_killed():
    """One killed the first replica, another one the second."""
    deaths = Deaths()
    kill_with(deaths, "a", 0.0, of(None, KILLER, KIND))
    assert deaths.confined(of(None, FIRST, KIND), LATER) is None
    kill_with(deaths, "b", LATER, of(None, FIRST, KIND))
    assert deaths.confined(of(None, SECOND, KIND), LATER) == frozenset()
    deaths.alive("a", LATER)
    assert deaths.confined(of(None, SECOND, KIND), LATER) == {"a"}
    assert deaths.confined(of(None, SECOND), LATER) is None
    assert deaths.confined(of(None, SECOND, KIND), LATER, is_common={KIND}.__contains__) is None


def kill_with(deaths: Deaths, replica: str, at: float, who: Who) -> None:
    deaths.died(replica, who, at)
    deaths.gone(replica, at)


def test_what_is_like_a_suspect_is_read_once():
    """With the first death's proxy retry it would take two replicas more."""
    deaths = Deaths()
    kill_with(deaths, "a", 0.0, of(CALLER, KILLER, KIND))
    assert not deaths.repeatable(of(None, FIRST, KIND), DEATH_S)
    assert deaths.repeatable(of(None, FIRST), DEATH_S)
    assert not deaths.repeatable(of(CALLER, FIRST), DEATH_S)
    assert deaths.repeatable(of(CALLER, FIRST), DEATH_S, {CALLER: 0.6})
    deaths.died("a", of(STRANGER, SECOND), 0.1)
    assert deaths.repeatable(of(CALLER, FIRST), DEATH_S)
    deaths.answered(SECOND)
    assert not deaths.repeatable(of(CALLER, FIRST), DEATH_S)
    assert deaths.repeatable(of(CALLER, FIRST), WINDOW_S + 0.1)


def test_an_answer_clears_a_body_and_not_its_kind():
    """A harmless near copy would make way for the next killer."""
    deaths = besieged(of(None, KILLER, KIND), of(None, FIRST, KIND))
    deaths.answered(FIRST)
    assert deaths.confined(of(None, SECOND, KIND), DONE) == {"a", "b"}
    deaths.answered(KILLER)
    assert deaths.confined(of(None, SECOND, KIND), DONE) is None


def test_a_kind_that_killed_a_replica_again_waits():
    """It would kill its replicas as often as they are back."""
    deaths = besieged(of(None, KILLER, KIND))
    kill_with(deaths, "a", DONE, of(None, FIRST, KIND))
    deaths.alive("a", DONE + DEATH_S)
    assert deaths.confined(of(None, SECOND, KIND), DONE + DEATH_S) == frozenset()
    assert deaths.confined(of(None, SECOND, KIND), LATER + WINDOW_S + 0.1) is None


def test_a_probe_or_page_that_succeeds_for_a_while_tells_that_a_replica_is_back():
    """The proxy's own checks have found it healthy by then."""
    deaths = Deaths()
    for replica, at in (("a", 0.0), ("b", 0.1)):
        deaths.died(replica, of(None), at)
        deaths.gone(replica, at + 0.5)
    deaths.gone("a", 3.0, probe=True)
    assert deaths.confined(of(None), 3.0 + BACK_S - 0.1) == frozenset()
    assert deaths.confined(of(None), 3.0 + BACK_S) == {"a"}


def test_a_caller_is_confined_whatever_it_sends():
    """It may change more than a few bytes."""
    deaths = besieged(of(CALLER))
    assert deaths.confined(of(CALLER, FIRST), DONE) == {"a", "b"}
    assert deaths.confined(of(CALLER, None), DONE) == {"a", "b"}
    assert deaths.confined(of(STRANGER, FIRST), DONE) is None
    assert deaths.confined(of(None, FIRST), DONE) is None


def test_a_caller_of_most_requests_is_not_confined():
    """Behind a gateway that is not trusted all are one; its near copies are held nevertheless."""
    deaths = besieged(of(CALLER, KILLER, KIND))
    assert deaths.confined(of(CALLER, FIRST), DONE, {CALLER: MAX_SHARE + 0.01}) is None
    assert deaths.confined(of(CALLER, FIRST, KIND), DONE, {CALLER: 1.0}) == {"a", "b"}
    assert deaths.confined(of(CALLER, FIRST), DONE, {CALLER: MAX_SHARE}) == {"a", "b"}


def test_of_several_callers_those_are_confined_that_send_little():
    """Innocents whose requests moved from the first replica to the second are among them."""
    deaths = besieged(of(CALLER), of(STRANGER, FIRST), of(THIRD, SECOND))
    shares = {CALLER: 0.0, STRANGER: MAX_SHARE_OF_SEVERAL, THIRD: 0.3}
    confined = {
        who: deaths.confined(of(who, b"another".ljust(16)), DONE, shares) is not None
        for who in shares
    }
    assert confined == {CALLER: True, STRANGER: True, THIRD: False}
    kill_with(deaths, "a", DONE, of(THIRD, b"another".ljust(16)))
    shares[THIRD] = MAX_SHARE_OF_SEVERAL
    assert deaths.confined(of(THIRD, None), DONE + DEATH_S, shares) is not None
    assert deaths.confined(of(STRANGER, None), DONE + DEATH_S, shares) is None


def test_an_unread_request_is_held_against_its_caller():
    """Nothing else is known of it, and no answer clears it."""
    deaths = besieged(of(CALLER, None))
    assert deaths.confined(of(CALLER, FIRST), DONE) == {"a", "b"}
    name = of(CALLER, None).name
    assert name is not None
    assert not deaths.answered(name)
    assert deaths.confined(of(CALLER, None), DONE) == {"a", "b"}
    deaths.started(name, "a")
    assert not deaths.may_run(name, DONE)


def test_two_broken_connections_put_no_caller_in_question():
    """Idle connections that healthy replicas close; several at once are a death."""
    deaths = Deaths()
    for replica, at in (("a", 0.0), ("b", LATER)):
        deaths.died(replica, of(CALLER, replica.encode() * 16), at)
    assert deaths.confined(of(CALLER, FIRST), DONE) is None
    for replica, at in (("a", 0.0), ("b", LATER)):
        deaths.died(replica, of(STRANGER, replica.encode() * 15 + b"2"), at + 0.1)
    assert deaths.confined(of(CALLER, FIRST), DONE) is not None


def test_callers_of_unread_requests_are_bounded(monkeypatch: pytest.MonkeyPatch):
    """Of a death with more streams some are forgotten."""
    monkeypatch.setattr(module, "MAX_MARKS", 3)
    deaths = Deaths()
    for number in range(9):
        deaths.died("a", of(bytes([number]) * 16, None), 0.0)
    assert len(deaths._marked) == 3
    deaths.sweep(WINDOW_S + 1.0)
    assert not deaths._marked


def test_what_is_kept_makes_another_worker_hold_the_same():
    """Kinds, callers, and those whose requests were not read."""
    deaths = besieged(of(CALLER, KILLER, KIND), of(STRANGER, None))
    other = Deaths()
    for replica, at, unknown, _, suspects in deaths.kept():
        assert unknown
        for who, held in suspects:
            other.died(replica, who, at, answered=not held)
        other.gone(replica, at)
        other.alive(replica, DONE)
    for who in (of(None, FIRST, KIND), of(CALLER, FIRST), of(STRANGER, FIRST)):
        assert deaths.confined(who, DONE) == other.confined(who, DONE) == {"a", "b"}
    assert other.describe(DONE)["callers_in_question"] == 2
    assert other.describe(DONE)["kinds_confined"] == 1
