"""Which replica has which model, and what decisions make of it."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.routing.health import placement as module
from ext_proc.routing.health.placement import OWN_S, STALE_S, Placement
from ext_proc.routing.router import Router
from ext_proc.routing.values.listing import (
    MAX_ROWS,
    OWN_MODEL,
    Listing,
    PlacementState,
    Row,
)
from ext_proc.routing.values.pool import Endpoint, EndpointKey, Pool, Variant
from ext_proc.routing.values.refusal import Refusal, RefusalKind
from ext_proc.routing.values.request import Features, Form, Request
from ext_proc.routing.values.ticket import Outcome

READY, LOADING, UNAVAILABLE = PlacementState
KEYS = [EndpointKey(f"r{number}", 1) for number in range(3)]
R0, R1, R2 = KEYS


def pool(count=3, **changes):
    """Return a pool of replicas that speak HTTP."""
    endpoints = [
        Endpoint(key, "stable", http=f"10.0.0.{number}:8000", grpc=None)
        for number, key in enumerate(KEYS[:count])
    ]
    return replace(
        Pool(
            name="many",
            variants=(Variant("stable", 100),),
            endpoints=tuple(endpoints),
            policy="least-in-flight",
        ),
        **changes,
    )


def listing(at, *names, whole=True, **states):
    """Return a listing of models: names that are READY, and others with their states."""
    rows = [Row(name, "1", READY) for name in names]
    rows += [Row(name, "1", state, "why") for name, state in states.items()]
    return Listing(at, tuple(rows), whole)


def table(**pools):
    """Return a table for these pools."""
    made = Placement()
    made.set_pools(pools or {"many": pool()})
    return made


class Half:
    """A source of randomness that always gives one half."""

    def random(self):
        """Return one half."""
        return 0.5


@pytest.fixture
def router():
    """Return a router with one pool."""
    made = Router(Half())
    made.set_pools({"many": pool()}, 0.0)
    return made


def decide(router, model="a", now=1.0, version=None, form=Form.HTTP_INFER, **more):
    """Decide one request."""
    features = Features(form, model=model, version=version)
    return router.decide(Request("many", None, "http", features, **more), now, now)


def order(decision):
    """Return the last parts of the addresses, in their order."""
    return [each.removeprefix("10.0.0.").partition(":")[0] for each in decision.addresses]


def hosts(decision):
    """Return those of the candidates: others are only tried where these lack the model."""
    likely = {each.address for each in decision.candidates}
    count = len(likely & set(decision.addresses))
    assert set(decision.addresses[:count]) <= likely
    return set(order(decision)[:count])


def test_a_replica_without_the_model_gets_none_of_its_requests(router):
    """It is neither pick nor fallback, and gets those of the models that it has."""
    router.placement.take(R0, listing(0.0, "b", a=LOADING))
    router.placement.take(R1, listing(0.0, "a", "b"))
    router.placement.take(R2, listing(0.0, "a"))
    for _ in range(6):
        assert hosts(decide(router, "a")) == {"1", "2"}
        assert hosts(decide(router, "b")) == {"0", "1"}
        assert hosts(decide(router, "b", form=Form.OTHER)) == {"0", "1"}


def test_a_version_is_known_by_itself(router):
    """Any version does where a request names none."""
    router.placement.take(R0, Listing(0.0, (Row("a", "1", READY),)))
    router.placement.take(R1, Listing(0.0, (Row("a", "1", UNAVAILABLE), Row("a", "2", READY))))
    router.placement.take(R2, Listing(0.0, (Row("a", "1", UNAVAILABLE),)))
    assert hosts(decide(router, "a")) == {"0", "1"}
    view = router.placement.holders("many", "a", "2")
    assert view.ready == {R1}
    assert view.barred == {R0, R2}


def test_a_404_is_repeated_where_a_replica_has_the_model(router):
    """On those that may have it, then on those that may have it since; not for unknown names."""
    router.placement.take(R0, listing(0.0, "a"))
    router.placement.take(R1, listing(0.0, "b"))
    router.placement.take(R2, listing(0.5, "b", a=LOADING))
    decision = decide(router, "a")
    assert (decision.repeat_missing, order(decision)) == (True, ["0", "2", "1"])
    assert decide(router, "a", form=Form.OTHER).repeat_missing
    assert not decide(router, "z").repeat_missing
    assert not decide(router, "z", form=Form.OTHER).repeat_missing


def test_a_lost_model_is_repeated_until_all_others_were_looked_at(router):
    """The last replica that had it has it no more: it may have moved."""
    asked = []
    for key, names in ((R0, ["a", "b"]), (R1, ["b"]), (R2, ["b"])):
        router.placement.take(key, listing(1.0, *names))
    router.placement.on_look = asked.append
    router.placement.take(R0, listing(2.0, "b"))
    assert set(asked) == {R1, R2}
    assert decide(router, "a", now=2.0).repeat_missing
    assert not decide(router, "z", now=2.0).repeat_missing
    router.placement.take(R1, listing(2.1, "b"))
    assert decide(router, "a", now=2.1).repeat_missing
    router.placement.take(R0, listing(2.2, "b"))
    router.placement.take(R2, listing(2.2, "b"))
    assert not decide(router, "a", now=2.2).repeat_missing


def test_what_is_lost_is_repeated_for_a_while_only(router):
    """A replica that answers no look keeps it no longer."""
    router.placement.take(R0, listing(1.0, "a"))
    router.placement.take(R0, listing(2.0))
    assert decide(router, "a", now=2.0).repeat_missing
    router.placement.sweep(2.0 + OWN_S + 0.1)
    router.placement.take(R0, listing(2.3 + OWN_S))
    assert not decide(router, "a", now=2.5 + OWN_S).repeat_missing


def test_a_404_is_repeated_until_all_that_came_were_looked_at(router):
    """One of them may have the model, whatever those say that were looked at first."""
    assert decide(router, "a").repeat_missing
    router.placement.take(R0, listing(1.0, "b"))
    router.placement.forget(R1)
    assert decide(router, "a").repeat_missing
    router.placement.take(R2, listing(1.1, "b"))
    assert not decide(router, "a").repeat_missing
    router.set_pools({"many": pool(2)}, 1.2)
    assert not decide(router, "a").repeat_missing
    router.set_pools({"many": pool()}, 1.3)
    assert decide(router, "a").repeat_missing


def test_a_look_that_does_not_come_is_not_waited_for(router):
    """Engines without a list of their models, and replicas that hang, are not looked at."""
    router.placement.take(R0, listing(1.0, "b"))
    router.placement.sweep(OWN_S)
    assert decide(router, "a", now=OWN_S).repeat_missing
    router.placement.sweep(OWN_S + 0.1)
    assert not decide(router, "a", now=OWN_S + 0.2).repeat_missing


def leaving(*models, **more):
    """Return the pool with models that leave its first replica."""
    first, *others = pool().endpoints
    return pool(endpoints=(replace(first, leaving=frozenset(models)), *others), **more)


def test_a_model_that_leaves_a_replica_is_sent_elsewhere(router):
    """That replica keeps its other models, and is tried last."""
    for key in KEYS:
        router.placement.take(key, listing(1.0, "a", "b"))
    router.placement.take(R2, listing(1.5, "b"))
    router.set_pools({"many": leaving("a")}, 2.0)
    decision = decide(router, "a", now=2.0)
    assert (hosts(decision), order(decision)) == ({"1"}, ["1", "2", "0"])
    assert hosts(decide(router, "b", now=2.0)) == {"0", "1", "2"}


def test_a_model_leaves_also_where_no_other_replica_is_known_to_have_it(router):
    """It may have been loaded there just now: the others are asked, and requests try them first."""
    asked = []
    for key in KEYS:
        router.placement.take(key, listing(1.0, "b"))
    router.placement.take(R0, listing(1.5, "a", "b"))
    router.placement.on_look = asked.append
    router.set_pools({"many": leaving("a")}, 2.0)
    assert set(asked) == {R1, R2}
    decision = decide(router, "a", now=2.0)
    assert (hosts(decision), order(decision)[-1]) == ({"1", "2"}, "0")
    assert decision.repeat_missing


def test_a_model_that_leaves_all_replicas_is_served_to_the_end(router):
    """There is nowhere else to send its requests."""
    for key in KEYS:
        router.placement.take(key, listing(1.0, "a"))
    every = tuple(replace(each, leaving=frozenset("a")) for each in pool().endpoints)
    router.set_pools({"many": pool(endpoints=every)}, 2.0)
    assert hosts(decide(router, "a", now=2.0)) == {"0", "1", "2"}


def test_a_model_that_has_left_stays_out_of_use_until_the_next_look(router):
    """The unload is done, but the table is older."""
    asked = []
    for key in KEYS:
        router.placement.take(key, listing(1.0, "a"))
    router.placement.on_look = asked.append
    router.set_pools({"many": leaving("a")}, 2.0)
    router.set_pools({"many": pool()}, 3.0)
    assert asked == [R0]
    assert hosts(decide(router, "a", now=3.0)) == {"1", "2"}
    router.placement.take(R0, listing(2.9, "a"))
    assert hosts(decide(router, "a", now=3.1)) == {"1", "2"}
    router.placement.take(R0, listing(3.2, "a"))
    assert hosts(decide(router, "a", now=3.3)) == {"0", "1", "2"}


def test_a_model_leaves_a_replica_of_which_nothing_is_known(router):
    """As for a picker that has just started."""
    router.set_pools({"many": leaving("a")}, 2.0)
    assert hosts(decide(router, "a", now=2.0)) == {"1", "2"}


def test_what_runs_for_a_model_that_leaves_is_counted(router):
    """By replica and model; requests of other models are not."""
    router.set_pools({"many": pool(1)}, 0.0)
    tickets = [decide(router, model).ticket for model in "aab"]
    assert router.leaving() == {}
    (first,) = pool(1).endpoints
    router.set_pools({"many": pool(1, endpoints=(replace(first, leaving=frozenset("a")),))}, 1.0)
    assert router.leaving() == {("r0", "a"): 2}
    router.settle(tickets[0], Outcome.DONE, 2.0)
    assert router.leaving() == {("r0", "a"): 1}


def test_an_engines_own_model_is_missing_nowhere(router):
    """It cannot unload it, so its 404 is about something else; adapters it can unload."""
    rows = (Row("a", "", READY, OWN_MODEL), Row("b", "", READY))
    for key in KEYS:
        router.placement.take(key, Listing(0.0, rows))
    assert not decide(router, "a", form=Form.OPENAI).repeat_missing
    assert decide(router, "b", form=Form.OPENAI).repeat_missing


def test_a_404_about_an_adapter_is_not_repeated(router):
    """The base model is everywhere; of Triton's forms a 404 says that the model is missing."""
    for key in KEYS:
        router.placement.take(key, listing(0.0, "a"))
    for form, repeated in ((Form.OPENAI, False), (Form.GENERATE, True)):
        features = Features(form, model="a", adapter="sql")
        made = router.decide(Request("many", None, "http", features), 0.0, 0.0)
        assert made.repeat_missing == repeated


