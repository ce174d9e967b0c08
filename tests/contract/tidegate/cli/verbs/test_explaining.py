"""The verb ``explain``."""

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
from ext_proc.routing.values.settings import ModelNeeds
from tidegate.cli.verbs.explaining import answer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.command_line import Run

BLOCKS = tuple(range(1, 9))


def decisions() -> list[dict[str, Any]]:
    """Return a real router's sampled decisions as ``/debug/explain`` returns them."""
    endpoints = [
        Endpoint(EndpointKey(f"r{n}", 1), "stable", f"10.0.0.{n}:80", None, device=f"d{n}")
        for n in range(3)
    ]
    draining = Endpoint(EndpointKey("r9", 1), "stable", "10.0.0.9:80", None, draining=True)
    pool = Pool(
        "llm",
        variants=(Variant("stable", 1),),
        endpoints=(*endpoints, draining),
        model_needs=(ModelNeeds("m", device="d0"),),
    )
    router = Router(random.Random(1))
    router.set_pools({"llm": pool}, 0.0)
    request = Request("llm", None, "http", Features(Form.GENERATE, model="m"), BLOCKS, subset=None)
    router.decide(request, 0.0, 0.0)
    sampled: list[dict[str, Any]] = orjson.loads(orjson.dumps(router.recent.describe(1.5)))
    return sampled[::-1]


class Page(BaseHTTPRequestHandler):
    """Debug page of a picker."""

    status = 200

    def do_GET(self) -> None:
        """Return the decisions of the requested pool."""
        found = [] if self.path.endswith("pool=none") else decisions()
        self.send_response(self.status)
        self.end_headers()
        self.wfile.write(b"<html>" if self.path.endswith("pool=html") else orjson.dumps(found))

    def log_message(self, *_: object) -> None:
        """Discard the access log."""


@pytest.fixture
def picker() -> Iterator[str]:
    """Serve a debug page and return its address."""
    server = HTTPServer(("127.0.0.1", 0), Page)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()
    # Report an unclosed connection in this test, not in a later one.
    gc.collect()


def test_a_decision_as_a_table(run: Run, picker: str) -> None:
    """The table shows the pick, prices by part, removed replicas and the answer to ``--not``."""
    ran = run("explain", "--picker", picker, "--not", "r1")
    assert ran.code == 0, ran.err
    assert "policy auto picked r0 (least)" in " ".join(ran.out.split())
    assert "own_s=" in ran.out
    assert "it is draining" in ran.out
    assert "why not r1? its price is higher by" in ran.out
    assert "unmet preferences: device" in " ".join(ran.out.split())


def test_a_decision_as_json(run: Run, picker: str) -> None:
    """JSON contains the decision and the answer to ``--not``."""
    ran = run("explain", "--picker", picker, "--not", "r9", "-o", "json")
    (decision,) = json.loads(ran.out)
    assert decision["picked"] == "r0"
    assert decision["why_not"] == {
        "endpoint": "r9",
        "answer": "it is draining; `tidegate undrain` takes it back",
    }


@pytest.mark.parametrize(
    ("pool", "words"),
    [("none", "has sampled no decision of pool none yet"), ("html", "does not answer as a picker")],
)
def test_nothing_to_explain_is_one_sentence(run: Run, picker: str, pool: str, words: str) -> None:
    """The error is one line that says what to do."""
    ran = run("explain", "--picker", picker, "--pool", pool)
    assert ran.code == 1
    assert words in ran.err
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nonsense:port"])
def test_no_picker_is_one_sentence(run: Run, address: str) -> None:
    """The error names the option ``--picker``."""
    ran = run("explain", "--picker", address)
    assert ran.code == 1
    assert "set --picker" in ran.err


def test_why_not() -> None:
    """Each reason for not picking a replica has its own sentence."""
    (decision,) = decisions()
    assert answer(decision, "r0") == "it was picked"
    assert "no such replica" in answer(decision, "r77")
    assert "the reason is not recorded" in answer({**decision, "removed": None}, "r77")
    assert "sequence" in answer({**decision, "leased": True}, "r1")
    same = [{**each, "price": 1.0} for each in decision["candidates"]]
    assert "at random" in answer({**decision, "candidates": same}, "r1")
