"""Two pickers over TLS and slow links decide as one, and the loss of one costs no request."""

from __future__ import annotations

import signal
from contextlib import suppress

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from bench.load.upstream import instant_upstreams
from ext_proc.routing.state.candidates import FRESH_S
from support.identities import Machines
from support.secured_stack import GENERATE, Stack, secured_stack
from support.traffic import Traffic, eventually, fresh_prompt
from tidegate_api.names import PICKER_CLUSTER, REASON_HEADER, SEQUENCE_HEADER, SERVED_BY_HEADER

LINKS_S = 0.02
pytestmark = [pytest.mark.timeout(180), pytest.mark.usefixtures("demo_extra")]


@pytest.fixture(scope="module")
async def stack(tmp_path_factory):
    """Run Envoy over two pickers, each of which sees a part of the requests."""
    machines = Machines(tmp_path_factory.mktemp("machines"))
    async with (
        instant_upstreams(2) as replicas,
        TestServer(_page_app()) as server,
        secured_stack(
            machines,
            "nghttp2",
            links_s=LINKS_S,
            pool={
                "endpoints": [
                    {"id": f"u{number}", "http": at, "metrics": str(server.make_url(f"/{number}"))}
                    for number, at in enumerate(replicas)
                ]
            },
        ) as started,
    ):
        yield started


def _page_app() -> web.Application:
    """Return a server of metrics pages of idle vLLMs."""

    async def page(_: web.Request) -> web.Response:
        names = ("vllm:num_requests_running", "vllm:num_requests_waiting")
        return web.Response(text="".join(f'{each}{{model_name="toy-llm"}} 0\n' for each in names))

    app = web.Application()
    app.router.add_get("/{replica}", page)
    return app


async def both(stack: Stack) -> list[dict]:
    """Return the debug pages of the pickers."""
    return [await stack.picker_state(page) for page in (stack.picker_page, stack.other_page)]


async def test_a_sequence_keeps_its_replica_wherever_it_goes(stack: Stack) -> None:
    """Each picker sees some requests of it; the next one is sent before a lease could arrive."""

    async def agreed() -> bool:
        return all(one["workers"]["group"][0]["agrees"] for one in await both(stack))

    async def placed() -> list[dict]:
        return [one["workers"]["sequences"] for one in await both(stack)]

    async def sequence(number: int) -> set[str]:
        served: list[str] = []
        url, headers = f"http://{stack.listener}{GENERATE}", {SEQUENCE_HEADER: str(number)}
        while len(served) < 4:
            body = {"text_input": "x", "max_tokens": 1}
            async with stack.http.post(url, json=body, headers=headers) as answer:
                if answer.status == 200:
                    served.append(answer.headers[SERVED_BY_HEADER])
                else:  # a busy machine may keep the owner from answering in time
                    assert answer.headers.get(REASON_HEADER) == "unplaced", await answer.text()
        return set(served)

    assert await eventually(agreed)
    served = [await sequence(number) for number in range(1, 25)]
    assert {len(each) for each in served} == {1}
    assert len(set().union(*served)) > 1
    told = await placed()
    assert sum(one["proposed"] + one["earlier"] for one in told) > 0


async def test_a_group_knows_what_each_was_sent_and_outlives_one(stack: Stack) -> None:
    """Both index all prompts; after ``kill -9`` of one no request fails, and the other goes on."""

    def body() -> dict:
        return {"text_input": fresh_prompt(2000), "max_tokens": 1}

    async def joined() -> bool:
        return all(one["workers"]["group"][0]["caught_up"] for one in await both(stack))

    async def same() -> bool:
        one, two = [each["router"]["counters"]["index_blocks"] for each in await both(stack)]
        return one == two > 0

    assert await eventually(joined)
    async with Traffic(stack.http, f"http://{stack.listener}{GENERATE}", body) as traffic:
        await traffic.more(60)
    assert await eventually(same)
    async with Traffic(stack.http, f"http://{stack.listener}{GENERATE}", body) as traffic:
        await traffic.more(20)
        await stack.supervisor.kill("picker-2", signal.SIGKILL)
        await traffic.more(60)

        async def gone() -> bool:
            (member,) = (await stack.picker_state())["workers"]["group"]
            return not member["caught_up"] and member["open_tickets"] == 0

        assert await eventually(gone)
        await traffic.more(20)
    assert traffic.failures == []


async def test_one_picker_reads_the_pages_until_it_is_gone(stack: Stack) -> None:
    """The other one knows them from it, and reads them after ``kill -9``."""

    async def read(page: str) -> int:
        telemetry = (await stack.picker_state(page))["telemetry"]
        ages = telemetry["ages_s"].values()
        known = [each for each in ages if each.get("page", FRESH_S) < FRESH_S]
        return len(telemetry["pages"]) if len(known) == 2 else -1

    async def first_reads() -> bool:
        pages = (stack.picker_page, stack.other_page)
        with suppress(aiohttp.ClientError):  # one of them may be starting
            return [await read(each) for each in pages] == [2, 0]
        return False

    async def other_reads() -> bool:
        return await read(stack.other_page) == 2

    await stack.supervisor.restart("picker-2")
    assert await eventually(first_reads)
    await stack.supervisor.kill("picker", signal.SIGKILL)
    assert await eventually(other_reads)


async def test_an_envoy_asks_its_own_picker_first(tmp_path) -> None:
    """Another one only while that is gone; no request fails when it goes or comes back."""

    def body() -> dict:
        return {"text_input": fresh_prompt(64), "max_tokens": 1}

    async with secured_stack(Machines(tmp_path), "nghttp2", links_s=0.0, first=True) as stack:

        async def asked() -> tuple[int, int]:
            """Return how many requests Envoy has sent to its own picker, and to the other."""
            async with stack.http.get(f"http://{stack.envoy_admin}/clusters?format=json") as page:
                every = (await page.json())["cluster_statuses"]
            (hosts,) = [each["host_statuses"] for each in every if each["name"] == PICKER_CLUSTER]
            sums = {}
            for host in hosts:
                port = host["address"]["socket_address"]["port_value"]
                (sent,) = [s for s in host["stats"] if s["name"] == "rq_total"]
                sums[port] = int(sent.get("value", 0))
            own = sums.pop(int(stack.picker.rpartition(":")[2]))
            return own, sum(sums.values())

        async def moves(index: int) -> bool:
            """Send a request; return whether that of the pickers, and no other, was asked."""
            before = await asked()
            assert await stack.ask() == 200
            after = await asked()
            return after[index] > before[index] and after[1 - index] == before[1 - index]

        assert stack.supervisor
        assert await eventually(lambda: moves(0))
        async with Traffic(stack.http, f"http://{stack.listener}{GENERATE}", body) as traffic:

            async def own_alone() -> bool:
                before = await asked()
                await traffic.more(20)
                after = await asked()
                return after[0] - before[0] >= 20 and after[1] == before[1]

            assert await eventually(own_alone)
            await stack.supervisor.kill("picker", signal.SIGKILL)
            assert await eventually(lambda: moves(1))
            await traffic.more(20)
            await stack.supervisor.restart("picker")
            assert await eventually(own_alone)
        assert traffic.failures == []