@pytest.mark.parametrize("having", [1, 40])
def test_large_pools_filter_their_sample(having):
    """Also where no replica of the sample has the model."""
    keys = [EndpointKey(f"r{number}", 1) for number in range(64)]
    endpoints = tuple(
        Endpoint(key, "stable", http=f"10.0.0.{number}:8000", grpc=None)
        for number, key in enumerate(keys)
    )
    router = Router(Random(1))
    router.set_pools({"many": pool(endpoints=endpoints)}, 0.0)
    for number, key in enumerate(keys):
        router.placement.take(key, listing(0.0, "b", *(["a"] if number < having else [])))
    allowed = {str(number) for number in range(having)}
    for _ in range(40):
        decision = decide(router)
        assert hosts(decision) <= allowed
        assert decision.repeat_missing == (len(decision.addresses) > 1)


def test_a_lease_stays_where_its_state_is(router):
    """A sequence cannot move, whatever the table says."""
    features = Features(Form.HTTP_INFER, model="a", sequence_id=1, sequence_start=True)
    first = router.decide(Request("many", None, "http", features), 0.0, 0.0)
    for key in KEYS:
        has = key != first.ticket.endpoint
        router.placement.take(key, listing(0.0, "a") if has else listing(0.0))
    features = Features(Form.HTTP_INFER, model="a", sequence_id=1)
    more = router.decide(Request("many", None, "http", features), 1.0, 1.0)
    assert more.addresses[:1] == first.addresses[:1]
    assert not more.repeat_missing


