"""vLLM itself judges: what the picker predicts, how it routes, and what clients see.

An engine's count of cached tokens is ``usage.prompt_tokens_details.cached_tokens`` of each answer.
It computes at least a prompt's last token, so it never counts the last block of a prompt that is
held whole. The client is OpenAI's own.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import pytest

from engines.asking import (
    WORDS,
    Client,
    agrees,
    emptied,
    exact,
    ids,
    measured,
    sentence,
    share,
    workload,
)
from engines.first_bodies import first_bodies
from engines.lab import BLOCK, BLOCKS, VERSION
from engines.stacks import stack_of
from ext_proc.routing.latency.model import Estimate
from ext_proc.telemetry.dialects import read_all
from support.traffic import eventually, metric, picker_state

if TYPE_CHECKING:
    from engines.lab import Lab

pytestmark = pytest.mark.timeout(1800)
EQUAL = 0.99
"""Least share of predictions that equal the engine's count."""


@pytest.fixture(scope="module")
async def stack(lab):
    """Run one stack with KV events, in which chats are known as completions are."""
    async with stack_of(lab, events=True, template=True) as running:
        assert await eventually(lambda: exact(lab, running))
        assert await eventually(lambda: agrees(lab, running))
        yield running


@pytest.fixture
async def client(lab, stack):
    """A client, and engines with empty caches that the picker knows."""
    await emptied(lab)
    assert await eventually(lambda: exact(lab, stack))
    client = Client(lab, stack)
    yield client
    await client.api.close()


async def test_engines_without_tritons_api_are_ready(lab, stack):
    """No ``health.path`` is set: pickers ask the engines' own path."""
    replicas = (await picker_state(lab.http, stack))["router"]["pools"]["llm"]["endpoints"]
    assert len(replicas) == len(lab.engines)
    assert [each["conditions"] for each in replicas.values()] == [[]] * len(replicas)


async def test_predictions_of_ids_are_the_engines_count(client):
    """Under eviction, beside clients that let engines report reused blocks."""
    chance = random.Random(2)
    asked = []
    for prompt in workload(1, 300):
        extra = {"vllm_xargs": {"kv_cache_report_mode": "full"}} if chance.random() < 0.3 else {}
        asked.append(await client.complete(prompt, **extra))
    equal = sum(each.equal for each in asked) / len(asked)
    measured("ids: predictions equal", f"{equal:.4f} of {len(asked)}")
    measured("ids: hit rate", f"{share(asked):.3f}")
    assert share(asked) > 0.3
    assert equal >= EQUAL, [each for each in asked if not each.equal]


async def test_predictions_of_texts_are_the_engines_count(client):
    """The picker's tokenizer splits them as the engine does, with BOS token and without.

    Where a request truncates its prompt, the blocks are those of what the engine keeps.
    """
    chance = random.Random(3)
    heads = [sentence(chance, 60 * (1 + number % 3)) for number in range(20)]
    asked = []
    for _ in range(150):
        text = f"{chance.choice(heads)} {sentence(chance, chance.randint(1, 40))}"
        extra = chance.choice(
            (
                {},
                {},
                {"add_special_tokens": False},
                {"truncate_prompt_tokens": 3 * BLOCK + 9},
                {"truncate_prompt_tokens": 3 * BLOCK + 9, "truncation_side": "right"},
            )
        )
        asked.append(await client.complete(text, **extra))
    equal = sum(each.equal for each in asked) / len(asked)
    measured("texts: predictions equal", f"{equal:.4f} of {len(asked)}")
    assert share(asked) > 0.3
    assert equal >= EQUAL, [each for each in asked if not each.equal]


async def test_predictions_of_chats_are_the_engines_count(lab, stack, client):
    """Turns of conversations with and without tools, in texts and parts, beside prompts of ids."""
    chance = random.Random(9)
    tool = {"type": "function", "function": {"name": "weigh", "parameters": {"type": "object"}}}
    threads: list[tuple[list[Any], dict[str, Any]]] = [([], {}) for _ in range(10)]
    asked = []
    for prompt in workload(10, 200):
        messages, more = chance.choice(threads)
        if not messages:
            more.clear()
            more |= {"tools": [tool], "tool_choice": "none"} if chance.random() < 0.4 else {}
            messages.append({"role": "system", "content": sentence(chance, 30)})
        text: Any = sentence(chance, chance.randint(5, 60))
        if chance.random() < 0.3:
            text = [{"type": "text", "text": text}, {"type": "text", "text": "golu"}]
        messages.append({"role": "user", "content": text})
        asked.append(await client.chat(messages, **more))
        messages.append({"role": "assistant", "content": sentence(chance, 10)})
        if len(messages) > 14:
            messages.clear()
        if chance.random() < 0.3:
            await client.complete(prompt)
    equal = sum(each.equal for each in asked) / len(asked)
    measured("chats: predictions equal", f"{equal:.4f} of {len(asked)}")
    measured("chats: hit rate", f"{share(asked):.3f}")
    assert share(asked) > 0.3
    assert equal >= EQUAL, [each for each in asked if not each.equal]
    checks = (await picker_state(lab.http, stack))["chats"]["llm"]["checks"]
    assert checks["agreed"] >= 1
    assert checks["differed"] == 0


