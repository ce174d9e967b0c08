"""The list and watch, against a server that changes and fails."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import pytest
from aiohttp import web

from support.endpoint_slices import endpoint_slice, pod
from support.fake_api_server import FakeApiServer, refused
from xds_server.applications.discovery.kubernetes import following as under_test
from xds_server.applications.discovery.kubernetes.answers import Lines

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait little between attempts; what decides is not the time."""
    monkeypatch.setattr(under_test, "LONGEST_S", 0.02)
    monkeypatch.setattr(under_test, "LONGEST_WAIT_S", 0.02)


def put(server: FakeApiServer, name: str, *pods: str) -> None:
    """Put a slice with these pods; the address follows from the name."""
    made = [pod(each, f"10.1.0.{ord(each[0])}") for each in pods]
    server.put(endpoint_slice(name, *made))


async def test_what_is_there_and_what_changes(server, follow) -> None:
    """A list, then a watch: additions, changes, deletions."""
    put(server, "s", "a")
    seen = follow()
    await seen.shows("a")
    put(server, "s", "a", "b")
    await seen.shows("a", "b")
    put(server, "t", "c")
    await seen.shows("a", "b", "c")
    server.delete("s")
    await seen.shows("c")
    assert [query.get("watch") for query in server.asked] == [None, "1"]
    assert seen.troubles == []


async def test_a_list_of_many_pages(server, follow) -> None:
    """Nothing is reported before the last page."""
    server.page_size = 1
    for name in "abcde":
        put(server, f"s-{name}", name)
    seen = follow()
    await seen.shows(*"abcde")
    assert len(seen.observations) == 1


async def test_nothing_there_is_an_answer(follow) -> None:
    """An empty list is reported, not waited for."""
    seen = follow()
    await seen.shows()


async def test_a_watch_that_is_cut_goes_on_where_it_was(server, follow) -> None:
    """Changes of the meantime come as events; there is no second list."""
    put(server, "s", "a")
    seen = follow()
    await seen.shows("a")
    put(server, "s", "b")
    await seen.shows("b")
    server.cut()
    put(server, "s", "c")
    await seen.shows("c")
    assert [query.get("watch") for query in server.asked] == [None, "1", "1"]
    assert seen.troubles == []


@pytest.mark.parametrize("in_stream", [False, True])
async def test_a_version_that_is_gone(server, follow, in_stream: bool) -> None:
    """As a status, and as an event in a stream that began well: both end in a new list."""
    server.gone_in_stream = in_stream
    put(server, "s", "a")
    seen = follow()
    await seen.shows("a")
    server.faults = [None]
    server.cut()
    put(server, "s", "b")
    server.compact()
    await seen.shows("b")


async def test_a_bookmark_moves_the_version_on(server, follow) -> None:
    """After compaction the watch goes on, since a bookmark told a later version."""
    put(server, "s", "a")
    server.compact()
    server.faults = [web.json_response({}, status=500)]
    seen = follow()
    await seen.shows("a")
    server.version += 7
    server.faults = [server.bookmark()]
    server.cut()
    await seen.until(lambda: len(server.asked) > 0)
    put(server, "s", "b")
    await seen.shows("b")
    assert server.asked[-1]["resourceVersion"] == str(server.version - 1)


async def test_a_continuation_that_expires(server, follow) -> None:
    """A list that the store's compaction overtakes begins again."""
    server.page_size = 1
    put(server, "s", "a")
    put(server, "t", "b")
    server.compact()
    server._continuations["old"] = (0, [])
    server.faults = [
        web.json_response(
            refused(410, "Expired", "The provided continue parameter is too old"), status=410
        )
    ]
    seen = follow()
    await seen.shows("a", "b")


