"""Answers over HTTP from replicas that agree, differ, lie or say nothing."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from ext_proc.routing.values.pool import Pool, Variant
from gateway import asking, ports
from gateway.http_answers import HttpQuestion, HttpReply
from gateway.ports import scope_of

from .conftest import saying

if TYPE_CHECKING:
    from .conftest import Lab

INDEX = "/v2/repository/index"
STATS = "/v2/models/m/stats"


async def ask(
    lab: Lab,
    path: str,
    *,
    endpoint: str = "",
    names: str = "*",
    admin: bool = False,
    method: str = "",
    body: bytes = b"",
) -> HttpReply:
    """Ask the gateway over HTTP."""
    verb = method or ("POST" if path.endswith(("index", "load")) else "GET")
    question = HttpQuestion(verb, path, body)
    return await lab.calls.http(question, scope_of(names, endpoint), admin=admin)


def counted(count: int) -> dict[str, Any]:
    """Return statistics of the model ``m``."""
    return {"model_stats": [{"name": "m", "version": "1", "inference_count": count}]}


async def silent(_: str, __: asyncio.StreamWriter) -> None:
    """Never answer."""
    await asyncio.get_running_loop().create_future()


async def closing(_: str, writer: asyncio.StreamWriter) -> None:
    """Close the connection on the request."""
    writer.close()


async def endless(_: str, writer: asyncio.StreamWriter) -> None:
    """Send without an end."""
    writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    while True:
        writer.write(b"10000\r\n" + b"x" * 65536 + b"\r\n")
        await writer.drain()


async def garbage(_: str, writer: asyncio.StreamWriter) -> None:
    """Answer what is no HTTP."""
    writer.write(b"\x00\xff no HTTP at all\r\n\r\n")


async def cut(_: str, writer: asyncio.StreamWriter) -> None:
    """Close in the middle of a body."""
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{")
    await writer.drain()
    writer.close()


async def test_what_all_say_is_passed_on_as_it_came(lab: Lab):
    """Byte for byte, whatever its spelling."""
    raw = b'{"name" :  "m","versions":["1"]}'
    await lab.replicas(saying(raw=raw), saying(raw=raw))
    reply = await ask(lab, "/v2/models/m")
    assert (reply.status, reply.body, reply.note) == (200, raw, "2/2")


@pytest.mark.parametrize(
    ("act", "word"),
    [
        (silent, "timeout"),
        (closing, "unreachable"),
        (endless, "too-large"),
        (garbage, "unreachable"),
        (cut, "unreachable"),
        (saying(raw=b"{"), "malformed"),
        (saying(raw=b"[" * 100_000), "malformed"),
        (saying(body=[1, 2]), "malformed"),
        (saying(body=counted(-5)), "malformed"),
        (saying(400, {"error": "no such model"}), "refuses"),
        (saying(302, {}), "refuses"),
    ],
    ids=range(11),
)
async def test_one_bad_replica_spoils_no_sum(lab: Lab, act: Any, word: str):
    """Its fault is told; the sum is that of the others."""
    await lab.replicas(saying(body=counted(3)), act, saying(body=counted(4)))
    asking = asyncio.create_task(ask(lab, STATS))
    if act is silent:
        await lab.asked_of(3)
        await lab.let_answers_be_late(1)
    reply = await asking
    assert orjson.loads(reply.body) == {
        "model_stats": [{"name": "m", "version": "1", "inference_count": 7, "memory_usage": []}]
    }
    assert (reply.status, reply.note) == (200, f"2/3; r2={word}")


@pytest.mark.parametrize("path", ["/v2", "/v2/models/m", "/v2/models/m/config", STATS, INDEX])
async def test_if_nobody_answers_the_caller_is_told_why(lab: Lab, path: str):
    """As an error of Triton's form."""
    await lab.replicas(closing, garbage)
    reply = await ask(lab, path)
    assert (reply.status, reply.reason, reply.note) == (
        503,
        "unavailable",
        "0/2; r1=unreachable, r2=unreachable",
    )
    assert "r1 unreachable" in orjson.loads(reply.body)["error"]


