"""One page's client against servers that send raw bytes."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import asynccontextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ext_proc.telemetry import page_client
from ext_proc.telemetry.page_client import PageClient
from support.certificates import Authority
from tidegate_common.upstream.contexts import ReplicaTls

PAGE = b"a 1\nb 2\n"
SIZED = b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n" + PAGE
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\na 1\r\n5\r\n\nb 2\n\r\n0\r\n\r\n"
)
TO_THE_END = b"HTTP/1.1 200 OK\r\n\r\n" + PAGE


class Server:
    """Answers each request with the next of its responses, in the given pieces."""

    def __init__(self, *answers, closes=False):
        self.answers = list(answers)
        self.closes = closes
        self.requests = []
        self.connections = 0

    async def talk(self, reader, writer):
        self.connections += 1
        try:
            while self.answers:
                self.requests.append(await reader.readuntil(b"\r\n\r\n"))
                answer = self.answers.pop(0)
                for piece in [answer] if isinstance(answer, bytes) else answer:
                    writer.write(piece)
                    await asyncio.sleep(0)
                if self.closes:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def serving(server, path="/metrics", **options):
    listening = await asyncio.start_server(server.talk, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    options = {"timeout_s": 60.0, "max_bytes": 1000, **options}
    client = PageClient(f"http://127.0.0.1:{port}{path}", **options)
    try:
        yield client
    finally:
        client.close()
        listening.close()


async def fetch(client):
    """Fetch once; return the page, or the text of the error."""
    loop = asyncio.get_running_loop()
    found = loop.create_future()
    client.get(found.set_result)
    result = await found
    return result if isinstance(result, bytes) else f"{type(result).__name__}: {result}"


@pytest.mark.parametrize("answer", [SIZED, CHUNKED], ids=["sized", "chunked"])
async def test_a_connection_is_kept(answer):
    """Successive fetches use one connection, and request an uncompressed page."""
    server = Server(*[answer] * 3)
    async with serving(server, "/metrics?x=1") as client:
        assert [await fetch(client) for _ in range(3)] == [PAGE] * 3
    assert server.connections == 1
    assert server.requests[0].startswith(b"GET /metrics?x=1 HTTP/1.1\r\nhost: 127.0.0.1:")
    assert b"accept-encoding: identity\r\n" in server.requests[0]


async def test_a_client_knows_whether_it_kept_the_connection():
    """Not for the first page, nor for one after the server has closed."""
    server = Server(SIZED, SIZED, TO_THE_END, SIZED)
    kept = []
    async with serving(server) as client:
        for _ in range(4):
            assert await fetch(client) == PAGE
            kept.append(client.kept)
            server.closes = len(kept) == 2
    assert kept == [False, True, True, False]


async def test_a_page_may_end_with_its_connection():
    """Without a length the end of the connection is the end of the page."""
    server = Server(TO_THE_END, TO_THE_END, closes=True)
    async with serving(server) as client:
        assert [await fetch(client), await fetch(client)] == [PAGE, PAGE]
    assert server.connections == 2


async def test_a_kept_connection_that_was_closed_costs_nothing():
    """The server may close between two fetches, or just when the next one is sent."""
    server = Server(SIZED, SIZED, closes=True)
    async with serving(server) as client:
        assert await fetch(client) == PAGE
        await asyncio.sleep(0.05)
        assert await fetch(client) == PAGE
    server = Server()

    async def closes_on_the_second(reader, writer):
        server.connections += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(SIZED)
        if server.connections == 1:
            await reader.readuntil(b"\r\n\r\n")
        writer.close()

    server.talk = closes_on_the_second
    async with serving(server) as client:
        assert [await fetch(client), await fetch(client)] == [PAGE, PAGE]
    assert server.connections == 2


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"", "closed before the page's end"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n" + PAGE, "closed before the page's end"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "not HTTP"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", "HTTP status 204"),
        (b"HTTP/1.1 302 Found\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n", "HTTP status 302"),
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: br\r\nContent-Length: 0\r\n\r\n", "compressed"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1001\r\n\r\n" + b"x" * 1001, "larger than 1000"),
        ([b"HTTP/1.1 200 OK\r\n\r\n", *[b"x" * 100] * 11], "larger than 1000"),
        ([b"HTTP/1.1 200 OK\r\n", *[b"x: " + b"y" * 5000 + b"\r\n"] * 20], "headers of more than"),
        (b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", "HTTP status 101"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\nContent-Length: 9\r\n\r\n" + PAGE, "not HTTP"),
    ],
)
async def test_other_answers_are_no_pages(answer, words):
    """Each has its reason and closes its connection; the next fetch opens a new one."""
    server = Server(answer, SIZED, closes=True)
    async with serving(server) as client:
        assert words in await fetch(client)
        assert await fetch(client) == PAGE
    assert server.connections == 2


async def test_an_answer_that_never_comes_costs_its_time():
    """Headers alone are not a page."""
    server = Server([b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n"], b"")
    async with serving(server, timeout_s=0.05) as client:
        assert (await fetch(client)).startswith("TimeoutError")


async def test_what_was_not_asked_for_ends_the_connection():
    """A second response to one request is not taken for that of the next."""
    server = Server(SIZED + SIZED, SIZED)
    async with serving(server) as client:
        assert await fetch(client) == PAGE
        assert await fetch(client) == PAGE


async def test_one_fetch_at_a_time():
    """A second concurrent fetch is a bug of the caller; a closed one calls no callback."""
    server = Server([])
    async with serving(server) as client:
        client.get(lambda _: pytest.fail("closed"))
        with pytest.raises(RuntimeError, match="one fetch"):
            client.get(lambda _: None)
    await asyncio.sleep(0)


@pytest.mark.parametrize("url", ["ftp://x/", "http://", "http://h:port/", "nonsense", "http://ö/"])
async def test_no_url(url):
    """An invalid URL fails at each fetch, not before."""
    client = PageClient(url, timeout_s=1.0, max_bytes=10)
    assert "not an http" in await fetch(client)
    assert "not an http" in await fetch(client)


async def test_a_name_that_means_nothing():
    """A host that is not found is a failed fetch."""
    client = PageClient("http://no.such.host.invalid:1/", timeout_s=5.0, max_bytes=10)
    assert await fetch(client) != b""
    client.close()


class Wire(asyncio.Transport):
    """A connection that goes nowhere."""

    def __init__(self):
        super().__init__()
        self.closed = False

    def write(self, data):
        pass

    def abort(self):
        self.closed = True

    def is_closing(self):
        return self.closed


def answered(pieces):
    """Feed pieces to a client with a pending fetch; return its results in order."""

    async def run():
        client = PageClient("http://h/", timeout_s=60.0, max_bytes=64)
        client._connect = lambda _: None
        results = []
        client.get(results.append)
        client.connection_made(Wire())
        for piece in pieces:
            client.data_received(piece)
        client.connection_lost(None)
        client.close()
        return results

    return asyncio.run(run())


@settings(max_examples=50)
@given(st.sampled_from([SIZED, CHUNKED, TO_THE_END]), st.lists(st.integers(1, 60), max_size=5))
def test_pieces_do_not_matter(answer, cuts):
    """However a response is split, it is the same page, once."""
    at = [0, *sorted({min(cut, len(answer)) for cut in cuts}), len(answer)]
    pieces = [answer[a:b] for a, b in itertools.pairwise(at) if a < b]
    assert answered(pieces) == [PAGE]


@settings(max_examples=50)
@given(st.lists(st.binary(max_size=30) | st.sampled_from([SIZED, CHUNKED[:40]]), max_size=6))
def test_any_bytes_end_a_fetch_once(pieces):
    """Any bytes lead to exactly one page of bounded size or one error."""
    results = answered(pieces)
    assert len(results) == 1
    assert isinstance(results[0], Exception) or len(results[0]) <= 64


async def test_tls_is_spoken_where_the_url_says_so(monkeypatch):
    """A page over https goes to port 443 with the system's certificates."""
    connected = {}

    async def create_connection(_, host, port, **options):
        connected.update(options, host=host, port=port)
        raise OSError("not here")

    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", create_connection)
    client = PageClient("https://h/metrics", timeout_s=60.0, max_bytes=10)
    assert await fetch(client) == "OSError: not here"
    assert (connected["host"], connected["port"]) == ("h", 443)
    assert connected["ssl"].verify_mode is page_client.ssl.CERT_REQUIRED


