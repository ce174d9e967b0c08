"""Prompts stay in the index where their answers began, and nowhere else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ext_proc.routing.cache import trials as module
from ext_proc.routing.cache.index_events import Inserted
from ext_proc.routing.cache.prefix_index import PrefixIndex
from ext_proc.routing.cache.prefix_uses import UNKNOWN_TENANT, tenant_of
from ext_proc.routing.cache.trials import GRACE_S, Confirmed, Trials, Withdrawn
from ext_proc.routing.values.pool import EndpointKey
from ext_proc.routing.values.request import Features, Form
from ext_proc.routing.values.ticket import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable

A, B, GONE = (EndpointKey(name, 1) for name in ("a", "b", "gone"))
PROMPT = (1, 2, 3)


class Made:
    """Trials of one worker, and what they tell."""

    def __init__(self) -> None:
        self.index = PrefixIndex()
        self.events: list[object] = []
        self.trials = Trials(self.index, {A, B}, self.events.append)

    def propose(self, ticket: int = 1, blocks: tuple[int, ...] = PROMPT, now: float = 0.0) -> None:
        """Send a prompt to ``A``."""
        self.trials.propose(ticket, A, blocks, UNKNOWN_TENANT, 0, now)

    def held(self, blocks: tuple[int, ...]) -> int:
        """Return how many leading blocks ``A`` holds."""
        return self.index.table.matched(blocks, A)

    def confirmed(self) -> int:
        """Return the number of confirmed blocks of ``A``."""
        return self.index.held(A) - self.index.provisional.count(A)


@pytest.fixture
def made() -> Made:
    """Return trials without requests."""
    return Made()


def test_a_prompt_counts_before_its_answer(made: Made) -> None:
    """Requests that follow at once already find it."""
    made.propose()
    assert made.index.match_all(PROMPT) == {A: 3}
    assert made.confirmed() == 0


def test_an_answer_confirms(made: Made) -> None:
    """Peers are told the insert and its verdict."""
    made.propose()
    made.trials.confirm(1, A)
    assert (made.confirmed(), len(made.trials)) == (3, 0)
    assert made.events == [Inserted(A, PROMPT, 0.0, UNKNOWN_TENANT, 1), Confirmed(1)]


def test_a_refusal_leaves_nothing(made: Made) -> None:
    """What a replica refused to read is not in its cache."""
    made.propose()
    made.trials.reject(1)
    assert (made.index.blocks, len(made.trials)) == (0, 0)
    assert made.events[-1] == Withdrawn(1)


def test_a_retried_prompt_is_where_it_was_answered(made: Made) -> None:
    """The replica that refused the connection has not read it."""
    made.propose()
    made.trials.confirm(1, B)
    assert made.index.match_all(PROMPT) == {B: 3}
    assert made.events[1:] == [
        Withdrawn(1),
        Inserted(B, PROMPT, 0.0, UNKNOWN_TENANT, 1),
        Confirmed(1),
    ]


def test_a_running_retry_moves_the_insert(made: Made) -> None:
    """An intermediate entry names the replica that serves the request now."""
    made.propose()
    made.trials.move(1, B, 1.0)
    assert made.index.match_all(PROMPT) == {B: 3}
    made.trials.confirm(1, B)
    assert made.index.match_all(PROMPT) == {B: 3}


def test_an_answer_of_an_unknown_replica_leaves_nothing(made: Made) -> None:
    """The replica was removed, and the pick did not serve."""
    made.propose()
    made.trials.confirm(1, GONE)
    assert (made.index.blocks, len(made.trials)) == (0, 0)


def test_a_verdict_without_an_insert_changes_nothing(made: Made) -> None:
    """Entries may be late or come twice."""
    for verdict in (lambda: made.trials.confirm(1, A), lambda: made.trials.reject(1)):
        verdict()
        made.propose()
        made.trials.confirm(1, A)
        verdict()
    assert made.confirmed() == 3


@pytest.mark.parametrize(("done", "held"), [(True, 3), (False, 0)])
def test_without_a_log_the_end_decides(made: Made, done: bool, held: int) -> None:
    """If no entry comes in the time of grace, there is no log."""
    made.propose()
    made.trials.ended(1, 1.0, done=done)
    made.trials.ended(0, 1.0 + GRACE_S - 0.01, done=True)
    assert made.index.provisional.count(A) == 3
    made.trials.ended(0, 1.0 + GRACE_S, done=True)
    assert (made.confirmed(), made.index.blocks) == (held, held)


def test_a_lost_entry_of_a_log_that_works_withdraws(made: Made) -> None:
    """Otherwise a refused request whose entry is lost would count as answered."""
    made.propose()
    made.trials.ended(1, 1.0, done=True)
    made.trials.confirm(77, A)
    made.trials.ended(0, 1.0 + GRACE_S, done=True)
    assert made.index.blocks == 0


def test_a_silent_log_does_not_delay_later_requests(made: Made) -> None:
    """Once it is known that there is no log, the end of a request decides at once."""
    made.propose()
    made.trials.ended(1, 0.0, done=True)
    made.trials.ended(0, GRACE_S, done=True)
    made.propose(2, (7, 8), GRACE_S)
    made.trials.ended(2, GRACE_S, done=True)
    assert made.confirmed() == 5


def test_a_log_that_speaks_again_is_waited_for(made: Made) -> None:
    """One entry is enough: the proxy was restarted with its access log."""
    made.propose()
    made.trials.ended(1, 0.0, done=True)
    made.trials.ended(0, GRACE_S, done=True)
    made.trials.reject(5)
    made.propose(2, (7, 8), GRACE_S)
    made.trials.ended(2, GRACE_S, done=True)
    assert made.confirmed() == 3


def test_a_running_request_waits_without_limit(made: Made) -> None:
    """A long queue before the first byte is no failure."""
    made.propose()
    made.trials.ended(0, 10_000.0, done=True)
    assert made.index.table.matched(PROMPT, A) == 3


def test_memory_is_bounded_by_blocks(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the bound the oldest inserts are withdrawn."""
    monkeypatch.setattr(module, "MAX_BLOCKS", 10)
    made = Made()
    for ticket in range(1, 6):
        made.propose(ticket, tuple(range(10 * ticket, 10 * ticket + 4)))
    assert (len(made.trials), made.index.blocks) == (2, 8)
    made.trials.confirm(1, A)
    assert made.confirmed() == 0