async def test_a_server_that_restarts(server, follow) -> None:
    """Trouble is told once, and its end; what was found stays in force meanwhile."""
    put(server, "s", "a")
    seen = follow()
    await seen.shows("a")
    await server.stop()
    await seen.until(lambda: seen.troubles)
    assert "cannot be asked" in seen.troubles[0]
    put(server, "s", "b")
    await server.start()
    await seen.shows("b")
    await seen.until(lambda: seen.troubles[-1] == "")
    assert len(seen.troubles) == len(set(seen.troubles))


async def test_a_store_that_was_restored(server, follow) -> None:
    """Its versions are lower than the one that the watch would go on from."""
    put(server, "s", "a")
    seen = follow()
    await seen.shows("a")
    server.restore(3)
    put(server, "s", "b")
    server.cut()
    await seen.shows("b")


async def test_a_restored_store_says_nothing_of_higher_versions(server, follow) -> None:
    """A real server answers such a watch with an empty stream: that is no proof of silence."""
    put(server, "s", "a")
    seen = follow()
    await seen.shows("a")
    await server.watched.wait()
    put(server, "s", "a", "c")
    await seen.shows("a", "c")
    server.restore(3)
    server.silent_about_the_future = True
    put(server, "s", "b")
    server.cut()
    await server.watched.wait()
    server.cut()
    await seen.shows("b")


async def test_a_denial_names_what_is_missing(server, follow) -> None:
    """Once, for the verb that is denied; rights that are granted later are used."""
    server.denied = {"list", "watch"}
    seen = follow()
    await seen.until(lambda: seen.troubles)
    assert "forbids to tidegate to list" in seen.troubles[0]
    put(server, "s", "a")
    server.denied = {"watch"}
    await seen.shows("a")
    await seen.until(lambda: any("to watch" in each for each in seen.troubles))
    server.denied = set()
    await seen.until(lambda: seen.troubles[-1] == "")
    put(server, "s", "b")
    await seen.shows("b")


async def test_a_token_that_is_rotated(server, follow, tmp_path: Path) -> None:
    """Each request has the file's token of that time."""
    file = tmp_path / "token"
    file.write_text("one\n")
    server.tokens = {"one"}
    put(server, "s", "a")
    seen = follow(token_file=str(file))
    await seen.shows("a")
    server.tokens = {"two"}
    server.cut()
    await seen.until(lambda: seen.troubles)
    assert "does not accept the credentials" in seen.troubles[0]
    put(server, "s", "b")
    file.write_text("two\n")
    await seen.shows("b")
    await seen.until(lambda: seen.troubles[-1] == "")


async def test_a_missing_token_is_trouble(follow, tmp_path: Path) -> None:
    """Also while it runs: the file may be replaced by hand."""
    file = tmp_path / "token"
    seen = follow(token_file=str(file))
    await seen.until(lambda: seen.troubles)
    assert seen.troubles == [f"{file} cannot be read: No such file or directory"]
    file.write_text("one")
    await seen.shows()


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (web.Response(status=502, text="<html>"), "HTTP status 502"),
        (web.Response(text="<html>"), "does not answer as an API server"),
        (web.Response(status=301, headers={"Location": "http://127.0.0.1:1/"}), "status 301"),
        (
            web.json_response(
                refused(429, "TooManyRequests", "slow"), status=429, headers={"Retry-After": "900"}
            ),
            "HTTP status 429: slow",
        ),
        (None, "cannot be asked"),
    ],
)
async def test_answers_that_are_none(
    server, follow, fault: web.Response | None, reason: str
) -> None:
    """Each is told, and the list is asked for again."""
    # The HTTP client itself asks again once where nothing came.
    server.faults = [None, None] if fault is None else [fault]
    put(server, "s", "a")
    seen = follow()
    await seen.shows("a")
    await seen.until(lambda: seen.troubles[-1:] == [""])
    assert reason in seen.troubles[0]


