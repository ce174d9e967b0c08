"""The cases of the law "one in, one out": what a client sends, and what replicas do with it.

A case is drawn from a seed and its number alone, so that these two name it for good.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

PEEK_BYTES, MAX_BODY = 20_000, 100_000
"""``routing.peek_bytes`` and ``routing.max_body`` of the pools."""
RETRY_BYTES = 2**20
"""What Envoy keeps of a request for a retry where the picker reads no body."""
BUFFER_BYTES = 65_536
"""``listener.buffer_bytes``, and one more than the window of an HTTP/2 stream."""

MODES = ("none", "peek", "full")
CASE_HEADER = "x-case"
"""Carries the number of a case, from the client to the replica and back."""
STOLEN = b"POST /v2/repository/models/x/unload HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n"
"""What a client hides in a body: a request of its own."""

_BOUNDS = (PEEK_BYTES, BUFFER_BYTES, BUFFER_BYTES + 16_384, MAX_BODY, 2 * BUFFER_BYTES, 16_384)
_SMALL = (0, 1, 2, 80, 300, 2000, 4096)
_NOISE = bytes(random.Random(0).choices(b"abcdefghijklmnopqrstuvwxyz0123456789", k=9973)) * 120

H1_FRAMINGS = ("length", "chunked", "trailers", "expect", "expect-chunked", "pipelined")
CHUNKED = ("chunked", "trailers", "expect-chunked", "bad-chunk", "short-chunked", "both")
"""Framings of HTTP/1.1 in chunks; so is every second pipelined request."""
H2_FRAMINGS = ("length", "no-length", "trailers", "trailers-no-length")
H2_DRESS = ("", "padded", "split-headers", "empty-end")
"""How the same content is put into frames."""
BAD_H1 = ("both", "two-lengths", "plus-length", "bad-chunk", "short", "short-chunked")
BAD_H2 = ("excess", "lacking", "after-end", "after-trailers", "open-trailers")
"""Framings that are errors: of the request at most what was declared may reach a replica."""

CLOSES = ("close-head", "close-half", "close-end")
"""The replica breaks the request off, so far into it."""
BUSY = ("busy", "busy-head")
"""The replica answers 503 after the request, or after its head."""
ANSWERS = ("answer", "slow", "drip", "stall", "early", "cut")
"""The replica answers: at once, later, in two parts, after it stopped to read for a while, before
it has read the body, or only with half an answer."""


@dataclass(frozen=True)
class Case:
    """One request."""

    number: int
    front: str
    """Protocol of the client: ``http/1.0``, ``http/1.1``, ``h2``, ``h3``."""
    mode: str
    """Body mode of its pool: ``none``, ``peek``, ``full``; ``duplex`` for streams."""
    form: str = "infer"
    """``infer`` (JSON over HTTP), ``grpc`` (unary) or ``stream``."""
    framing: str = "length"
    dress: str = ""
    size: int = 300
    """Of the body, bytes; in ``grpc`` and ``stream`` about."""
    smuggles: bool = False
    """Whether its body begins with a request."""
    cuts: tuple[int, ...] = ()
    """Where the body is cut into parts."""
    slow: tuple[int, ...] = ()
    """Steps before which the client waits: 0 = the head, then the parts, at last the end."""
    reset_after: int | None = None
    """Step after which the client breaks off; the last one = while it waits for the answer."""
    plan: tuple[str, ...] = ("answer",)
    """What replicas do with the attempts, in order; the last holds for all further ones."""
    answer_size: int = 30
    shadow: bool = False
    """Whether its pool copies requests to a shadow."""
    sequence: bool = False
    """Whether it is a sequence of one request, which only one replica may read."""
    named: bool = True
    """Whether a header names the model of a gRPC call; else only the body does."""

    def but(self, **changes: object) -> Case:
        """Return the case with other fields."""
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]  # names of fields

    @property
    def model(self) -> str:
        """The model, which is served by one pool."""
        return f"m-{self.mode}-copied" if self.shadow else f"m-{self.mode}"

    @property
    def malformed(self) -> bool:
        """Whether its framing is an error."""
        return self.framing in (BAD_H1 if self.front.startswith("http") else BAD_H2)

    @property
    def trailers(self) -> bool:
        """Whether it ends with trailers."""
        return "trailers" in self.framing

    @property
    def readable(self) -> bool:
        """Whether its body is a request that a replica would accept."""
        return not self.smuggles and self.size >= 200

    @property
    def peeked(self) -> bool:
        """Whether the picker reads a first part of its body, and need not know its end."""
        return self.mode == "peek" or (self.form == "grpc" and not self.named)

    @property
    def path(self) -> str:
        """The path."""
        if self.form == "infer":
            return f"/v2/models/{self.model}/infer"
        method = "ModelStreamInfer" if self.form == "stream" else "ModelInfer"
        return f"/inference.GRPCInferenceService/{method}"

    @cached_property
    def body(self) -> bytes:
        """The body."""
        if self.smuggles:
            return STOLEN + self._noise(max(0, self.size - len(STOLEN)))
        if self.form == "infer":
            return self._json()
        if self.size < 200:
            return bytes(self.size)
        if self.form == "grpc":
            return self._message(self.size)
        return self._message(200) + self._message(self.size)

    def _json(self) -> bytes:
        if self.size < 200:
            return b"{" + b" " * (self.size - 2) + b"}" if self.size > 1 else b"1" * self.size
        sequence = {"sequence_id": self.number, "sequence_start": True, "sequence_end": True}
        document = {
            "id": f"c{self.number}",
            **({"parameters": sequence} if self.sequence else {}),
            "inputs": [{"name": "x", "datatype": "BYTES", "shape": [1], "data": [""]}],
        }
        text = json.dumps(document, separators=(",", ":")).encode()
        middle = len(text) - len(b'"]}]}')
        return text[:middle] + self._noise(self.size - len(text)) + text[middle:]

    def _message(self, size: int) -> bytes:
        """Return a gRPC message of a ModelInferRequest: model, id, and an unknown field."""
        name, number = self.model.encode(), f"c{self.number}".encode()
        made = b"\x0a%c%s\x1a%c%s" % (len(name), name, len(number), number)
        made += b"\x7a" + _varint(size) + self._noise(size)
        return b"\0" + len(made).to_bytes(4, "big") + made

    def _noise(self, size: int) -> bytes:
        at = self.number * 37 % 9973
        return _NOISE[at : at + size]

    @property
    def parts(self) -> list[bytes]:
        """The body in its parts; none if it is empty."""
        ends = sorted({cut for cut in self.cuts if 0 < cut < len(self.body)})
        bounds = [0, *ends, len(self.body)]
        return [self.body[a:b] for a, b in itertools.pairwise(bounds) if b > a]

    @property
    def steps(self) -> int:
        """Number of its steps: the head, the parts and the end."""
        return len(self.parts) + 2

    def action(self, attempt: int) -> str:
        """Return what replicas do with an attempt; the first is 0."""
        return self.plan[min(attempt, len(self.plan) - 1)]

    @cached_property
    def answer(self) -> bytes:
        """The body of its answer, which no other case has."""
        unit = b"answer %d;" % self.number
        return (unit * (self.answer_size // len(unit) + 1))[: max(self.answer_size, len(unit))]


def _varint(value: int) -> bytes:
    made = bytearray()
    while value >= 128:
        made.append(value % 128 + 128)
        value //= 128
    return bytes([*made, value])


def draw(seed: int, number: int, *, fronts: tuple[str, ...]) -> list[Case]:
    """Return the cases of one draw: one, or several that are sent together on a connection.

    Args:
        seed: Of the run.
        number: Of the draw; its cases have numbers from ``8 * number`` on.
        fronts: Protocols of clients, drawn alike.
    """
    dice = random.Random(f"{seed}/{number}")
    front = dice.choice(fronts)
    first = _draw_one(dice, 8 * number, front)
    if first.framing != "pipelined":
        return [_ends(first)]
    further = [
        _draw_one(dice, 8 * number + more, front).but(framing="pipelined", reset_after=None)
        for more in range(1, dice.randint(2, 5))
    ]
    # What breaks the connection ends a pipeline, so nothing may follow it.
    together = [first.but(reset_after=None), *further]
    return [_ends(each).but(slow=(), plan=tuple(map(_keeps, each.plan))) for each in together]


def _ends(case: Case) -> Case:
    """Return a case whose end Envoy does not lose."""
    return case.but(size=BUFFER_BYTES // 2) if loses_its_end(case) else case


def loses_its_end(case: Case) -> bool:
    """Return whether Envoy 1.40 may lose the end of the case's body, for which all then wait.

    Over HTTP/1.1 the end of a chunked body comes by itself. In BUFFERED_PARTIAL it is lost if the
    part before it exceeds Envoy's buffer, and the picker has not answered yet. The picker refuses
    what it sees to be whole.
    """
    chunked = case.framing in CHUNKED or (case.framing == "pipelined" and case.number % 2)
    return chunked and case.mode == "peek" and case.size > BUFFER_BYTES


def _keeps(action: str) -> str:
    return "answer" if action in {"early", "cut", "busy-head"} else action


def _draw_one(dice: random.Random, number: int, front: str) -> Case:
    h1 = front.startswith("http")
    form = "infer" if h1 else dice.choice(("infer", "infer", "grpc", "grpc", "stream"))
    mode = dice.choice(MODES) if form != "stream" else dice.choice(("none", "duplex", "duplex"))
    if front == "http/1.0":
        framing = "length"
    else:
        bad = dice.random() < 0.12 and front != "h3"  # the client there is an Envoy
        good, wrong = (H1_FRAMINGS, BAD_H1) if h1 else (H2_FRAMINGS, BAD_H2)
        framing = dice.choice(wrong if bad and form == "infer" else good)
    case = Case(number, front, mode, form, framing)
    size = _size(dice, case)
    case = case.but(
        size=size,
        dress="" if h1 else dice.choice(H2_DRESS),
        smuggles=form == "infer" and size > len(STOLEN) and dice.random() < 0.2,
        answer_size=dice.choice((0, 30, 30, 30, 5000, 40_000 if form == "infer" else 5000)),
        shadow=form != "stream" and dice.random() < 0.2,
        named=form != "grpc" or size < 200 or dice.random() < 0.7,
        sequence=form == "infer" and size >= 200 and mode != "none" and dice.random() < 0.1,
    )
    if case.smuggles:
        case = case.but(sequence=False)
    cuts = (
        tuple(sorted(dice.randrange(1, size) for _ in range(dice.choice((0, 0, 1, 2, 5)))))
        if (size > 1)
        else ()
    )
    case = case.but(cuts=cuts)
    steps = case.steps
    slow = tuple(step for step in range(1, steps) if dice.random() < 0.25)
    if dice.random() < 0.4:
        slow = ()
    elif dice.random() < 0.3 and case.trailers:
        slow = (steps - 1,)
    case = case.but(slow=slow, plan=_plan(dice, case))
    if dice.random() < 0.12 and not case.malformed:
        case = case.but(reset_after=dice.randrange(steps))
    return case


def _size(dice: random.Random, case: Case) -> int:
    kind = dice.random()
    if kind < 0.62:
        return dice.choice(_SMALL)
    if kind < 0.96:
        bound = dice.choice(_BOUNDS)
        return bound + dice.choice((-1, 0, 1, dice.randint(-200, 200)))
    # The largest cost most, so they are few.
    return (
        RETRY_BYTES + dice.choice((-300, -1, 0, 1, 70_000)) if case.mode != "full" else MAX_BODY + 1
    )


def _plan(dice: random.Random, case: Case) -> tuple[str, ...]:
    kind = dice.random()
    if kind < 0.55:
        return ("answer",)
    if kind < 0.75:
        return (dice.choice(ANSWERS),)
    fails = [dice.choice((*CLOSES, *BUSY)) for _ in range(dice.choice((1, 1, 2, 3)))]
    if case.form != "infer" and dice.random() < 0.2:
        fails[0] = "refuse"
    return (*fails, dice.choice(("answer", "answer", "slow", "drip")))


def simpler(case: Case) -> Iterator[Case]:
    """Yield cases that are simpler in one respect each, the greatest steps first."""
    plain = Case(case.number, case.front, case.mode)
    for name in ("plan", "shadow", "sequence", "slow", "cuts", "dress", "answer_size", "named"):
        value = getattr(plain, name)
        if getattr(case, name) != value:
            yield case.but(**{name: value})
    for name in ("smuggles", "reset_after"):
        if getattr(case, name) != getattr(plain, name):
            yield case.but(**{name: getattr(plain, name)})
    for size in (0, 1, 300, PEEK_BYTES, case.size // 2):
        if size < case.size:
            yield case.but(size=size, cuts=tuple(cut for cut in case.cuts if cut < size))
    for name in ("slow", "cuts"):
        values = getattr(case, name)
        for value in values if len(values) > 1 else ():
            yield case.but(**{name: tuple(each for each in values if each != value)})
    if len(case.plan) > 1:
        yield case.but(plan=case.plan[1:])
        yield case.but(plan=case.plan[:-1])
