"""vLLM itself judges: what the picker predicts, how it routes, and what clients see.

An engine's count of cached tokens is ``usage.prompt_tokens_details.cached_tokens`` of each answer.
It computes at least a prompt's last token, so it never counts the last block of a prompt that is
held whole. The client is OpenAI's own.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import openai
import pytest

from engines.lab import BLOCK, BLOCKS, VERSION
from engines.stacks import stack_of
from ext_proc.routing.latency.estimates import Estimate
from ext_proc.telemetry.dialects import read_all
from support.traffic import eventually, metric, picker_state

if TYPE_CHECKING:
    from engines.lab import Lab
    from tidegate.stack.local import LocalStack

pytestmark = pytest.mark.timeout(900)
PREDICTED = "tidegate_picker_prefix_predicted_tokens_total"
EQUAL = 0.99
"""Least share of predictions that equal the engine's count."""
WORDS = ("ba", "de", "fi", "golu", "mane", "po", "risu", "tavo", "sudefi", "lumago")


class Asked(NamedTuple):
    """One request: what was predicted for it, what its engine counted, and its tokens."""

    predicted: int
    cached: int
    tokens: int

    @property
    def equal(self) -> bool:
        return min(self.predicted, (self.tokens - 1) // BLOCK * BLOCK) == self.cached


class Client:
    """OpenAI's client of a stack; it sends one request at a time."""

    def __init__(self, lab: Lab, stack: LocalStack) -> None:
        self._lab, self._stack = lab, stack
        self.api = openai.AsyncOpenAI(
            base_url=f"{stack.http_url}/v1", api_key="none", max_retries=0, timeout=60
        )

    async def complete(self, prompt: Any, **extra: Any) -> Asked:
        """Send a prompt of ids or a text."""
        more = {"max_tokens": 1, "temperature": 0, "extra_body": extra}
        return await self._asked(
            lambda: self.api.completions.create(model="tiny", prompt=prompt, **more)
        )

    async def chat(self, messages: list[Any], **more: Any) -> Asked:
        """Send a conversation."""
        return await self._asked(
            lambda: self.api.chat.completions.create(
                model="tiny", messages=messages, max_tokens=1, temperature=0, **more
            )
        )

    async def _asked(self, ask: Any) -> Asked:
        before = await self.predicted()
        usage = (await ask()).usage
        details = usage.prompt_tokens_details
        cached = (details.cached_tokens or 0) if details is not None else 0
        return Asked(round(await self.predicted() - before), cached, usage.prompt_tokens)

    async def predicted(self) -> float:
        """Return the tokens that the picker has predicted to be cached so far."""
        return await metric(self._lab.http, self._stack.picker_metrics, PREDICTED)


def ids(chance: random.Random, count: int) -> list[int]:
    """Return random ids that are no special tokens."""
    return [chance.randrange(300, 600) for _ in range(count)]


def workload(seed: int, count: int) -> list[list[int]]:
    """Return prompts that share prefixes, some popular, together more than the caches hold."""
    chance = random.Random(seed)
    prefixes = [ids(chance, BLOCK * chance.randint(4, 14)) for _ in range(40)]
    assert sum(map(len, prefixes)) > 1.3 * 2 * BLOCKS * BLOCK
    ranks = [1 / (1 + rank) for rank in range(len(prefixes))]
    return [
        chance.choices(prefixes, ranks)[0] + ids(chance, chance.choice([0, 1, 20, 64, 90]))
        for _ in range(count)
    ]


def sentence(chance: random.Random, words: int) -> str:
    """Return a text."""
    return " ".join(chance.choices(WORDS, k=words))


async def emptied(lab: Lab) -> None:
    """Empty the engines' caches."""
    for engine in lab.engines:
        await engine.empty(lab.http)


async def exact(lab: Lab, stack: LocalStack) -> bool:
    """Return whether the picker knows all caches."""
    engines = (await picker_state(lab.http, stack))["telemetry"]["kv_events"]
    return len(engines) == len(lab.engines) and all(each["exact"] for each in engines.values())


async def agrees(lab: Lab, stack: LocalStack) -> bool:
    """Return whether an engine has confirmed the chat template."""
    chats = (await picker_state(lab.http, stack))["chats"]
    return chats["llm"]["template"] == "agrees"


def measured(what: str, value: object) -> None:
    """Print a figure for the report; `make test-engines` shows it."""
    print(f"{what}: {value}")  # noqa: T201 - pytest shows it


def share(asked: list[Asked]) -> float:
    """Return the share of tokens that the engines read from their caches."""
    return sum(each.cached for each in asked) / sum(each.tokens for each in asked)


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
    """Size and number of blocks, queue and running requests."""
    replicas = (await picker_state(lab.http, stack))["router"]["pools"]["llm"]["endpoints"]
    for engine in lab.engines:
        async with lab.http.get(f"{engine.url}/metrics") as answer:
            (page,) = read_all(await answer.text(), 0.0).readings
        assert (page.model, page.kv_block_tokens, page.kv_blocks) == ("tiny", BLOCK, BLOCKS)
        (reading,) = replicas[engine.name]["readings"]
        shown = (reading["queued"], reading["running"], reading["kv_used"])
        assert shown == (page.queued, page.running, page.kv_used) == (0, 0, 0)


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


async def rates(lab: Lab, *, events: bool, template: bool = False) -> tuple[float, float]:
    """Return the hit rates of prompts of ids and of chats, one after the other, mixed."""
    await emptied(lab)
    async with stack_of(lab, events=events, template=template) as stack:
        if events:
            assert await eventually(lambda: exact(lab, stack))
        client, chance = Client(lab, stack), random.Random(5)
        chats: list[list[Any]] = [[] for _ in range(8)]
        prompted, chatted = [], []
        for prompt in workload(6, 160):
            prompted.append(await client.complete(prompt))
            messages = chance.choice(chats)
            messages.append({"role": "user", "content": sentence(chance, 30)})
            chatted.append(await client.chat(messages))
            messages.append({"role": "assistant", "content": sentence(chance, 10)})
            if len(messages) > 12:
                messages.clear()
            await asyncio.sleep(0.05)  # so that events count for some time
        await client.api.close()
        return share(prompted), share(chatted)


async def test_events_make_nothing_worse(lab):
    """Hit rates of ids and of chats beside them: neither, events, events and chat template."""
    without = await rates(lab, events=False)
    with_events = await rates(lab, events=True)
    exactly = await rates(lab, events=True, template=True)
    found = zip(("ids", "chats"), without, with_events, exactly, strict=True)
    for what, guessed, known, all_known in found:
        measured(
            f"mixed {what}: hit rate without, with events, with template too",
            (guessed, known, all_known),
        )
        assert known >= guessed - 0.02, what
        assert all_known >= guessed - 0.02, what


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
    """VLLM sends headers at once; what counts is the first token, behind the prefill."""
    endpoints = [lab.engines[0].endpoint(events=False, page=True)]
    async with stack_of(lab, events=False, endpoints=endpoints) as stack:
        client = openai.AsyncOpenAI(
            base_url=f"{stack.http_url}/v1", api_key="none", max_retries=0, timeout=60
        )
        await client.models.list()  # makes its connection
        chance, seen = random.Random(16), Estimate()
        for _ in range(20):
            prompt = " ".join(chance.choices(WORDS, k=600))
            began = time.perf_counter()
            stream = await client.completions.create(
                model="tiny", prompt=prompt, max_tokens=24, stream=True
            )
            first = None
            async for _ in stream:
                first = first or time.perf_counter() - began
            assert first is not None
            seen.put(first)

        async def answers() -> dict[str, Any]:
            state = await picker_state(lab.http, stack)
            (known,) = state["router"]["pools"]["llm"]["endpoints"].values()
            return dict(known["answers"])

        async def all_known() -> bool:
            return bool((await answers())["answers"] == seen.count)

        assert await eventually(all_known)
        learned = (await answers())["first_byte_s"]
        print("the client saw", seen.rounded(4), "the picker", learned)  # noqa: T201 - shown by -rP
        # The client's time has its own work, Envoy's and the picker's in it; headers come in 5 ms.
        assert seen.value is not None
        assert 0.4 * seen.value < learned <= seen.value
