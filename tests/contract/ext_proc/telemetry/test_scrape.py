"""The scraper against a real server in this process."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from ext_proc.telemetry.pacing import Pacing
from ext_proc.telemetry.rates import MAX_MODELS
from ext_proc.telemetry.scrape import LOADS_EVERY_S, MAX_ERROR_CHARS, Scraper

NEVER_S = 3600.0


def page(count: int, model: str = "m") -> str:
    return (
        f'nv_inference_request_success{{model="{model}",version="1"}} {count}\n'
        f'nv_inference_pending_request_count{{model="{model}",version="1"}} 2\n'
    )


class Replica:
    """A metrics port with a configurable response."""

    def __init__(self) -> None:
        self.body: str | bytes = page(1)
        self.status = 200
        self.headers: dict[str, str] = {}
        self.hangs = False
        self.endless = False
        self.fetches = 0
        self.url = ""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.fetches += 1
        if self.hangs:
            await asyncio.Event().wait()
        if self.endless:
            response = web.StreamResponse()
            await response.prepare(request)
            while True:
                await response.write(b"# more\n" * 1000)
        body = self.body if isinstance(self.body, bytes) else self.body.encode()
        return web.Response(body=body, status=self.status, headers=self.headers)


class Recorder:
    """Records all calls in order."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []

    def readings(self, endpoint, readings) -> None:
        self.calls.append(("readings", endpoint, [(r.model, r.queued, r.at) for r in readings]))

    def restart(self, endpoint) -> None:
        self.calls.append(("restart", endpoint))

    def failure(self, endpoint, count, reason) -> None:
        self.calls.append(("failure", endpoint, count, reason))

    def kinds(self) -> list[object]:
        return [call[0] for call in self.calls]


@pytest.fixture
async def replica():
    served = Replica()
    app = web.Application()
    app.router.add_get("/metrics", served.answer)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    served.url = f"http://127.0.0.1:{runner.addresses[0][1]}/metrics"
    yield served
    await runner.cleanup()


@asynccontextmanager
async def scraping(recorder: Recorder, targets, **options):
    """Run a scraper whose own rounds never start, so that tests drive it."""
    options = {
        "clock": lambda: 5.0,
        "jitter": lambda: 0.9,
        "pacing": Pacing(fast_s=NEVER_S),
        "timeout_s": 60.0,
        **options,
    }
    scraper = Scraper(recorder.readings, recorder.restart, recorder.failure, **options)
    scraper.set_targets(targets)
    running = asyncio.create_task(scraper.run())
    await asyncio.sleep(0)
    try:
        yield scraper
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_readings(replica):
    """A good page becomes readings with the clock's time."""
    recorder = Recorder()
    async with scraping(recorder, {"r": replica.url}) as scraper:
        assert await scraper.scrape_once("r")
        assert recorder.calls == [("readings", "r", [("m", 2, 5.0)])]
        assert scraper.state() == {
            "r": {
                "url": replica.url,
                "last_ok_age_s": 0.0,
                "consecutive_failures": 0,
                "last_error": None,
                "restarts": 0,
            }
        }


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"body": ""}, "no sample"),
        ({"body": "<html></html>"}, "not a Prometheus sample"),
        ({"body": b"\xff\xfe"}, "utf-8"),
        ({"status": 503}, "HTTP status 503"),
        ({"status": 302, "headers": {"location": "/metrics"}}, "HTTP status 302"),
        ({"headers": {"content-encoding": "gzip"}}, "compressed"),
        ({"body": "# x\n" * 400}, "larger than 1000 bytes"),
        ({"endless": True}, "larger than 1000 bytes"),
    ],
)
async def test_bad_pages(replica, changes, words):
    """A bad page is a failed scrape with its reason, and no reading."""
    for name, value in changes.items():
        setattr(replica, name, value)
    recorder = Recorder()
    async with scraping(recorder, {"r": replica.url}, max_bytes=1000) as scraper:
        assert not await scraper.scrape_once("r")
        assert not await scraper.scrape_once("r")
        assert [call[:3] for call in recorder.calls] == [("failure", "r", 1), ("failure", "r", 2)]
        assert words in recorder.calls[0][3]
        assert scraper.state()["r"]["consecutive_failures"] == 2
        assert scraper.state()["r"]["last_ok_age_s"] is None