def test_waits_are_bounded(monkeypatch: pytest.MonkeyPatch, made: Made) -> None:
    """Beyond the bound the longest wait ends early."""
    monkeypatch.setattr(module, "MAX_ENDED", 3)
    for ticket in range(1, 6):
        made.propose(ticket, (10 * ticket,))
        made.trials.ended(ticket, 0.0, done=True)
    assert len(made.trials._ended) <= 3


def test_peer_workers_decide_about_their_own(made: Made) -> None:
    """Equal tickets of two workers are two requests, and no event is passed on."""
    for worker in (0, 1):
        made.trials.follow(worker, Inserted(A, (10 + worker,), 0.0, UNKNOWN_TENANT, 5), 0.0)
    made.propose(5, (30,))
    made.trials.follow(0, Confirmed(5), 0.0)
    made.trials.follow(1, Withdrawn(5), 0.0)
    assert made.index.match_all((10,)) == {A: 1}
    assert made.index.match_all((11,)) == {}
    assert (made.confirmed(), made.index.provisional.count(A)) == (1, 1)
    assert len(made.events) == 1


def test_a_lost_peer_leaves_no_provisional_blocks(made: Made) -> None:
    """Its verdicts will never come; those of other workers will."""
    for worker in (0, 1, 2):
        made.trials.follow(worker, Inserted(A, (10 + worker,), 0.0, UNKNOWN_TENANT, 5), 0.0)
    made.propose(5, (30,))
    made.trials.lost(1)
    found = [bool(made.index.match_all((block,))) for block in (10, 11, 12, 30)]
    assert found == [True, False, True, True]


def test_a_peer_that_repeats_a_ticket_replaces_the_insert(made: Made) -> None:
    """A retry moved it; nothing is counted twice."""
    made.trials.follow(0, Inserted(A, PROMPT, 0.0, UNKNOWN_TENANT, 5), 0.0)
    made.trials.follow(0, Inserted(B, PROMPT, 0.0, UNKNOWN_TENANT, 5), 0.0)
    assert made.index.match_all(PROMPT) == {B: 3}
    assert len(made.trials) == 1


def test_peers_snapshots_are_confirmed(made: Made) -> None:
    """A worker that starts learns the index as confirmed inserts."""
    made.trials.follow(0, Inserted(A, PROMPT, 0.0, 9), 0.0)
    made.trials.follow(0, Inserted(GONE, PROMPT, 0.0), 0.0)
    assert (made.confirmed(), made.index.held(GONE)) == (3, 0)


# --- By a router --------------------------------------------------------------------------------