def test_what_is_old_is_forgotten():
    """So is what a replica told before it restarted, which is then asked, as the others are."""
    made, asked = table(), []
    made.on_look = asked.append
    made.take(R0, listing(0.0, "a"))
    made.sweep(STALE_S)
    assert made.state(R0, "a") is READY
    made.sweep(STALE_S + 1)
    assert made.state(R0, "a") is None
    assert made.holders("many", "a", None) is None
    made.take(R0, listing(100.0, "a"))
    made.restarted(R0)
    assert (made.state(R0, "a"), set(asked)) == (None, {R0, R1, R2})


def test_an_earlier_listing_changes_nothing():
    """Answers may be told out of order."""
    made = table()
    assert made.take(R0, listing(2.0, "a"))
    assert not made.take(R0, listing(1.0))
    assert not made.take(R0, listing(3.0, "a"))
    assert made.state(R0, "a") is READY
    assert made.listing(R0).at == 3.0


def test_states_keep_their_age():
    """A row's age begins when it was first seen like this; reasons are shown."""
    made = table()
    made.take(R0, listing(1.0, "a", b=UNAVAILABLE))
    made.take(R0, listing(4.0, "a", b=LOADING))
    rows = {each.row.model: (each.row.state, each.since, each.at) for each in made.table()}
    assert rows == {"a": (READY, 1.0, 4.0), "b": (LOADING, 4.0, 4.0)}
    shown = made.of(R0, 5.0)
    assert shown["age_s"] == 1.0
    assert shown["models"]["b"] == {"1": {"state": "LOADING", "for_s": 1.0, "reason": "why"}}
    assert made.of(R1, 5.0) is None


