"""Hit rates of `auto` where engines report their caches, beside those where they do not.

    python bench/compare/kv_belief.py [--seeds 60]

The picker's unchanged router over two caches that evict as vLLM's block pool does, one request at a
time, as in the tests on real engines (which hold the caches to vLLM's own counts): prompts of ids
that share prefixes, and turns of chats, by turns or in random order, with and without other
clients, each of whose prompts fills half of a cache. Differences are paired by seed, with Student's
95 % interval. One process; about a second of CPU for each seed.
"""

from __future__ import annotations

import argparse
from itertools import pairwise, product
from random import Random
from typing import TYPE_CHECKING, Final, NamedTuple

from bench.report.paired import difference
from ext_proc.routing.pipeline.scheduler import Decision
from ext_proc.routing.router import Router
from ext_proc.routing.values.pool import Endpoint, EndpointKey, Pool, Variant
from ext_proc.routing.values.reading import Reading
from ext_proc.routing.values.request import Features, Form, Request
from ext_proc.routing.values.settings import SlowStart
from ext_proc.routing.values.ticket import Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence

BLOCK: Final = 32
BLOCKS: Final = 120
STEPS: Final = 160
PREFIXES: Final = 40
CHATS: Final = 8
LONGEST: Final = 12
"""Messages of a chat; it then begins anew."""
FIXED_S: Final = 0.02
TOKENS_PER_S: Final = 20_000.0
PAUSE_S: Final = 0.05
OTHERS: Final = 0.3
"""Chance of a prompt by another client after each step."""
KINDS: Final = ("ids", "chats")
ROWS: Final = (*KINDS, "both")