async def test_hanging_page(replica):
    """A hanging page costs its timeout."""
    replica.hangs = True
    recorder = Recorder()
    async with scraping(recorder, {"r": replica.url}, timeout_s=0.05) as scraper:
        assert not await scraper.scrape_once("r")
        assert recorder.calls == [("failure", "r", 1, "no page within 0.05 s")]


async def test_endless_page_costs_its_timeout(replica):
    """A page without an end, below the byte bound, costs its timeout."""
    replica.endless = True
    recorder = Recorder()
    async with scraping(recorder, {"r": replica.url}, timeout_s=0.05, max_bytes=2**40) as scraper:
        assert not await scraper.scrape_once("r")
        assert "no page within" in recorder.calls[0][3]


async def test_a_closed_port():
    """A refused connection is a failed scrape."""
    recorder = Recorder()
    async with scraping(recorder, {"r": "http://127.0.0.1:1/metrics"}) as scraper:
        assert not await scraper.scrape_once("r")
        assert recorder.kinds() == ["failure"]
        assert len(recorder.calls[0][3]) <= MAX_ERROR_CHARS


async def test_recovery(replica):
    """A good page resets the consecutive failures."""
    recorder = Recorder()
    async with scraping(recorder, {"r": replica.url}) as scraper:
        replica.status = 500
        await scraper.scrape_once("r")
        replica.status = 200
        assert await scraper.scrape_once("r")
        state = scraper.state()["r"]
        assert (state["consecutive_failures"], state["last_error"]) == (0, None)


@pytest.mark.parametrize("fails_between", [False, True])
async def test_restart(replica, fails_between):
    """A counter that fell reports a restart, once, before the new readings."""
    recorder = Recorder()
    async with scraping(recorder, {"r": replica.url}) as scraper:
        replica.body = page(9)
        await scraper.scrape_once("r")
        if fails_between:
            replica.status = 500
            await scraper.scrape_once("r")
            replica.status = 200
        recorder.calls.clear()
        replica.body = page(1)
        await scraper.scrape_once("r")
        assert recorder.kinds() == ["restart", "readings"]
        await scraper.scrape_once("r")
        assert recorder.kinds() == ["restart", "readings", "readings"]
        assert scraper.state()["r"]["restarts"] == 1


@pytest.mark.parametrize("fails_between", [False, True])
async def test_a_model_that_is_loaded_again_is_no_restart(replica, fails_between):
    """Where another model goes on, unless the connection broke meanwhile."""
    recorder = Recorder()
    async with scraping(recorder, {"r": replica.url}) as scraper:
        replica.body = page(9) + page(9, model="other")
        await scraper.scrape_once("r")
        if fails_between:
            replica.status = 500
            await scraper.scrape_once("r")
            replica.status = 200
        replica.body = page(0) + page(9, model="other")
        await scraper.scrape_once("r")
        assert scraper.state()["r"]["restarts"] == int(fails_between)


async def test_restart_is_seen_when_the_model_comes_back(replica):
    """A model that was missing while the server restarted is still compared."""
    recorder = Recorder()
    async with scraping(recorder, {"r": replica.url}) as scraper:
        for body in (page(9), "nv_cpu_utilization 0.1\n", page(0)):
            replica.body = body
            assert await scraper.scrape_once("r")
        assert recorder.kinds() == ["readings", "readings", "restart", "readings"]


async def test_growing_counters_are_no_restart(replica):
    """Counters that rise, stay or appear are no restart."""
    recorder = Recorder()
    async with scraping(recorder, {"r": replica.url}) as scraper:
        for body in (page(1), page(1), page(5), page(5) + page(0, "n")):
            replica.body = body
            await scraper.scrape_once("r")
        assert recorder.kinds() == ["readings"] * 4


async def test_remembered_models_are_bounded(replica):
    """Counters beyond the bound are not remembered."""
    replica.body = "".join(page(1, f"m{index}") for index in range(MAX_MODELS + 1))
    async with scraping(Recorder(), {"r": replica.url}) as scraper:
        assert await scraper.scrape_once("r")
        assert len(scraper._targets["r"].rates) == MAX_MODELS