def test_pools_without_placement_have_none():
    """`health.repository: false` switches it off; replicas that are gone are dropped."""
    made = table()
    made.take(R0, listing(0.0, "a"))
    made.take(R2, listing(0.0, "a"))
    made.set_pools({"many": pool(1), "other": replace(pool(), name="other", repository=False)})
    assert made.holders("other", "a", None) is None
    assert made.holders("many", "a", None).ready == {R0}
    assert not made.take(R2, listing(1.0, "a"))


def test_bounds_hold(monkeypatch):
    """What a cut listing does not name is unknown; models and misses are kept up to a bound."""
    made = table()
    made.take(R0, listing(0.0, *[f"m{number}" for number in range(MAX_ROWS + 5)]))
    assert len(made.listing(R0).rows) == MAX_ROWS
    assert made.state(R0, f"m{MAX_ROWS + 1}") is None
    monkeypatch.setattr(module, "MAX_VIEWS", 4)
    for number in range(100):
        made.holders("many", f"x{number}", None)
        assert len(made.views["many"]) <= 4
    for number in range(40_000):
        made.note(number, "a", None, 0.0)
    assert len(made._younger) + len(made._older) <= module.MAX_TICKETS
    monkeypatch.setattr(module, "MAX_MISSES", 1)
    made.take(R1, listing(0.0, "a", "b"))
    made.note(1, "a", None, 1.0)
    made.note(2, "b", None, 1.0)
    assert [made.missed(number, R1, 2.0) for number in (1, 2)] == [True, False]


# --- Misses -----------------------------------------------------------------------------------


@pytest.fixture
def missing(router):
    """Return a router whose table says that all have the model, and the replicas to be asked."""
    for key in KEYS:
        router.placement.take(key, listing(0.0, "a"))
    asked = []
    router.placement.on_look = asked.append
    return router, asked


def test_a_changed_placement_calls_for_one_look(missing):
    """Many 404s of one replica are one miss, which bars it; the look's result ends it."""
    router, asked = missing
    tickets = [decide(router).ticket for _ in range(9)]
    for ticket in tickets:
        router.placement.missed(ticket.id, R0, 2.0)
    assert asked == [R0]
    assert hosts(decide(router, now=2.5)) == {"1", "2"}
    router.placement.take(R0, listing(3.0))
    for ticket in tickets:
        assert not router.placement.missed(ticket.id, R0, 4.0)
    assert hosts(decide(router, now=5.0)) == {"1", "2"}