@pytest.mark.parametrize(
    "stream",
    [
        b"not json\n",
        b'{"type":"NEW","object":{"metadata":{"resourceVersion":"9"}}}\n',
        b'{"type":"ERROR","object":{"code":500,"message":"etcd is gone"}}\n',
        b'{"type":"ADDED","object":{"metadata":{"resourceVersion":"9"},"addressType":"IPv4"}}\n',
        b'{"type":"ADDED","object"',
        b"",
    ],
)
async def test_streams_that_are_none(server, follow, stream: bytes) -> None:
    """However often: what was found stays, and the watch comes back."""
    put(server, "s", "a")
    seen = follow()
    await seen.shows("a")
    server.faults = [stream] * 5
    server.cut()
    put(server, "s", "b")
    await seen.shows("b")
    assert {each.endpoints[0].identity for each in seen.observations} == {"a", "b"}


async def test_an_event_without_end_is_bounded(server, follow, monkeypatch) -> None:
    """Memory is not what a server decides."""
    monkeypatch.setattr(under_test, "Lines", lambda: Lines(64))
    put(server, "s", "a")
    server.faults = []
    seen = follow()
    await seen.shows("a")
    server.faults = [b"x" * 1000]
    server.cut()
    await seen.until(lambda: seen.troubles)
    assert "larger than 64 bytes" in seen.troubles[0]


async def test_a_page_without_end_is_bounded(server, follow, monkeypatch) -> None:
    """At the bound it is read; above it the list is given up."""
    put(server, "s", "a")
    monkeypatch.setattr(under_test, "MAX_PAGE_BYTES", 64)
    seen = follow()
    await seen.until(lambda: seen.troubles)
    assert "an answer is larger than 64 bytes" in seen.troubles[0]
    monkeypatch.undo()
    await seen.shows("a")


async def test_too_many_slices_change_nothing(server, follow, monkeypatch) -> None:
    """A selector that matches all of a large cluster is told, not obeyed."""
    put(server, "s", "a")
    seen = follow()
    await seen.shows("a")
    mirror = seen.source._mirror
    monkeypatch.setattr(mirror, "_bounds", mirror._bounds._replace(items=1))
    put(server, "t", "b")
    await seen.until(lambda: seen.troubles)
    assert "narrow it" in seen.troubles[0]
    assert seen.names == ["a"]
    server.delete("s")
    await seen.shows("b")


async def test_a_wrong_port_name_is_told(server, follow) -> None:
    """A renamed port takes no replica away."""
    put(server, "s", "a")
    seen = follow()
    await seen.shows("a")
    server.put(endpoint_slice("s", pod("a", "10.1.0.97"), ports={"web": 80}))
    await seen.until(lambda: seen.troubles)
    assert "has no port named 'http' or 'grpc'" in seen.troubles[0]
    assert seen.names == ["a"]
    put(server, "s", "a")
    await seen.until(lambda: seen.troubles[-1] == "")


@pytest.mark.parametrize("seed", range(4))
async def test_churn_ends_equal(server, follow, seed: int) -> None:
    """Two hundred changes with cuts, compactions, faults and restarts: the end is the server's."""
    chance = random.Random(seed)
    server.page_size = 2
    server.gone_in_stream = bool(seed % 2)
    seen = follow()
    await seen.shows()
    for _ in range(200):
        name = chance.choice("abcdef")
        draw = chance.random()
        if draw < 0.6 or name not in server.slices:
            pods = chance.sample("ghijkl", chance.randrange(4))
            put(server, name, *pods)
        elif draw < 0.75:
            server.delete(name)
        elif draw < 0.85:
            server.cut()
        elif draw < 0.9:
            server.compact()
        elif draw < 0.93:
            server.faults.append(chance.choice([None, b"", b"{}\n"]))
        elif draw < 0.95:
            await server.stop()
            await server.start()
        await asyncio.sleep(0)
    server.faults.clear()
    put(server, "last", "z")
    names = {
        each["targetRef"]["name"] for made in server.slices.values() for each in made["endpoints"]
    }
    await seen.shows(*names)