def test_a_moved_charge_takes_its_prompt_along(build) -> None:
    """The index has the blocks of a running request at the replica that serves it."""
    router = build.router(build.pool(2))
    ticket = router.decide(build.request(blocks=PROMPT), 0.0, 0.0).ticket
    other = next(e for e in router.pools["llm"].endpoints if e.key != ticket.endpoint)
    assert router.note_serving(ticket.id, other.http, 1.0)
    assert router.index.match_all(PROMPT) == {other.key: 3}
    router.settle(ticket, Outcome.DONE, 1.0)
    router.confirmed(ticket.id, other.key)
    assert router.index.match_all(PROMPT) == {other.key: 3}
    assert router.index.provisional.count(other.key) == 0


def test_a_restart_before_the_verdict_leaves_nothing(build) -> None:
    """The process that read the prompt is gone."""
    router = build.router(build.pool(1))
    ticket = router.decide(build.request(blocks=PROMPT), 0.0, 0.0).ticket
    router.registry.restarted(ticket.endpoint.id, 1.0)
    router.confirmed(ticket.id, ticket.endpoint)
    assert router.index.match_all(PROMPT) == {}


@pytest.mark.parametrize("end", [lambda *_: None, lambda r, t: r.settle(t, Outcome.DONE, 0.1)])
def test_a_refused_flood_leaves_others_where_they_were(
    build, end: Callable[[object, object], object]
) -> None:
    """1,600 refused prompts fill the index several times over; others keep theirs."""
    pool = build.pool(2, index_blocks=4_000)
    router = build.router(pool)
    prompts = [tuple(range(n * 1000, n * 1000 + 40)) for n in range(1, 21)]
    for prompt in prompts:
        ticket = router.decide(build.request(blocks=prompt), 0.0, 0.0).ticket
        router.confirmed(ticket.id, ticket.endpoint)
        router.settle(ticket, Outcome.DONE, 0.0)
    before = [router.index.match_all(prompt) for prompt in prompts]
    late = []
    for number in range(1_600):
        start = 1_000_000 + number * 100
        prompt = prompts[number % 20][:20] + tuple(range(start, start + 60))
        ticket = router.decide(build.request(blocks=prompt), 0.1, 0.0).ticket
        end(router, ticket)
        if number % 3:
            router.rejected(ticket.id)
        else:
            late.append(ticket.id)
        assert router.index.provisional.count(ticket.endpoint) <= 2048
    for ticket_id in late:
        router.rejected(ticket_id)
    assert [router.index.match_all(prompt) for prompt in prompts] == before
    assert sum(before[n] != {} for n in range(20)) == 20


def test_a_tenant_is_the_salt_or_the_session() -> None:
    """A salt and a session of one name are two tenants; nameless requests are one."""
    features = Features(Form.GENERATE, session="x")
    salted = Features(Form.GENERATE, session="y", salt="x")
    found = {
        tenant_of(features, 0),
        tenant_of(salted, 0),
        tenant_of(features, 1),
        tenant_of(Features(Form.GENERATE), 0),
    }
    assert len(found) == 4
    assert all(0 <= each < 2**63 for each in found)
    assert tenant_of(Features(Form.GENERATE), 1) == UNKNOWN_TENANT


@pytest.mark.parametrize("good", [True, False])
def test_the_prompts_of_a_batch_share_a_verdict(made: Made, good: bool) -> None:
    """Each is an insert of its own, here and at peers."""
    chains = ((1, 2), (1, 3, 4), (5,))
    made.trials.propose_all(1, A, chains, UNKNOWN_TENANT, 0.0)
    assert [made.held(each) for each in chains] == [2, 3, 1]
    if good:
        made.trials.confirm(1, A)
    else:
        made.trials.reject(1)
    assert [made.held(each) for each in chains] == ([2, 3, 1] if good else [0, 0, 0])
    assert len(made.trials) == 0
    assert [type(each) for each in made.events].count(Confirmed) == (3 if good else 0)


def test_a_batch_moves_and_ends_as_a_whole(made: Made) -> None:
    """A retried batch is held by the replica that serves it; a lost entry withdraws all of it."""
    chains = ((1, 2), (3, 4))
    made.trials.propose_all(1, A, chains, UNKNOWN_TENANT, 0.0)
    made.trials.move(1, B, 0.5)
    assert [made.index.table.matched(each, B) for each in chains] == [2, 2]
    assert [made.held(each) for each in chains] == [0, 0]
    made.trials.ended(1, 1.0, done=True)
    made.propose(2, (9,), 1.0)
    made.trials.confirm(2, A)
    made.trials.ended(3, 1.0 + 2 * GRACE_S, done=True)
    assert [made.index.table.matched(each, B) for each in chains] == [0, 0]
    assert len(made.trials) == 0