def test_a_miss_that_no_look_answers_bars_for_a_while_only(missing):
    """The replica may have loaded the model since."""
    router, _ = missing
    router.placement.missed(decide(router).ticket.id, R0, 2.0)
    assert hosts(decide(router, now=2.5)) == {"1", "2"}
    router.placement.sweep(2.0 + OWN_S + 1)
    assert hosts(decide(router, now=14.0)) == {"0", "1", "2"}


def test_a_model_that_all_are_said_to_lack_bars_none(missing):
    """Only that the others are asked, too: it may be the model itself that answers 404."""
    router, asked = missing
    ticket = decide(router).ticket
    for key in KEYS:
        router.placement.missed(ticket.id, key, 2.0)
    assert set(asked) == set(KEYS)
    assert hosts(decide(router, now=2.5)) == {"0", "1", "2"}


def test_a_404_that_the_table_expected_calls_for_no_look(missing):
    """Unknown names, requests without a model, and 404s of replicas that loaded it since."""
    router, asked = missing
    other = decide(router, "z").ticket
    assert not router.placement.missed(other.id, R0, 2.0)
    assert not router.placement.missed(10**9, R0, 2.0)
    ticket = decide(router).ticket
    router.placement.take(R0, listing(2.0))
    router.placement.take(R0, listing(3.0, "a"))
    assert not router.placement.missed(ticket.id, R0, 4.0)
    assert asked == []


def test_a_model_that_answers_404_itself_is_not_repeated(missing):
    """Looks find it READY as before, twice: for a while its 404s are answers like others."""
    router, asked = missing
    assert decide(router).repeat_missing
    for key in (R0, R1):
        router.placement.missed(decide(router).ticket.id, key, 2.0)
        router.placement.take(key, listing(3.0, "a"))
    assert not decide(router, now=4.0).repeat_missing
    assert not router.placement.missed(decide(router, now=4.0).ticket.id, R2, 5.0)
    assert asked == [R0, R1]
    router.placement.sweep(2.0 + OWN_S + 1)
    assert decide(router, now=14.0).repeat_missing


def test_what_one_client_asks_for_in_vain_is_its_own(missing):
    """Its 404s on two replicas end the repair of its requests, and of no other client's."""
    router, _ = missing
    for key in (R0, R1):
        router.placement.missed(decide(router, client="10.0.0.1").ticket.id, key, 2.0)
        router.placement.take(key, listing(3.0, "a"))
    assert not decide(router, now=4.0, client="10.0.0.1").repeat_missing
    assert decide(router, now=4.0, client="10.0.0.2").repeat_missing
    assert decide(router, now=4.0).repeat_missing
    asks = router.placement.missed(decide(router, now=4.0, client="10.0.0.2").ticket.id, R0, 5.0)
    assert asks
    router.placement.sweep(2.0 + OWN_S + 1)
    assert decide(router, now=14.0, client="10.0.0.1").repeat_missing


def test_an_unknown_region_of_shared_memory_is_no_miss(missing):
    """Triton answers 404 for the region, of a model that it has: also behind one address."""
    router, asked = missing
    body = b'{"outputs":[{"name":"o","parameters":{"shared_memory_region":"none"}}]}'
    decision = decide(router, body=body)
    assert not decision.repeat_missing
    assert not router.placement.missed(decision.ticket.id, R0, 2.0)
    assert asked == []


def test_clients_of_a_models_own_404_are_bounded(missing, monkeypatch):
    """A client with many addresses does not fill the memory; its misses just ask no more."""
    router, _ = missing
    monkeypatch.setattr(module, "MAX_OWN", 3)
    for number in range(9):
        router.placement.missed(decide(router, client=f"10.0.1.{number}").ticket.id, R0, 2.0)
        router.placement.take(R0, listing(3.0, "a"))
    ((place, clients),) = router.placement._own.items()
    assert (place, len(clients)) == ((R0, "a"), 3)


def test_a_model_that_was_loaded_again_is_repeated(missing):
    """Between two looks: the table never saw that the replica lacked it."""
    router, asked = missing
    router.placement.missed(decide(router).ticket.id, R0, 2.0)
    router.placement.take(R0, listing(3.0, "a"))
    assert decide(router, now=4.0).repeat_missing
    assert not router.placement.missed(decide(router, now=4.0).ticket.id, R0, 5.0)
    assert asked == [R0]


