"""The explanation of a picker's decisions."""

from __future__ import annotations

import gc
import json
import random
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from ext_proc.routing.router import Router
from ext_proc.routing.values.pool import Endpoint, EndpointKey, Pool, Variant
from ext_proc.routing.values.request import Features, Form, Request
from tidegate.cli.verbs.explaining import answer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .conftest import Run

BLOCKS = tuple(range(1, 9))


def decisions() -> list[dict[str, Any]]:
    """Return what a real router's sample says, the newest first, as the page has it."""
    endpoints = [
        Endpoint(EndpointKey(f"r{n}", 1), "stable", f"10.0.0.{n}:80", None, zone="b" if n else "a")
        for n in range(3)
    ]
    draining = Endpoint(EndpointKey("r9", 1), "stable", "10.0.0.9:80", None, draining=True)
    pool = Pool(
        "llm", variants=(Variant("stable", 1),), endpoints=(*endpoints, draining), prefer_zone=True
    )
    router = Router(random.Random(1), zone="a")
    router.set_pools({"llm": pool}, 0.0)
    request = Request("llm", None, "http", Features(Form.GENERATE, model="m"), BLOCKS, subset=None)
    router.decide(request, 0.0, 0.0)
    told: list[dict[str, Any]] = orjson.loads(orjson.dumps(router.recent.describe(1.5)))
    return told[::-1]


class Page(BaseHTTPRequestHandler):
    """A picker's debug page."""

    status = 200

    def do_GET(self) -> None:
        """Answer with the decisions of the pool that is asked for."""
        found = [] if self.path.endswith("pool=none") else decisions()
        self.send_response(self.status)
        self.end_headers()
        self.wfile.write(b"<html>" if self.path.endswith("pool=html") else orjson.dumps(found))

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def picker() -> Iterator[str]:
    """Return the address of such a page."""
    server = HTTPServer(("127.0.0.1", 0), Page)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()
    # A connection left open is told here, as this test's error, not in a later one.
    gc.collect()


def test_a_decision_as_a_table(run: Run, picker: str) -> None:
    """The pick, each price with its parts, who was left out and why not another."""
    ran = run("explain", "--picker", picker, "--not", "r1")
    assert ran.code == 0, ran.err
    assert "policy auto chose r0 (least)" in " ".join(ran.out.split())
    assert "own_s=" in ran.out
    assert "it is draining" in ran.out
    assert "why not r1? its price is higher by" in ran.out
    assert "it lacks what is preferred: zone" in " ".join(ran.out.split())


def test_a_decision_as_json(run: Run, picker: str) -> None:
    """Programs read the same, with the answer to the question."""
    ran = run("explain", "--picker", picker, "--not", "r9", "-o", "json")
    (told,) = json.loads(ran.out)
    assert told["picked"] == "r0"
    assert told["why_not"] == {
        "endpoint": "r9",
        "answer": "it is draining; `tidegate undrain` takes it back",
    }


@pytest.mark.parametrize(
    ("pool", "words"),
    [("none", "has sampled no decision of pool none yet"), ("html", "does not answer as a picker")],
)
def test_nothing_to_explain_is_one_sentence(run: Run, picker: str, pool: str, words: str) -> None:
    """What to do next stands in it."""
    ran = run("explain", "--picker", picker, "--pool", pool)
    assert ran.code == 1
    assert words in ran.err
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nonsense:port"])
def test_no_picker_is_one_sentence(run: Run, address: str) -> None:
    """The option that names it stands in it."""
    ran = run("explain", "--picker", address)
    assert ran.code == 1
    assert "set --picker" in ran.err


def test_why_not() -> None:
    """Each case has its sentence."""
    (told,) = decisions()
    assert answer(told, "r0") == "it was the pick"
    assert "no such replica" in answer(told, "r77")
    assert "not looked at why" in answer({**told, "removed": None}, "r77")
    assert "sequence" in answer({**told, "leased": True}, "r1")
    same = [{**each, "price": 1.0} for each in told["candidates"]]
    assert "chance decided" in answer({**told, "candidates": same}, "r1")
