"""Prompts for real engines, a client that compares predictions with their counts, and waits."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, NamedTuple

import openai

from engines.lab import BLOCK, BLOCKS
from support.traffic import eventually, metric, picker_state

if TYPE_CHECKING:
    from engines.lab import Lab
    from tidegate.stack.local import LocalStack

PREDICTED = "tidegate_picker_prefix_predicted_tokens_total"
HEARD = "tidegate_picker_kv_events_total"
WORDS = ("ba", "de", "fi", "golu", "mane", "po", "risu", "tavo", "sudefi", "lumago")


class Asked(NamedTuple):
    """One request: what was predicted for it, what its engine counted, and its tokens."""

    predicted: int
    cached: int
    tokens: int

    @property
    def equal(self) -> bool:
        return min(self.predicted, (self.tokens - 1) // BLOCK * BLOCK) == self.cached

    @property
    def stored(self) -> bool:
        """Whether its engine computed a whole block, of which it publishes an event."""
        return self.tokens // BLOCK * BLOCK > self.cached


class Client:
    """OpenAI's client of a stack with KV events; it sends one request at a time.

    The picker has heard of one request's blocks before the next is sent: an engine answers before
    it publishes.
    """

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
        before, heard = await self.predicted(), await self._heard()
        usage = (await ask()).usage
        details = usage.prompt_tokens_details
        cached = (details.cached_tokens or 0) if details is not None else 0
        asked = Asked(round(await self.predicted() - before), cached, usage.prompt_tokens)

        async def told() -> bool:
            return await self._heard() > heard

        assert not asked.stored or await eventually(told)
        return asked

    async def _heard(self) -> float:
        return await metric(self._lab.http, self._stack.picker_metrics, HEARD, what="batches")

    async def predicted(self) -> float:
        """Return the tokens that the picker has predicted to be cached so far."""
        return await metric(self._lab.http, self._stack.picker_metrics, PREDICTED)


def ids(chance: random.Random, count: int) -> list[int]:
    """Return random ids that are no special tokens."""
    return [chance.randrange(300, 600) for _ in range(count)]


def prefixes(chance: random.Random) -> list[list[int]]:
    """Return beginnings of prompts."""
    return [ids(chance, BLOCK * chance.randint(4, 14)) for _ in range(40)]


def overflows(seed: int) -> bool:
    """Return whether the prefixes of a workload are clearly more than the caches hold."""
    return sum(map(len, prefixes(random.Random(seed)))) > 1.3 * 2 * BLOCKS * BLOCK


def workload(seed: int, count: int) -> list[list[int]]:
    """Return prompts that share prefixes, some popular, together more than the caches hold."""
    assert overflows(seed)
    chance = random.Random(seed)
    shared = prefixes(chance)
    ranks = [1 / (1 + rank) for rank in range(len(shared))]
    return [
        chance.choices(shared, ranks)[0] + ids(chance, chance.choice([0, 1, 20, 64, 90]))
        for _ in range(count)
    ]


def sentence(chance: random.Random, words: int) -> str:
    """Return a text."""
    return " ".join(chance.choices(WORDS, k=words))


async def emptied(lab: Lab) -> None:
    """Empty the engines' caches; a step, of a prompt that fills no block, publishes it."""
    body = {"model": "tiny", "prompt": [300], "max_tokens": 1}
    for engine in lab.engines:
        await engine.empty(lab.http)
        # The engine closes idle connections.
        asked = {"json": body, "headers": {"connection": "close"}}
        async with lab.http.post(f"{engine.url}/v1/completions", **asked) as answer:
            assert answer.status == 200


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
