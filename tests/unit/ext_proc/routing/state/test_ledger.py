"""The ledger: settles exactly once, is never negative, is bounded."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from ext_proc.routing.state.ledger import Charged, EndpointRemoved, Ledger, LedgerEvent, Settled
from ext_proc.routing.values.pool import EndpointKey
from ext_proc.routing.values.ticket import Outcome, Ticket

A, B = EndpointKey("a", 1), EndpointKey("b", 1)


def ticket(number: int, endpoint: EndpointKey = A, work: float = 10.0) -> Ticket:
    return Ticket(number, endpoint, "llm", work, 0.0)


def test_a_charge_counts_request_and_work() -> None:
    """A charge adds one request and its work to its endpoint only."""
    ledger = Ledger()
    assert ledger.apply(Charged(ticket(1)))
    assert (ledger.load(A).in_flight, ledger.load(A).work) == (1, 10.0)
    assert ledger.load(B).in_flight == 0


def test_a_ticket_settles_once() -> None:
    """The second settle returns False, changes nothing and is counted."""
    ledger = Ledger()
    ledger.apply(Charged(ticket(1)))
    ledger.apply(Charged(ticket(2)))
    assert ledger.apply(Settled(1, Outcome.DONE))
    assert not ledger.apply(Settled(1, Outcome.ABORTED))
    assert ledger.load(A).in_flight == 1
    assert ledger.unmatched == 1
    assert ledger.outcomes == {Outcome.DONE: 1}


def test_removal_settles_all_tickets_of_the_endpoint() -> None:
    """Removal settles its tickets as REMOVED; their later settles are no-ops."""
    ledger = Ledger()
    for number, endpoint in enumerate((A, A, B)):
        ledger.apply(Charged(ticket(number, endpoint)))
    assert ledger.apply(EndpointRemoved(A))
    assert ledger.outcomes == {Outcome.REMOVED: 2}
    assert not ledger.apply(Settled(0, Outcome.DONE))
    assert ledger.load(A).in_flight == 0
    assert ledger.load(B).in_flight == 1


def test_open_tickets_are_bounded() -> None:
    """At the bound a charge is refused and counted; a settle makes room."""
    ledger = Ledger(max_tickets=2)
    assert ledger.apply(Charged(ticket(1)))
    assert ledger.apply(Charged(ticket(2)))
    assert not ledger.apply(Charged(ticket(3)))
    assert (len(ledger), ledger.overflowed, ledger.load(A).in_flight) == (2, 1, 2)
    ledger.apply(Settled(1, Outcome.DONE))
    assert ledger.apply(Charged(ticket(3)))


def test_what_others_have_is_counted_apart() -> None:
    """Requests of peers are part of the load; with none in flight their work is exactly 0."""
    ledger = Ledger()
    ledger.charge(ticket(1, work=0.3))
    ledger.shift(A, 3, 0.1 + 0.2)
    load = ledger.load(A)
    assert (load.in_flight, load.others) == (4, 3)
    ledger.settle(1, Outcome.DONE)
    ledger.shift(A, -3, -0.3)
    assert (load.in_flight, load.others, load.work) == (0, 0, 0.0)


def test_repr_says_what_is_open() -> None:
    """The repr of the ledger and of a load shows their numbers."""
    ledger = Ledger()
    ledger.apply(Charged(ticket(1)))
    assert repr(ledger) == "<Ledger open=1 endpoints=1>"
    assert repr(ledger.load(A)) == "<Load in_flight=1 work=10>"


EVENTS = st.lists(
    st.one_of(
        st.builds(
            Charged,
            st.builds(
                Ticket,
                st.integers(0, 12),
                st.sampled_from([A, B]),
                st.just("llm"),
                st.floats(1, 1e6),
                st.just(0.0),
            ),
        ),
        st.builds(Settled, st.integers(0, 12), st.sampled_from(list(Outcome))),
        st.builds(EndpointRemoved, st.sampled_from([A, B])),
    )
)


@given(EVENTS)
def test_it_never_goes_negative_and_balances(events: list[LedgerEvent]) -> None:
    """After any events loads equal the open tickets, and idle endpoints are exactly 0."""
    ledger = Ledger(max_tickets=6)
    charged = 0
    for event in events:
        changed = ledger.apply(event)
        charged += isinstance(event, Charged) and changed
        counts = Counter(each.endpoint for each in ledger)
        for key, load in ledger.loads():
            assert load.in_flight == counts[key]
            assert load.work >= 0
            assert load.in_flight or load.work == 0
        assert len(ledger) <= 6
    assert charged == len(ledger) + sum(ledger.outcomes.values())


@given(EVENTS)
def test_replay_gives_the_same_state(events: list[LedgerEvent]) -> None:
    """Applying the same events to another ledger gives the same state."""
    first, second = Ledger(), Ledger()
    for event in events:
        first.apply(event)
    for event in events:
        second.apply(event)
    assert list(first) == list(second)
    assert [(key, load.in_flight, load.work) for key, load in first.loads()] == [
        (key, load.in_flight, load.work) for key, load in second.loads()
    ]