async def test_a_template_that_is_not_the_engines_is_found_out(lab, tmp_path):
    """The picker asks an engine, says so, and predicts chats by their text."""
    other = tmp_path / "other.jinja"
    other.write_text("{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}")
    routing = {"tokenizer": str(lab.tokenizer), "chat_template": str(other)}
    async with stack_of(lab, events=False, routing=routing) as stack:

        async def found() -> bool:
            chats = (await picker_state(lab.http, stack))["chats"]
            return chats["llm"]["template"] == "differs"

        assert await eventually(found)
        body = {"model": "tiny", "max_tokens": 1, "messages": [{"role": "user", "content": "ba"}]}
        url = f"{stack.http_url}/v1/chat/completions"
        async with lab.http.post(url, json=body) as answer:
            assert answer.status == 200
        chats = (await picker_state(lab.http, stack))["chats"]["llm"]["chats"]
        assert chats == {"exact": 0, "approximate": 1}


async def test_a_client_cannot_make_the_index_believe_more(client):
    """Reuse that is reported again and again ends with the first removal."""
    chance = random.Random(4)
    victim = ids(chance, 7 * BLOCK + 5)
    for _ in range(6):
        await client.complete(victim, vllm_xargs={"kv_cache_report_mode": "full"})
    for _ in range(16):
        await client.complete(ids(chance, 30 * BLOCK))
    last = await client.complete(victim)
    assert (last.predicted, last.cached) == (0, 0)


async def test_prompts_in_work_share_their_blocks(lab):
    """One of eight that come at once computes them; ``EngineConfig.cache_planned`` says so, too."""
    chance = random.Random(12)
    url = f"{lab.engines[0].url}/v1/completions"

    async def cached(prompt: list[int]) -> int:
        body = {"model": "tiny", "prompt": prompt, "max_tokens": 1}
        async with lab.http.post(url, json=body) as answer:
            usage = (await answer.json())["usage"]
        return (usage["prompt_tokens_details"] or {}).get("cached_tokens") or 0

    for _ in range(5):
        prompt = ids(chance, 14 * BLOCK + 5)
        counted = await asyncio.gather(*(cached(prompt) for _ in range(8)))
        assert sorted(counted) == [0, *[14 * BLOCK] * 7]


async def test_openais_own_client_is_served(client):
    """Completions, chats, streams with usage, and tools."""
    api = client.api
    stream = await api.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "ba de fi"}],
        max_tokens=8,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )
    parts = [part async for part in stream]
    assert parts[-1].usage.completion_tokens == 8
    tool = {"type": "function", "function": {"name": "weigh", "parameters": {"type": "object"}}}
    answer = await api.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "x"}], max_tokens=4, tools=[tool]
    )
    assert answer.usage.completion_tokens <= 4
    completion = await api.completions.create(
        model="tiny", prompt="golu", max_tokens=3, stream=True, extra_body={"ignore_eos": True}
    )
    assert [part async for part in completion]
    assert [model.id async for model in api.models.list()] == ["tiny"]


async def test_the_picker_reads_the_page_as_it_is(lab, stack):
    """Size and number of blocks, queue and running requests, once it has read the idle engine."""
    for engine in lab.engines:
        async with lab.http.get(f"{engine.url}/metrics") as answer:
            (page,) = read_all(await answer.text(), 0.0).readings
        assert (page.model, page.kv_block_tokens, page.kv_blocks) == ("tiny", BLOCK, BLOCKS)
        assert (page.queued, page.running, page.kv_used) == (0, 0, 0)

        async def read_so(engine=engine):
            replicas = (await picker_state(lab.http, stack))["router"]["pools"]["llm"]["endpoints"]
            (reading,) = replicas[engine.name]["readings"]
            return (reading["queued"], reading["running"], reading["kv_used"]) == (0, 0, 0)

        assert await eventually(read_so)


