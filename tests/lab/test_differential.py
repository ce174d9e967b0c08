"""The same calls to one Triton directly and through the gateway: what is the same, and what not."""

from __future__ import annotations

import asyncio
import fnmatch

import pytest

from bench.emulator.http import DataPort
from bench.emulator.replica import EmulatedReplica
from bench.engine import EngineConfig
from support.differential import (
    client_calls,
    grpc_calls,
    mistaken_calls,
    odd_models,
    openai_calls,
    raw_calls,
)
from support.differential.accepted import ACCEPTED
from support.differential.answers import Target, differing, explain

CALLS = (
    *raw_calls.QUESTIONS,
    *raw_calls.ONE_REPLICA,
    *raw_calls.INFERENCES,
    *raw_calls.SPELLINGS,
    *raw_calls.FORMS,
    *mistaken_calls.MISTAKES,
    *grpc_calls.QUESTIONS,
    *grpc_calls.ONE_REPLICA,
    *grpc_calls.INFERENCES,
    *grpc_calls.STREAMS,
    *client_calls.CLIENTS,
    *openai_calls.OPENAI,
    *odd_models.ODD_NAMES,
    *odd_models.ODD_MESSAGES,
)
GENERAL = tuple(one for one in ACCEPTED if one.is_general)


@pytest.fixture(scope="module")
async def engine():
    """Serve an emulated engine with OpenAI's API; return its address."""
    port = DataPort(EmulatedReplica(EngineConfig(), 100.0), "vllm")
    server = await asyncio.get_running_loop().create_server(port.protocol, "127.0.0.1", 0)
    host, number = server.sockets[0].getsockname()
    yield f"{host}:{number}"
    server.close()


@pytest.fixture(scope="module")
async def targets(new_module_stack, tritons, engine):
    """Start a gateway over one Triton and one engine; return both ways to them."""
    replica = tritons.replicas[0]

    def one_replica(fleet):
        fleet["listener"]["debug_headers"] = False  # the default
        for pool in fleet["pools"]:
            pool["endpoints"] = [one for one in pool["endpoints"] if one["id"] == replica.name]
            pool["variants"] = pool["variants"][:1]
        fleet["pools"].append(
            {
                "name": "openai",
                "match": {
                    "models": [openai_calls.MODEL],
                    "paths": [openai_calls.CHAT, openai_calls.COMPLETIONS],
                },
                "endpoints": [{"id": "engine", "http": engine}],
                "health": {"path": "/health"},
            }
        )

    stack = await new_module_stack(fleet=one_replica, gateway=True)
    return (
        Target(replica.http, replica.grpc, engine, gateway=False),
        Target(stack.http_address, stack.grpc_address, stack.http_address, gateway=True),
    )


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.name)
async def test_an_answer_differs_only_as_accepted(targets, call):
    """An unknown difference fails, and so does an accepted one that the answer does not have."""
    direct, gateway = [await call.ask(target) for target in targets]
    named = [one for one in ACCEPTED if not one.is_general and one.concerns(call.name)]
    left, used = explain(differing(direct, gateway), [*named, *GENERAL])
    assert left == {}
    assert used >= {one.name for one in named}


async def test_general_differences_are_there(targets):
    """Over HTTP and gRPC."""
    names = {"http: metadata of a model", "gRPC: metadata of a model"}
    for call in (each for each in CALLS if each.name in names):
        direct, gateway = [await call.ask(target) for target in targets]
        _, used = explain(differing(direct, gateway), GENERAL)
        assert used == {one.name for one in GENERAL}


@pytest.mark.parametrize("kind", client_calls.KINDS, ids=lambda kind: kind.name)
def test_each_question_of_tritonclient_is_asked(kind):
    """What a later version of it adds is missed here."""
    names = [call.name for call in client_calls.CLIENTS]
    methods = [name for name in dir(kind.client) if name.startswith(("get_", "is_"))]
    assert len(methods) >= 12
    assert [each for each in methods if f"{kind.name}: {each}" not in names] == []


def test_each_name_in_the_table_is_that_of_a_call():
    """A call that is renamed or removed leaves no entry behind, and no call is there twice."""
    names = [call.name for call in CALLS]
    assert len(set(names)) == len(names) >= 150
    patterns = [(one.name, pattern) for one in ACCEPTED for pattern in one.calls]
    assert [each for each in patterns if not fnmatch.filter(names, each[1])] == []