async def test_removed_while_on_the_way(replica):
    """A replica that was removed during its fetch is not reported."""
    recorder = Recorder()
    async with scraping(recorder, {"r": replica.url}) as scraper:
        scrape = asyncio.create_task(scraper.scrape_once("r"))
        await asyncio.sleep(0)
        scraper.set_targets({})
        assert not await scrape
        assert recorder.calls == []
        assert scraper.state() == {}
        assert not await scraper.scrape_once("r")


async def test_another_url_begins_anew(replica):
    """A replica with another URL starts anew; one with the same URL keeps its state."""
    recorder = Recorder()
    async with scraping(recorder, {"r": replica.url}) as scraper:
        await scraper.scrape_once("r")
        scraper.set_targets({"r": replica.url})
        assert scraper.state()["r"]["last_ok_age_s"] == 0.0
        scraper.set_targets({"r": replica.url + "?x"})
        assert scraper.state()["r"]["last_ok_age_s"] is None


async def test_a_broken_callback_is_a_failed_scrape(replica):
    """An exception in a callback is shown and does not end the scraping."""
    recorder = Recorder()
    async with scraping(recorder, {"r": replica.url}) as scraper:
        scraper._on_readings = lambda *_: {}["bug"]
        assert not await scraper.scrape_once("r")
        assert "internal error: KeyError('bug')" in scraper.state()["r"]["last_error"]
        scraper._on_failure = lambda *_: {}["bug"]
        assert not await scraper.scrape_once("r")
        assert scraper.state()["r"]["consecutive_failures"] == 2


async def test_rounds(replica):
    """While it runs, every replica is scraped repeatedly, also one that is added later."""
    recorder = Recorder()
    seen = asyncio.Event()

    def notice(endpoint, readings) -> None:
        recorder.readings(endpoint, readings)
        if {call[1] for call in recorder.calls} == {"a", "b"} and len(recorder.calls) > 5:
            seen.set()

    scraper = Scraper(
        notice, recorder.restart, pacing=Pacing(fast_s=0.001, pages_per_s=1e9), jitter=lambda: 0.0
    )
    scraper.set_targets({"a": replica.url})
    running = asyncio.create_task(scraper.run())
    await asyncio.sleep(0)
    scraper.set_targets({"a": replica.url, "b": replica.url})
    await asyncio.wait_for(seen.wait(), 60)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    timers = [target.timer for target in scraper._targets.values()]
    assert all(timer is None or timer.cancelled() for timer in timers)


async def test_only_within_run():
    """A scrape outside ``run`` is a clear error."""
    scraper = Scraper(Recorder().readings, Recorder().restart)
    with pytest.raises(RuntimeError, match="not running"):
        await scraper.scrape_once("r")


async def test_loaded_replicas_are_read_more_often():
    """A replica with requests in flight has the short pause, an idle one the long one."""
    now, loads = [0.0], {"a": 1}
    scraper = Scraper(
        Recorder().readings,
        Recorder().restart,
        jitter=lambda: 0.5,
        clock=lambda: now[0],
        loads=lambda: loads,
        pacing=Pacing(fast_s=0.25, slow_s=1.0),
    )
    scraper.set_targets({"a": "http://a", "b": "http://b"})
    assert (scraper.pause_s("a", 0), scraper.pause_s("b", 0)) == (0.25, 1.0)
    loads.update(a=0, b=2)
    assert scraper.pause_s("a", 0) == 0.25  # looked up a moment ago
    now[0] = LOADS_EVERY_S
    assert (scraper.pause_s("a", 0), scraper.pause_s("b", 0)) == (1.0, 0.25)


async def test_the_budget_stretches_all_pauses():
    """More replicas than the budget allows are read less often, by the same factor."""
    scraper = Scraper(
        Recorder().readings,
        Recorder().restart,
        jitter=lambda: 0.5,
        clock=lambda: 0.0,
        pacing=Pacing(fast_s=0.25, pages_per_s=4.0),
    )
    scraper.set_targets({name: f"http://{name}" for name in "ab"})
    assert scraper.pause_s("a", 0) == 0.5