async def test_the_error_of_all_is_passed_on(lab: Lab):
    """An unknown model is unknown in Triton's words."""
    error = {"error": "Request for unknown model: 'x' is not found"}
    await lab.replicas(saying(400, error), saying(400, error))
    reply = await ask(lab, "/v2/models/x/config")
    assert (reply.status, orjson.loads(reply.body)) == (400, error)


async def test_a_description_that_differs_is_named(lab: Lab):
    """That of most counts; the versions are those of all."""
    await lab.replicas(
        saying(body={"name": "m", "versions": ["1"], "platform": "a"}),
        saying(body={"name": "m", "versions": ["2"], "platform": "b"}),
        saying(body={"versions": ["3"], "platform": "b", "name": "m"}),
    )
    reply = await ask(lab, "/v2/models/m")
    assert orjson.loads(reply.body) == {"name": "m", "versions": ["1", "2", "3"], "platform": "b"}
    assert reply.note == "3/3; r1=differs"
    reply = await ask(lab, "/v2/models/m/config")
    assert reply.note == "3/3; r2=differs, r3=differs"


async def test_what_the_machine_gives_makes_no_other_configuration(lab: Lab):
    """Nor what a server completes; another count of instances does."""
    groups = ({"name": f"m_{n}", "gpus": [n], "count": count} for n, count in enumerate((1, 1, 2)))
    one, two, three = ({"name": "m", "instance_group": [each]} for each in groups)
    await lab.replicas(saying(body=one), saying(body=two | {"runtime": ""}), saying(body=three))
    reply = await ask(lab, "/v2/models/m/config")
    assert (orjson.loads(reply.body), reply.note) == (one, "3/3; r3=differs")


async def test_one_replica_by_the_header(lab: Lab):
    """Its answer as it is, and nobody else is asked."""
    await lab.replicas(saying(body=counted(3)), saying(body=counted(4)))
    reply = await ask(lab, STATS, endpoint="r2")
    assert orjson.loads(reply.body) == counted(4)
    assert {name for name, _ in lab.asked} == {"r2"}
    reply = await ask(lab, STATS, endpoint="r9")
    assert (reply.status, reply.reason) == (404, "unknown-endpoint")


async def test_pools_out_of_sight_are_not_asked(lab: Lab):
    """A host of its own is told of its own pools only."""
    await lab.replicas(saying(body=counted(3)))
    reply = await ask(lab, STATS, names="other")
    assert (reply.status, lab.asked) == (503, [])


async def test_an_index_says_where_a_model_is(lab: Lab):
    """Replicas that have it not, and such as do not answer."""
    ready = [{"name": "m", "version": "1", "state": "READY"}]
    await lab.replicas(saying(body=ready), saying(body=[]), closing)
    reply = await ask(lab, INDEX, body=b'{"ready": true}')
    assert orjson.loads(reply.body) == [
        {
            "name": "m",
            "version": "1",
            "state": "READY",
            "reason": "r2 absent; r3 unknown",
            "replicas": {
                "r1": {"state": "READY"},
                "r2": {"state": "absent"},
                "r3": {"state": "unknown"},
            },
        }
    ]
    assert reply.note == "2/3; r3=unreachable"


async def test_the_lists_of_engines_are_one(lab: Lab):
    """Of pools with such paths."""
    await lab.replicas(
        saying(body={"object": "list", "data": [{"id": "a"}]}),
        saying(body={"object": "list", "data": [{"id": "b"}, {"id": "a"}]}),
        saying(raw=b"<html>"),
        paths=frozenset({"/v1/completions"}),
    )
    reply = await ask(lab, "/v1/models")
    assert [each["id"] for each in orjson.loads(reply.body)["data"]] == ["a", "b"]
    assert reply.note == "2/3; r3=malformed"


@pytest.mark.parametrize(("good", "status"), [(0, 400), (1, 400), (2, 200), (4, 200)])
async def test_a_server_is_ready_by_the_share_of_usable_replicas(lab: Lab, good: int, status: int):
    """Half of them is enough by default."""
    await lab.replicas(*[saying(200 if n < good else 400, raw=b"") for n in range(4)])
    reply = await ask(lab, "/v2/health/ready")
    assert (reply.status, reply.body) == (status, b"")
    assert reply.note.startswith(f"{good}/4")