names = st.sampled_from(["a", "b", "c"])
states = st.dictionaries(names, st.sampled_from(PlacementState), max_size=3)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("take"), st.sampled_from(KEYS), states, st.booleans()),
        st.tuples(st.just("forget"), st.sampled_from(KEYS)),
        st.tuples(st.just("sweep"), st.sampled_from([1.0, 5.0, STALE_S])),
        st.tuples(st.just("miss"), st.sampled_from(KEYS), names),
    ),
    max_size=30,
)


@given(steps)
def test_decisions_follow_the_latest_listings(drawn):
    """A model's requests go where it is READY or unknown, if it is READY anywhere; else anywhere.

    Nothing is repeated for a model that no replica has, or has had, once all were looked at.
    """
    router = Router(Half())
    router.set_pools({"many": pool()}, 0.0)
    told, had, doubted, now = {}, dict.fromkeys("abc", False), set(), 0.0
    unseen = set(KEYS)
    for step in drawn:
        now += 0.5
        if step[0] == "take":
            _, key, found, whole = step
            router.placement.take(key, listing(now, whole=whole, **found))
            told[key] = now, found, whole
            doubted = {each for each in doubted if each[0] != key}
            unseen.discard(key)
        elif step[0] == "forget":
            router.placement.forget(step[1])
            unseen.discard(step[1])
            told.pop(step[1], None)
        elif step[0] == "sweep":
            now += step[1]
            router.placement.sweep(now)
            told = {key: each for key, each in told.items() if now - each[0] <= STALE_S}
            unseen = unseen if now <= OWN_S else set()
        else:
            decision = decide(router, step[2], now)
            if router.placement.missed(decision.ticket.id, step[1], now):
                doubted.add((step[1], step[2]))
            router.settle(decision.ticket, Outcome.DONE, now)
        for model in "abc":
            state = {
                key: found.get(model, UNAVAILABLE if whole else None)
                for key, (_, found, whole) in told.items()
            }
            decision = decide(router, model, now)
            router.settle(decision.ticket, Outcome.DONE, now)
            ready = {key for key, each in state.items() if each is READY}
            open_ = {key for key in KEYS if key in ready or state.get(key) is None}
            allowed = open_ if ready else set(KEYS)
            doubts = {key for key, of in doubted if of == model}
            found = {EndpointKey(f"r{each}", 1) for each in hosts(decision)}
            assert allowed - doubts <= found <= allowed
            had[model] |= bool(ready)
            assert had[model] or unseen or not decision.repeat_missing
            assert decision.repeat_missing or not unseen
            assert decision.repeat_missing or not ready


PINNED = pool(
    models=frozenset({"a", "b"}),
    variants=(Variant("stable", 100, "1"),),
    endpoints=tuple(
        Endpoint(key, "stable", http=f"10.0.0.{number}:8000", grpc=f"10.0.0.{number}:8001")
        for number, key in enumerate(KEYS)
    ),
)


def versions(at, *ready, model="a", whole=True):
    """Return a listing with these versions of a model READY."""
    return Listing(at, tuple(Row(model, each, READY) for each in ready), whole)


def pinned(*found):
    """Return a router whose variant has version 1, and what the replicas have."""
    made = Router(Half())
    made.set_pools({"many": PINNED}, 0.0)
    for key, listed in zip(KEYS, found, strict=False):
        if listed is not None:
            made.placement.take(key, listed)
    return made


def infer(router, protocol="grpc", model="a", version=None, now=1.0, **more):
    """Decide an inference; return the hosts, or the refusal."""
    form = {"grpc": Form.GRPC_INFER, "http": Form.HTTP_INFER}[protocol]
    features = Features(form, model=model, version=version, **more)
    made = router.decide(Request("many", None, protocol, features), now, now)
    if isinstance(made, Refusal):
        return made
    return hosts(made)