async def test_load_reports_reach_pickers_and_no_clients(lab):
    """An engine that is asked in lower case answers in JSON; clients do not see it."""
    body = {"model": "tiny", "prompt": "ba", "max_tokens": 1}
    asking = {"endpoint-load-metrics-format": "json"}
    async with lab.http.post(
        f"{lab.engines[0].url}/v1/completions", json=body, headers=asking
    ) as answer:
        assert answer.headers["endpoint-load-metrics"].startswith("JSON ")
    async with stack_of(lab, events=False, page=False, telemetry={"orca": True}) as stack:
        async with lab.http.post(f"{stack.http_url}/v1/completions", json=body) as answer:
            assert answer.status == 200
            assert "endpoint-load-metrics" not in answer.headers

        async def heard() -> bool:
            name = "tidegate_picker_telemetry_load_reports_total"
            return await metric(lab.http, stack.picker_metrics, name) >= 1

        assert await eventually(heard)


async def test_a_late_picker_learns_what_is_held(lab, stack, client):
    """It asks for a replay when it starts."""
    prompts = workload(7, 30)
    for prompt in prompts:
        await client.complete(prompt)
    await stack.kill_picker()
    await stack.start_picker()
    assert await eventually(lambda: exact(lab, stack))
    asked = [await client.complete(prompt) for prompt in prompts[-10:]]
    assert sum(each.cached for each in asked) > 0
    assert all(each.equal for each in asked), asked
    engines = (await picker_state(lab.http, stack))["telemetry"]["kv_events"]
    assert all(each["engines"][0]["counts"].get("unreadable", 0) == 0 for each in engines.values())


async def test_a_restarted_engine_holds_nothing(lab, stack, client):
    """Its cache is forgotten at once, and known again when it is back."""
    prompts = workload(8, 20)
    for prompt in prompts:
        await client.complete(prompt)
    first = lab.engines[0]
    first.kill()

    async def forgotten() -> bool:
        state = await picker_state(lab.http, stack)
        return state["router"]["pools"]["llm"]["endpoints"][first.name]["index_blocks"] == 0

    assert await eventually(forgotten)
    first.start()
    await first.ready(lab.http)
    assert await eventually(lambda: exact(lab, stack))
    asked = [await client.complete(prompt) for prompt in prompts]
    assert all(each.equal for each in asked), asked


def test_the_version_is_the_recorded_one():
    """A newer vLLM needs new recordings."""
    assert VERSION == "0.32.0"


async def test_the_picker_learns_the_first_tokens_that_clients_see(lab: Lab) -> None:
    """VLLM sends headers at once; what counts is the first token, behind its prefill.

    What a client sees is timed next to Envoy, because pickers and Envoy wait for a core while the
    engine works. One request follows the other, of one length: both estimates give the latest ones
    most weight, and answers that come together are told in another order than they were seen.
    """
    engine, seen, path = lab.engines[0], Estimate(), "/v1/completions"
    async with (
        first_bodies(engine.address, path, seen.put) as address,
        stack_of(
            lab,
            events=False,
            endpoints=[engine.endpoint(events=False, page=True) | {"http": address}],
        ) as stack,
    ):

        async def answers() -> dict[str, Any]:
            state = await picker_state(lab.http, stack)
            (known,) = state["router"]["pools"]["llm"]["endpoints"].values()
            return dict(known["answers"])

        chance, before = random.Random(16), (await answers())["answers"]
        seen.clear()  # of probes
        requests = 40
        url = f"{stack.http_url}{path}"

        def body() -> dict[str, Any]:
            prompt = " ".join(chance.choices(WORDS, k=1200))
            return {"model": "tiny", "prompt": prompt, "max_tokens": 1, "stream": True}

        async def ask(prepared: dict[str, Any]) -> None:
            async with lab.http.post(url, json=prepared) as answer:
                assert answer.status == 200
                await answer.read()

        for _ in range(requests):
            await ask(body())

        async def all_known() -> bool:
            return bool((await answers())["answers"] == before + requests)

        assert await eventually(all_known), await answers()
        learned = (await answers())["first_byte_s"]
        measured("first tokens, seconds: at Envoy, picker", (seen.rounded(4), learned))
        assert learned == pytest.approx(seen.value, rel=0.1)