class Cache:
    """vLLM's block pool for one request at a time: free blocks by age, contents kept until taken.

    A prompt's blocks become free together, its last one first to be taken. A block that is not full
    is never found again, so it is taken before all others. At least a prompt's last token is
    computed, so the last block of a prompt that is held whole has a second copy.
    """

    def __init__(self) -> None:
        self._free: dict[int, None] = dict.fromkeys(range(1, BLOCKS))  # one block is always taken
        self._names: dict[int, int] = {}
        self._held: dict[int, dict[int, None]] = {}
        self.removed: list[int] = []
        self.stored: list[int] = []

    def run(self, names: Sequence[int], tokens: int) -> int:
        """Compute a prompt; return its cached blocks.

        ``removed`` and ``stored`` then name the blocks that left the cache and came into it.
        """
        self.removed, self.stored, used = [], [], []
        for name in names[: (tokens - 1) // BLOCK]:
            if name not in self._held:
                break
            used.append(next(iter(self._held[name])))
        hits = len(used)
        for place in used:
            del self._free[place]
        for _ in range(-(-tokens // BLOCK) - hits):
            place = next(iter(self._free))
            del self._free[place]
            self._forget(place)
            used.append(place)
        for place, name in list(zip(used, names, strict=False))[hits:]:
            self._names[place] = name
            self._held.setdefault(name, {})[place] = None
            self.stored.append(name)
        full, rest = used[: len(names)], used[len(names) :]
        self._free = dict.fromkeys((*rest, *self._free, *reversed(full)))
        return hits

    def _forget(self, place: int) -> None:
        name = self._names.pop(place, None)
        if name is not None:
            self.removed.append(name)
            del self._held[name][place]
            if not self._held[name]:
                del self._held[name]


class Rates(NamedTuple):
    """What a run gave."""

    ids: float
    """Share of the tokens of such prompts that were cached."""
    chats: float
    both: float
    """Of all prompts."""
    equal: float
    """Share of the predictions that were true."""


class Replay:
    """One run of the requests of a seed.

    Args:
        seed: Seed of requests and router.
        exact: The caches report what they store and remove.
        others: There are other clients.
        by_turns: Kinds alternate; otherwise each prompt's is drawn.
    """

    def __init__(self, seed: int, *, exact: bool, others: bool, by_turns: bool = True) -> None:
        self._chance = Random(seed)  # noqa: S311 - repeatable
        self._exact, self._others, self._by_turns = exact, others, by_turns
        keys = (EndpointKey("v1", 1), EndpointKey("v2", 1))
        self._caches = {key: Cache() for key in keys}
        self._router = Router(Random(seed + 1))  # noqa: S311 - repeatable
        pool = Pool(
            name="llm",
            models=frozenset({"m"}),
            variants=(Variant("stable", 1),),
            endpoints=tuple(Endpoint(key, "stable", f"{key.id}:80", None) for key in keys),
            tokenizer="tokenizer.json",
            block_tokens=BLOCK,
            slow_start=SlowStart(window_s=0.0),
        )
        self._router.set_pools({"llm": pool}, 0.0)
        self._now = 1.0
        told = Reading(at=1.0, model="m", kv_blocks=BLOCKS, kv_block_tokens=BLOCK)
        for key in keys:
            self._router.registry.observe(key.id, (told,))
            if exact:
                self._router.index.reports.set_reporting(key, complete=True)
        self._counts = {kind: [0, 0] for kind in KINDS}
        self._true: list[bool] = []

    def run(self) -> Rates:
        """Send all requests."""
        chance = self._chance
        prefixes = [self._ids(BLOCK * chance.randint(4, 14)) for _ in range(PREFIXES)]
        ranks = [1 / (1 + rank) for rank in range(PREFIXES)]
        chats: list[list[int]] = [[] for _ in range(CHATS)]
        turns = [0] * CHATS
        for _ in range(STEPS):
            for kind in KINDS if self._by_turns else chance.choices(KINDS, k=2):
                if kind == "ids":
                    tail = self._ids(chance.choice([0, 1, 20, 64, 90]))
                    self._ask(kind, chance.choices(prefixes, ranks)[0] + tail)
                    continue
                number = chance.randrange(CHATS)
                chats[number] += self._ids(chance.randint(50, 75))
                self._ask(kind, chats[number])
                chats[number] += self._ids(chance.randint(15, 28))
                turns[number] += 2
                if turns[number] > LONGEST:
                    chats[number], turns[number] = [], 0
            if self._others and chance.random() < OTHERS:
                prompt = self._ids(BLOCKS // 2 * BLOCK)
                self._compute(chance.choice(list(self._caches)), names(prompt), len(prompt))
            self._now += PAUSE_S
        counts = list(self._counts.values())
        counts.append([sum(column) for column in zip(*counts, strict=True)])
        return Rates(*(cached / tokens for cached, tokens in counts), self._equal())

    def _equal(self) -> float:
        return sum(self._true) / len(self._true)

    def _ids(self, count: int) -> list[int]:
        return [self._chance.randrange(300, 600) for _ in range(count)]

    def _ask(self, kind: str, prompt: list[int]) -> None:
        blocks, router = names(prompt), self._router
        features = Features(Form.OPENAI, model="m", prompt=b"\0" * 4 * len(prompt), token_ids=True)
        size, tokens = float(BLOCK), len(prompt)
        request = Request("llm", None, "http", features, blocks, size, tokens)
        decision = router.decide(request, self._now, self._now)
        ticket = decision.ticket if isinstance(decision, Decision) else None
        if ticket is None:
            raise RuntimeError(f"no pick: {decision}")
        hits = self._compute(ticket.endpoint, blocks, tokens)
        router.settle(ticket, Outcome.DONE, self._now)
        router.confirmed(ticket.id, ticket.endpoint)
        self._counts[kind][0] += hits * BLOCK
        self._counts[kind][1] += tokens
        self._true.append(min(decision.matched_blocks, (tokens - 1) // BLOCK) == hits)

    def _compute(self, key: EndpointKey, blocks: tuple[int, ...], tokens: int) -> int:
        cache = self._caches[key]
        hits = cache.run(blocks, tokens)
        self._now += FIXED_S + (tokens - hits * BLOCK) / TOKENS_PER_S
        if self._exact:
            index = self._router.index
            for name in cache.removed:
                index.reports.remove(key, 0, (name,))
            if cache.stored:
                stored = tuple(cache.stored)
                index.reports.store(key, 0, stored, stored, blocks[hits - 1] if hits else None)
        return hits


def names(prompt: Sequence[int]) -> tuple[int, ...]:
    """Return the names of a prompt's full blocks, each of all tokens up to its end."""
    made = [0]
    for begin, end in pairwise(range(0, len(prompt) + 1, BLOCK)):
        made.append(hash((made[-1], *prompt[begin:end])) & (1 << 60) - 1)
    return tuple(made[1:])


def main() -> None:
    """Replay and print."""
    parser = argparse.ArgumentParser(description="Reported caches beside predicted ones.")
    parser.add_argument("--seeds", type=int, default=60)
    seeds = range(parser.parse_args().seeds)
    print("| order | other clients | prompts | predicted | reported | difference | true | true |")
    print("|---|---|---|---|---|---|---|---|")
    for by_turns, others in product((True, False), (False, True)):
        guessed, known = (
            {
                seed: Replay(seed, exact=exact, others=others, by_turns=by_turns).run()
                for seed in seeds
            }
            for exact in (False, True)
        )
        for at, row in enumerate(ROWS):
            ours = {seed: rates[at] for seed, rates in known.items()}
            theirs = {seed: rates[at] for seed, rates in guessed.items()}
            found = difference(ours, theirs)
            if found is None or found.low is None or found.high is None:
                parser.error("at least two seeds are needed")
            means = [sum(each.values()) / len(seeds) for each in (theirs, ours)]
            true = [sum(each.equal for each in side.values()) for side in (guessed, known)]
            cells = (
                "by turns" if by_turns else "random",
                "yes" if others else "no",
                row,
                *(f"{mean:.3f}" for mean in means),
                f"{found.mean:+.4f} [{found.low:+.4f}, {found.high:+.4f}]",
                *(f"{count / len(seeds):.1%}" for count in true),
            )
            print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