async def test_replicas_that_drain_do_not_count_for_readiness(lab: Lab):
    """They take no new work anyway."""
    await lab.replicas(saying(raw=b""), saying(400, raw=b""), saying(400, raw=b""))
    lab.endpoints[1:] = [
        type(each)(each.key, each.variant, each.http, None, draining=True)
        for each in lab.endpoints[1:]
    ]
    lab.put()
    reply = await ask(lab, "/v2/health/ready")
    assert (reply.status, reply.note) == (200, "1/1")


async def test_a_fleet_without_replicas_is_not_ready(lab: Lab):
    """There is nobody to serve."""
    assert (await ask(lab, "/v2/health/ready")).status == 400
    lab.put()
    assert (await ask(lab, "/v2/health/ready")).status == 400


async def test_readiness_is_asked_once_for_all_who_ask_at_once(lab: Lab):
    """Many probes of clients are one of replicas; after a while it is asked anew."""
    await lab.replicas(saying(raw=b""))
    replies = await asyncio.gather(*(ask(lab, "/v2/health/ready") for _ in range(20)))
    assert {each.status for each in replies} == {200}
    assert len(lab.asked) == 1
    lab.now = 1.0
    await ask(lab, "/v2/health/ready")
    assert len(lab.asked) == 2


async def test_an_engine_without_tritons_paths_is_asked_by_its_own(lab: Lab):
    """It answers Triton's probe with 404."""

    async def engine(name: str, writer: asyncio.StreamWriter) -> None:
        found = "/health " in lab.asked[-1][1]
        await saying(200 if found else 404, raw=b"")(name, writer)

    await lab.replicas(engine)
    assert (await ask(lab, "/v2/health/ready")).status == 200


async def test_calls_above_the_bound_are_refused_at_once(lab: Lab, monkeypatch: pytest.MonkeyPatch):
    """Slow replicas do not pile up callers."""
    monkeypatch.setattr(ports, "MAX_CALLS", 2)
    await lab.replicas(silent)
    asking = asyncio.gather(*(ask(lab, "/v2") for _ in range(5)))
    await lab.asked_of(2)
    await lab.let_answers_be_late(2)
    replies = await asking
    assert sorted(each.reason for each in replies) == ["saturated"] * 3 + ["unavailable"] * 2
    assert lab.calls.answered == {("http", "busy"): 3, ("http", "error"): 2}
    assert lab.calls.running == 0


async def test_the_answers_to_one_question_are_bounded(lab: Lab, monkeypatch: pytest.MonkeyPatch):
    """However many replicas there are."""
    monkeypatch.setattr(asking, "MAX_TOTAL", 250)
    await lab.replicas(*[saying(raw=b"x" * 100) for _ in range(4)])
    reply = await ask(lab, "/v2/models/m/ready")
    assert reply.note.startswith("2/4")
    assert reply.note.count("too-large") == 2


async def test_a_change_goes_to_all_replicas_of_the_models_pools(lab: Lab):
    """And succeeds if it does everywhere."""
    await lab.replicas(saying(raw=b""), saying(raw=b""))
    reply = await ask(lab, "/v2/repository/models/m/load", admin=True, body=b"{}")
    assert (reply.status, reply.note) == (200, "2/2")
    assert {line for _, line in lab.asked} == {"POST /v2/repository/models/m/load HTTP/1.1"}


async def test_a_change_that_fails_somewhere_says_where(lab: Lab):
    """Nothing is undone."""
    await lab.replicas(saying(raw=b""), saying(400, {"error": "no memory"}), closing)
    reply = await ask(lab, "/v2/repository/models/m/load", admin=True)
    body = orjson.loads(reply.body)
    assert (reply.status, reply.reason) == (502, "partial")
    assert body["replicas"] == {
        "r1": {"status": 200},
        "r2": {"status": 400, "error": "no memory"},
        "r3": {"error": "unreachable"},
    }
    assert "r2: no memory" in body["error"]


async def test_a_change_that_all_refuse_is_refused_in_their_words(lab: Lab):
    """As one Triton would."""
    error = {"error": "explicit model load / unload is not allowed"}
    await lab.replicas(saying(503, error), saying(503, error))
    reply = await ask(lab, "/v2/repository/models/m/load", admin=True)
    assert (reply.status, orjson.loads(reply.body)) == (503, error)