def test_a_replica_that_answers_by_another_version_gets_nothing_without_one():
    """Not over gRPC; over HTTP Envoy names the version, so it only has to be there."""
    router = pinned(versions(0.0, "1"), versions(0.0, "1", "2"), versions(0.0, "2"))
    assert infer(router) == {"0"}
    assert infer(router, "http") == {"0", "1"}
    assert infer(router, version="1") == {"0", "1"}
    assert infer(router, model="b") == {"0", "1", "2"}
    asked = Request("many", None, "grpc", Features(Form.GRPC_INFER, model="a"))
    removed = router.explain(asked, 1.0, 1.0)["removed"]
    assert removed == {"r1": "wrong-version", "r2": "wrong-version"}


def test_a_version_that_is_not_known_is_not_wrong():
    """A replica that was not asked, and versions that are no numbers."""
    assert infer(pinned(None, versions(0.0, "2"), versions(0.0, "2"))) == {"0"}
    router = pinned(versions(0.0, ""), None, versions(0.0, "2"))
    assert infer(router) == infer(router, "http") == {"0", "1"}


def test_where_each_replica_is_wrong_the_request_is_refused():
    """Any of them would answer by another version; the refusal says by which."""
    router = pinned(*(versions(0.0, "1", "10", "9"),) * 3)
    refused = infer(router)
    assert refused.kind is RefusalKind.WRONG_VERSION
    assert "version 1 of model 'a'" in refused.message
    assert "r0 10, r1 10, r2 10" in refused.message
    assert infer(router, "http") == {"0", "1", "2"}


def test_a_stream_whose_model_is_unknown_goes_where_no_model_is_wrong():
    """Of those that another replica has right."""
    router = pinned(versions(0.0, "1"), versions(0.0, "2"), versions(0.0, "2", model="b"))
    assert infer(router, model=None) == {"0", "2"}
    router = pinned(versions(0.0, "1"), versions(0.0, "1"), versions(0.0, "2"))
    assert infer(router, model=None) == {"0", "1"}
    assert infer(pinned(*(versions(0.0, "2"),) * 3), model=None) == {"0", "1", "2"}


def test_a_sequence_whose_replica_answers_by_another_version_is_refused():
    """Its state is gone with its version; one that begins again goes elsewhere."""
    router = pinned(versions(0.0, "1"), versions(0.0), versions(0.0))
    assert infer(router, sequence_id=5, sequence_start=True) == {"0"}
    assert infer(router, sequence_id=5) == {"0"}
    router.placement.take(R0, versions(2.0, "2"))
    router.placement.take(R1, versions(2.0, "1"))
    assert infer(router, sequence_id=5).kind is RefusalKind.WRONG_VERSION
    assert infer(router, sequence_id=5, sequence_start=True) == {"1"}


def test_requests_that_another_version_may_have_answered_are_counted():
    """Those since the look before the last one; not those that name a version."""
    router = pinned(versions(0.0, "1"), versions(0.0), versions(0.0))
    placement = router.placement
    for version in (None, "1", None):
        assert infer(router, version=version) == {"0"}
    infer(router, "http")
    placement.take(R0, versions(2.0, "1"))
    assert placement.moved == {}
    assert infer(router) == {"0"}
    before = placement.changes
    placement.take(R0, versions(3.0, "2"))
    assert (placement.moved, placement.moved_at) == ({("many", "stable"): 3}, {R0: 3})
    assert placement.changes > before
    placement.take(R0, versions(4.0, "2"))
    assert placement.moved == {("many", "stable"): 3}
    placement.set_pools({})
    assert placement.moved_at == {}


def test_requests_that_two_looks_were_right_for_are_not_counted():
    """What was sent before the look before the last one was answered before that one."""
    router = pinned(versions(0.0, "1"), versions(0.0), versions(0.0))
    assert infer(router) == {"0"}
    for at in (1.0, 2.0):
        router.placement.take(R0, versions(at, "1"))
    router.placement.take(R0, versions(3.0, "2"))
    assert router.placement.moved == {}


def test_what_is_counted_is_bounded(monkeypatch):
    """Models that a replica was sent requests of, until its next listing."""
    monkeypatch.setattr(module, "MAX_SENT", 2)
    placement = table()
    for model in ("a", "b", "c", "a"):
        placement.sent(R0, module.Sent("many", "stable", model, "1"))
    assert placement._sent[R0] == {
        module.Sent("many", "stable", "a", "1"): 2,
        module.Sent("many", "stable", "b", "1"): 1,
    }
