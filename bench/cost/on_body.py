"""Cost of a body in the picker: ``python bench/cost/on_body.py [--kb 2 8 32]``.

CPU microseconds from the parsed body message to the decision: reading the JSON, hashing the
prompt's blocks, scheduling over eight replicas (body mode ``peek``, policy ``auto``), without the
stream. ``read`` and ``hash`` are parts of ``on_body`` measured alone; the rest is the decision.
``loop`` is a loop of fixed work, measured alternately with the others; ``ratio`` is ``on_body`` in
units of it, for comparisons between machines and on busy ones. Each figure is the minimum of
``--rounds``, because noise only adds time.

Half of the requests repeat an earlier prompt, half are new, as in a conversation.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

# After PYTHONPATH, which selects the checkout's or the compiled picker.
sys.path.append(str(Path(__file__).resolve().parents[2]))
sys.path.append(str(Path(__file__).resolve().parents[2] / "tests"))

from ext_proc.compiled import compiled
from ext_proc.exchange import Body, Exchange, Head, Lost
from ext_proc.requests import prompt_blocks, read_body, read_head
from support.streams import CHAT_PATH, INFER_PATH, llm, replicas, router

if TYPE_CHECKING:
    from collections.abc import Callable

ENDPOINTS = 8
BLOCK_CHARS = 256
DIFFERENT = 64
TURN = 400
"""Length of a chat message, characters."""
LOOP = 1_000
STEP_S = 0.001
"""Time between two requests, seconds."""
HEAD: dict[str, Any] = {"end_of_stream": False, "cluster": "llm/stable/http", "route": "llm/x"}


def _text(rng: random.Random, characters: int) -> str:
    return "".join(f"{rng.randrange(10**7):07d} " for _ in range(characters // 8))


def generate(rng: random.Random, size: int) -> bytes:
    """Return a ``generate`` body with a prompt of ``size`` bytes."""
    return json.dumps({"text_input": _text(rng, size), "max_tokens": 16}).encode()


def chat(rng: random.Random, size: int) -> bytes:
    """Return a chat body whose messages have ``size`` bytes."""
    messages = [
        {"role": ("user", "assistant")[number % 2], "content": _text(rng, TURN)}
        for number in range(max(1, size // TURN))
    ]
    return json.dumps({"model": "toy-llm", "messages": messages, "stream": True}).encode()


FORMS: dict[str, tuple[str, Callable[[random.Random, int], bytes]]] = {
    "generate": (INFER_PATH, generate),
    "chat": (CHAT_PATH, chat),
}


class Case:
    """Requests of one form and size."""

    def __init__(self, form: str, size: int, *, cut: bool) -> None:
        rng = random.Random(1)  # noqa: S311 - a repeatable load
        self.path, made = FORMS[form]
        self.bodies = [made(rng, size) for _ in range(DIFFERENT)]
        if cut:
            self.bodies = [body[: len(body) * 9 // 10] for body in self.bodies]
        self._whole = not cut
        self._fresh = itertools.count()

    def _bodies(self) -> list[bytes]:
        """Return the bodies: half unchanged, half with a new prefix."""
        some = self.bodies[: DIFFERENT // 2]
        mark = self.bodies[0].index(b"0")
        for body in self.bodies[DIFFERENT // 2 :]:
            own = f"{next(self._fresh):07d}".encode()
            some.append(body[:mark] + own + body[mark + len(own) :])
        return some

    def on_body(self) -> float:
        """Return the CPU seconds of a decision by a router that has seen half of the prompts."""
        picker_router = router(llm(body="peek", endpoints=replicas(ENDPOINTS), policy="auto"))
        self._decide(picker_router, self.bodies, 0.0)
        return self._decide(picker_router, self._bodies(), 1.0) / DIFFERENT

    def _decide(self, picker_router: Any, bodies: list[bytes], at: float) -> float:
        spent = 0.0
        for number, body in enumerate(bodies):
            exchange, now = Exchange(picker_router), at + number * STEP_S
            exchange.on(Head("POST", self.path, {}, **HEAD), now, 0.0)
            # A copy, as what the stream has just read lies in the processor's cache.
            event = Body(bytes(memoryview(body)), end_of_stream=self._whole)
            begin = time.thread_time()
            exchange.on(event, now, 0.0)
            spent += time.thread_time() - begin
            exchange.on(Lost(clean=True), now + STEP_S, 0.0)
        return spent

    def read(self) -> float:
        """Return the CPU seconds of reading a body."""
        known = [read_head("POST", self.path, {}) for _ in self.bodies]
        begin = time.thread_time()
        for features, body in zip(known, self.bodies, strict=True):
            read_body(features, {}, body, complete=self._whole)
        return (time.thread_time() - begin) / DIFFERENT

    def hash(self) -> float:
        """Return the CPU seconds of hashing the blocks of a prompt."""
        read = [
            read_body(read_head("POST", self.path, {}), {}, body, complete=self._whole)
            for body in self.bodies
        ]
        begin = time.thread_time()
        for features in read:
            prompt_blocks(features, BLOCK_CHARS)
        return (time.thread_time() - begin) / DIFFERENT


def loop() -> float:
    """Return the CPU seconds of the loop of fixed work."""
    begin = time.thread_time()
    for _ in range(DIFFERENT):
        dict.fromkeys(range(LOOP), 0)
    return (time.thread_time() - begin) / DIFFERENT


def main() -> None:
    """Print one line per form and size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kb", type=int, nargs="+", default=[2, 8, 32])
    parser.add_argument("--rounds", type=int, default=60)
    args = parser.parse_args()
    print(f"compiled: {'yes' if compiled() else 'no'}; microseconds of CPU")
    print(f"{'body':<20}{'read':>8}{'hash':>8}{'on_body':>9}{'loop':>8}{'ratio':>8}")
    for size, form, cut in itertools.product(args.kb, FORMS, (False, True)):
        case = Case(form, size * 1024, cut=cut)
        works = (case.read, case.hash, case.on_body, loop)
        rows = [[work() for work in works] for _ in range(args.rounds)]
        read, hashed, whole, fixed = (min(column) * 1e6 for column in zip(*rows, strict=True))
        name = f"{form} {size} KB{', cut' if cut else ''}"
        print(
            f"{name:<20}{read:>8.1f}{hashed:>8.1f}{whole:>9.1f}{fixed:>8.1f}{whole / fixed:>8.2f}"
        )


if __name__ == "__main__":
    main()
