"""Hit rates on real engines that report their caches, beside the same engines where none is read.

Rules:

1. Each variant (no KV events, events, events and chat template) gets the same prompts in the same
   order for a seed, over caches that were emptied. Differences are paired by seed; their interval
   is Student's, 95 %.
2. A kind of prompts (ids, chats) is worse where its mean difference is below ``-WORSE``, or where
   its interval is wholly below 0. The number of seeds is fixed before the run, whatever the first
   ones say: one seed differs by about 0.02 by chance, because random picks differ.
3. What the caches do is known: the replay's cache counts the hits of each prompt as vLLM does, so
   ``bench/compare/kv_belief.py`` gives the same differences from more seeds.
"""

from __future__ import annotations

import asyncio
import os
import random
from itertools import count, islice
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from bench.compare.kv_belief import ROWS, Cache, names
from bench.report.paired import Compared, difference
from engines.asking import agrees, emptied, exact, ids, measured, overflows, sentence, workload
from engines.lab import BLOCK, BLOCKS
from engines.stacks import stack_of
from support.traffic import eventually, metric, picker_state

if TYPE_CHECKING:
    from collections.abc import Iterable

    from engines.lab import Lab
    from tidegate.stack.local import LocalStack

pytestmark = pytest.mark.timeout(3600)
SEEDS = int(os.environ.get("TIDEGATE_ENGINES_SEEDS", "16"))
STEPS = 160
"""Prompts of ids, and turns of chats, of a seed."""
REPORTED_S = 0.01
"""Time for reports to arrive, after each step."""
WORSE = 0.01
GUESSED: dict[str, bool] = {"events": False}
KNOWN: dict[str, dict[str, bool]] = {
    "events": {"events": True},
    "events and template": {"events": True, "template": True},
}


class Rates(NamedTuple):
    """Hit rates of a seed: the share of the prompts' tokens that engines read from their caches."""

    ids: float
    chats: float
    both: float


def seeds() -> Iterable[int]:
    """Yield seeds whose prompts are more than the caches hold."""
    return (seed for seed in count(1) if overflows(seed + 1))


async def asked(lab: Lab, url: str, body: dict[str, Any], **more: Any) -> tuple[int, int]:
    """Send a request for one token; return the tokens of its prompt, cached ones and all."""
    body = {"model": "tiny", "max_tokens": 1, "temperature": 0, **body}
    async with lab.http.post(url, json=body, **more) as answer:
        assert answer.status == 200, await answer.text()
        usage = (await answer.json())["usage"]
    details = usage["prompt_tokens_details"] or {}
    return details.get("cached_tokens") or 0, usage["prompt_tokens"]


