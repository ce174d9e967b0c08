"""Questions to a Triton directly, to a gateway over two, and to a fleet without a gateway."""

from __future__ import annotations

import fnmatch

import pytest

from support.differential import client_calls, grpc_calls, raw_calls
from support.differential.accepted import ACCEPTED, WITHOUT_GATEWAY
from support.differential.answers import Target, differing, explain
from support.operators_listener import operators_listener

EVERY = (
    *raw_calls.QUESTIONS,
    *raw_calls.ONE_REPLICA,
    *grpc_calls.QUESTIONS,
    *grpc_calls.ONE_REPLICA,
    *client_calls.CLIENTS,
)
QUESTIONS = tuple(
    call
    for call in EVERY
    if not any(each in call.name for each in ("infer ", ": infer", ": async_infer", ": stream"))
    # Sums have also batches of sizes that one replica has not seen; `test_gateway.py` adds them up.
    and not call.name.startswith("http: statistics")
)
CHANGES = (
    *(
        call
        for call in (*raw_calls.ONE_REPLICA, *grpc_calls.ONE_REPLICA)
        if "memory" not in call.name and "index" not in call.name
    ),
    *raw_calls.CHANGES,
    *grpc_calls.CHANGES,
)
STREAMS = ("gRPC: watch of health", "gRPC: reflection", "gRPC: reflection v1")
BARE = tuple(
    call
    for call in EVERY
    if call.name in STREAMS or any(one.concerns(call.name) for one in WITHOUT_GATEWAY)
)


@pytest.fixture(scope="module")
def start(new_module_stack, tritons, http):
    """Return what starts a stack over the first replicas and returns both ways to the first."""

    async def started(count, *, gateway, operators=False):
        replicas = [one.name for one in tritons.replicas[:count]]

        def some(fleet):
            fleet["listener"]["debug_headers"] = False
            for pool in fleet["pools"]:
                pool["endpoints"] = [one for one in pool["endpoints"] if one["id"] in replicas]
                pool["variants"] = pool["variants"][:1]
                if operators:  # a load could replace the version of a variant that has one
                    del pool["variants"][0]["model_version"]

        stack = await new_module_stack(fleet=some, gateway=gateway)
        replica = tritons.replicas[0]
        if operators:
            address = await operators_listener(stack, http)
            return (
                Target(replica.http, replica.grpc, "", gateway=False),
                Target(address, address, "", gateway=True),
            )
        return (
            Target(replica.http, replica.grpc, "", gateway=False),
            Target(stack.http_address, stack.grpc_address, "", gateway=True),
        )

    return started


@pytest.fixture(scope="module")
async def two(start):
    """Start a gateway over two replicas of the same models."""
    return await start(2, gateway=True)


@pytest.fixture(scope="module")
async def operated(start):
    """Start a listener for operators over two replicas of the same models."""
    return await start(2, gateway=True, operators=True)


@pytest.fixture(scope="module")
async def bare(start):
    """Start a fleet without a gateway over one replica."""
    return await start(1, gateway=False)


@pytest.mark.parametrize("call", QUESTIONS, ids=lambda call: call.name)
async def test_two_replicas_answer_as_one(two, call):
    """The differences are those of a single replica behind a gateway."""
    direct, gateway = [await call.ask(target) for target in two]
    left, _ = explain(differing(direct, gateway), ACCEPTED)
    assert left == {}


@pytest.mark.parametrize("call", CHANGES, ids=lambda call: call.name)
async def test_operators_get_the_answers_of_one_triton(operated, call):
    """For calls that change replicas, right and wrong ones: also the bytes of refusals."""
    direct, listener = [await call.ask(target) for target in operated]
    left, _ = explain(differing(direct, listener), [one for one in ACCEPTED if one.is_general])
    assert left == {}


@pytest.mark.parametrize("call", BARE, ids=lambda call: call.name)
async def test_a_fleet_without_a_gateway_refuses_what_it_cannot_answer(bare, call):
    """An unknown difference fails, and so does an accepted one that the answer does not have."""
    direct, envoy = [await call.ask(target) for target in bare]
    named = [one for one in WITHOUT_GATEWAY if one.concerns(call.name)]
    general = [one for one in ACCEPTED if one.is_general and one.name != "asked replicas"]
    left, used = explain(differing(direct, envoy), [*named, *general])
    assert left == {}
    assert used >= {one.name for one in named}


def test_each_name_in_the_table_without_a_gateway_is_that_of_a_call():
    """A call that is renamed or removed leaves no entry behind."""
    names = [call.name for call in EVERY]
    patterns = [pattern for one in WITHOUT_GATEWAY for pattern in one.calls]
    assert [each for each in patterns if not fnmatch.filter(names, each)] == []