async def test_a_page_of_a_pool_with_tls_is_read_as_the_pool_says(tmp_path):
    """With its authority and name, not the system's; a page of another name is not read."""
    authority = Authority(tmp_path, "ca")
    pair = authority.sign("replica", "DNS:triton.test")
    server = Server(SIZED, SIZED)
    context = authority.server(pair, ask_clients=False)
    listening = await asyncio.start_server(server.talk, "127.0.0.1", 0, ssl=context)
    url = f"https://127.0.0.1:{listening.sockets[0].getsockname()[1]}/metrics"
    found = []
    for name in ("triton.test", "other.test", None):
        tls = ReplicaTls(ca=str(authority.own.certificate), server_name=name)
        client = PageClient(url, timeout_s=60.0, max_bytes=1000, tls=tls)
        found.append(await fetch(client))
        client.close()
    listening.close()
    assert found[0] == found[2] == PAGE
    assert "certificate is not valid for 'other.test'" in found[1]


async def test_files_that_are_not_here_fail_a_page_with_their_names():
    """The reason is logged as that of a page that cannot be read."""
    tls = ReplicaTls(ca="/nowhere/ca.crt")
    client = PageClient("https://127.0.0.1:1/metrics", timeout_s=60.0, max_bytes=10, tls=tls)
    assert "cannot read /nowhere/ca.crt" in await fetch(client)