async def rates(lab: Lab, stack: LocalStack, seed: int, *, others: bool) -> Rates:
    """Return the hit rates of prompts of ids and of chats, one after the other, by turns.

    Args:
        lab: The engines.
        stack: The stack over them.
        seed: Seed of the prompts.
        others: Other clients ask the engines directly, with prompts that fill half of a cache.
    """
    chance, v1 = random.Random(seed), f"{stack.http_url}/v1"
    chats: list[list[Any]] = [[] for _ in range(8)]
    counts: dict[str, list[tuple[int, int]]] = {"ids": [], "chats": []}
    for prompt in workload(seed + 1, STEPS):
        counts["ids"].append(await asked(lab, f"{v1}/completions", {"prompt": prompt}))
        messages = chance.choice(chats)
        messages.append({"role": "user", "content": sentence(chance, 30)})
        body = {"messages": messages}
        counts["chats"].append(await asked(lab, f"{v1}/chat/completions", body))
        messages.append({"role": "assistant", "content": sentence(chance, 10)})
        if len(messages) > 12:
            messages.clear()
        if others and chance.random() < 0.3:
            other = {"prompt": ids(chance, BLOCKS // 2 * BLOCK)}
            url = f"{chance.choice(lab.engines).url}/v1/completions"
            # The engine closes idle connections.
            await asked(lab, url, other, headers={"connection": "close"})
        await asyncio.sleep(REPORTED_S)
    sums = [tuple(map(sum, zip(*pairs, strict=True))) for pairs in counts.values()]
    sums.append(tuple(map(sum, zip(*sums, strict=True))))
    return Rates(*(cached / tokens for cached, tokens in sums))


async def rates_of(
    lab: Lab, wanted: Iterable[int], *, others: bool, events: bool, template: bool = False
) -> dict[int, Rates]:
    """Return the rates of seeds, of one stack."""
    async with stack_of(lab, events=events, template=template) as stack:

        async def empty() -> bool:
            pool = (await picker_state(lab.http, stack))["router"]["pools"]["llm"]
            blocks = [each["index_blocks"] for each in pool["endpoints"].values()]
            return await exact(lab, stack) and not any(blocks)

        if template:
            assert await eventually(lambda: agrees(lab, stack))
        found = {}
        for seed in wanted:
            await emptied(lab)
            if events:
                assert await eventually(empty)
                relief = await metric(lab.http, stack.picker_metrics, "tidegate_picker_relief")
                assert relief == 0, "after engines' histories of 10,000 batches"
            found[seed] = await rates(lab, stack, seed, others=others)
            rounded = " ".join(f"{each:.4f}" for each in found[seed])
            measured(f"{others=} {events=} {template=} {seed=}", rounded)
        return found


async def compared(
    lab: Lab, variants: dict[str, dict[str, bool]], *, others: bool
) -> list[tuple[str, Compared]]:
    """Return the differences of variants to no events, by kind, from ``SEEDS`` seeds."""
    wanted = list(islice(seeds(), SEEDS))
    found = {
        name: await rates_of(lab, wanted, others=others, **settings)
        for name, settings in {"none": GUESSED, **variants}.items()
    }
    differences = []
    for name in variants:
        for at, kind in enumerate(ROWS):
            ours, theirs = (
                {seed: each[at] for seed, each in found[variant].items()}
                for variant in (name, "none")
            )
            each = difference(ours, theirs)
            assert each is not None
            assert each.low is not None
            assert each.high is not None
            differences.append((f"{name}, {kind}", each))
            means = [sum(side.values()) / len(side) for side in (theirs, ours)]
            measured(
                f"others {others}, {name}, {kind}, {each.seeds} seeds",
                f"{means[0]:.3f} {means[1]:.3f} "
                f"{each.mean:+.4f} [{each.low:+.4f}, {each.high:+.4f}]",
            )
    return differences


def worse(each: Compared) -> bool:
    """Return whether hits were lost (rule 2)."""
    return each.mean < -WORSE or each.below(0.0) is True


async def test_the_replays_cache_counts_the_hits_of_vllm(lab: Lab) -> None:
    """What is measured on many seeds there holds for engines, prompt by prompt."""
    await emptied(lab)
    engine, cache, counts = lab.engines[0], Cache(), []
    for prompt in workload(11, 200):
        cached, tokens = await asked(lab, f"{engine.url}/v1/completions", {"prompt": prompt})
        counts.append((cached, cache.run(names(prompt), tokens) * BLOCK))
    assert [one for one, _ in counts] == [other for _, other in counts]
    assert sum(one for one, _ in counts) > 0


async def test_events_make_nothing_worse(lab: Lab) -> None:
    """Ids and chats beside them: events, and events and chat template, beside neither."""
    found = await compared(lab, KNOWN, others=False)
    assert not [each for each in found if worse(each[1])]


async def test_events_show_what_other_clients_have_evicted(lab: Lab) -> None:
    """Engines that are also asked directly hold less than the picker's own requests tell."""
    name = "events and template"
    found = await compared(lab, {name: KNOWN[name]}, others=True)
    assert not [each for each in found if worse(each[1])]