async def test_the_port_for_questions_takes_no_changes(lab: Lab):
    """Whatever routes an Envoy has: the method is asked of nobody."""
    await lab.replicas(saying(raw=b""))
    reply = await ask(lab, "/v2/repository/models/m/load")
    assert (reply.status, lab.asked) == (404, [])


async def test_a_server_without_extensions_takes_none_from_the_others(lab: Lab):
    """An engine's answer on Triton's path is no description of a Triton."""
    triton = {"name": "triton", "version": "2", "extensions": ["a", "b"]}
    await lab.replicas(saying(body={"name": "engine"}), saying(body=triton), saying(body=triton))
    reply = await ask(lab, "/v2")
    assert orjson.loads(reply.body) == triton
    assert reply.note == "2/3; r1=malformed"


@pytest.mark.parametrize(
    ("path", "kind"), [("/v2/models/m", "application/json"), ("/v2/health/ready", "text/plain")]
)
async def test_only_the_length_of_an_answer_to_head_is_sent(lab: Lab, path: str, kind: str):
    """It is Triton's, and no replica is asked."""
    await lab.replicas(saying(body={}))
    reply = await ask(lab, path, method="HEAD")
    assert (reply.status, len(reply.body), reply.content_type) == (405, 30, kind)
    assert not lab.asked


async def engine(name: str, writer: asyncio.StreamWriter) -> None:
    """Answer as vLLM does on a path that it does not know."""
    await saying(404, {"detail": "Not Found"})(name, writer)


LOAD = "/v2/repository/models/other/load"
MISSING = {"error": "failed to load 'other', failed to poll from model repository"}


def beside_engines(lab: Lab, tritons: int, probe: str) -> None:
    """Put the first replicas into a pool of Tritons, the others into one of engines."""
    first, rest = tuple(lab.endpoints[:tritons]), tuple(lab.endpoints[tritons:])
    own = Pool("t", frozenset({"m"}), endpoints=first)
    variants = (Variant("v", 1, probe_path=probe),)
    paths = frozenset({"/v1/chat/completions"})
    lab.questions.set_pools(
        {"t": own, "e": Pool("e", paths=paths, variants=variants, endpoints=rest)}
    )


@pytest.mark.parametrize("probe", ["/health", "/v2/health/ready", ""])
async def test_engines_beside_tritons_do_not_count_where_a_call_is_tritons(lab: Lab, probe: str):
    """Neither for a change of any model, nor for a question; nor do their words win by number."""
    good = saying(raw=b"")
    await lab.replicas(good, good, engine, engine, engine)
    beside_engines(lab, 2, probe)
    changed = await ask(lab, LOAD, admin=True)
    assert (changed.status, changed.note) == (200, "2/2")
    assert ("r3" in {name for name, _ in lab.asked}) == (probe != "/health")
    lab.endpoints.clear()
    await lab.replicas(saying(404, MISSING), engine, engine, engine)
    beside_engines(lab, 1, probe)
    for path, admin in ((LOAD, True), ("/v2/models/other", False), ("/v2", False)):
        reply = await ask(lab, path, admin=admin)
        assert (reply.status, orjson.loads(reply.body)) == (404, MISSING)
        assert reply.note == "0/1; r1=refuses"


async def test_an_engine_that_dies_fails_no_change(lab: Lab):
    """Once it has said what it is. One that never did may be a Triton, which lacks the change."""
    dead = asyncio.Event()

    async def mortal(name: str, writer: asyncio.StreamWriter) -> None:
        await (closing if dead.is_set() else engine)(name, writer)

    await lab.replicas(saying(raw=b""), mortal, closing)
    for number, note in ((2, "1/1"), (3, "1/2; r3=unreachable")):
        endpoints, lab.endpoints = lab.endpoints, lab.endpoints[:number]
        beside_engines(lab, 1, "")
        lab.endpoints = endpoints
        for _ in range(2):
            assert (await ask(lab, LOAD, admin=True)).note == note
        dead.set()


async def test_engines_alone_answer_in_their_own_words(lab: Lab):
    """There is no Triton to say it otherwise."""
    await lab.replicas(engine, paths=frozenset({"/v1/completions"}))
    reply = await ask(lab, "/v2/models/m")
    assert (reply.status, orjson.loads(reply.body)) == (404, {"detail": "Not Found"})
