"""Many requests to picker and Triton, and what they disagree on.

Rules:

1. A seed and a number make a request, the same in each run.
2. Each request is made harmless and, where that changes it, deadly. Harmless ones are asked of
   Triton whatever the picker decides; deadly ones only if the picker lets them pass.
3. A request that breaks a law is made smaller while it breaks the same law.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import zlib
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Self

from support.readings.cases import DEADLY, HARMLESS, MODEL, Case
from support.readings.grpc_bodies import grpc_case
from support.readings.json_bodies import LENGTH, generate_case, json_case
from support.readings.killers import killer_case
from support.readings.laws import broken
from support.readings.picker import Verdict
from support.readings.triton import AT_ONCE, CLOSED, DIED, FOLDER, GONE, Asking, load_model
from tidegate.stack.processes.supervisor import CrashError
from tidegate.stack.tritons.fleet import Tritons

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from support.readings.picker import Picker, Reading
    from support.readings.triton import Answer

GROUP: Final = 128
"""Requests that are made, read and asked together."""
MAKERS: Final = (*[json_case] * 10, *[grpc_case] * 7, generate_case, *[killer_case] * 2)
ODDITIES: Final = (0.0, 0.005, 0.01, 0.02, 0.04)
DYING_S: Final = 10.0
"""Time that a dying server has to end, seconds: it writes its stack first."""
STEP_S: Final = 0.1
MOST_FAILURES: Final = 12
"""After so many broken laws a campaign ends."""
MOST_DEATHS: Final = 24
"""After so many deaths deadly requests are not sent any more; each costs some seconds."""
DEATHS: Final = "bodies that end it"
BEYOND_DEATHS: Final = "of these beyond the bound"
MOST_KEPT: Final = 6000
SHRINKS: Final = 400
DEADLY_SHRINKS: Final = 12
"""Attempts to make a request smaller; a deadly one costs a start of Triton each."""


class Server:
    """One real Triton that serves `echo`, started anew where it died; an async context manager."""

    def __init__(self) -> None:
        self._exit = AsyncExitStack()
        self._asking: Asking | None = None
        self.deaths = 0
        """How often it died: of a request among others, and again of it alone."""
        self.unexplained: list[list[Case]] = []
        """For each death of which no request alone is the cause: those that were under way."""

    async def __aenter__(self) -> Self:
        await self._start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._exit.aclose()

    async def _start(self) -> None:
        tritons = Tritons(1, models=(MODEL,), source=FOLDER.parent)
        self._tritons = await self._exit.enter_async_context(tritons)
        (replica,) = self._tritons.replicas
        await load_model(replica.http)
        self._asking = self._exit.enter_context(Asking(replica.http, replica.grpc))

    async def ask(self, cases: Sequence[Case]) -> list[Answer]:
        """Return the answers to all; a server that dies of one is started anew for the others.

        Those that were asked at once with the one of which it died are asked alone.
        """
        answers = await self._ask(cases)
        lost = _lost(cases, answers)
        while lost:
            dead = await self._revive(answers[lost[0]])
            suspects, rest = lost[:AT_ONCE], lost[AT_ONCE:]
            for index in suspects:
                (answer,) = await self._ask([cases[index]])
                if answer.died:
                    answer = DIED if await self._revive(answer) else CLOSED
                answers[index] = answer
            if dead and not any(answers[index] is DIED for index in suspects):
                self.unexplained.append([cases[index] for index in suspects])
            again = await self._ask([cases[index] for index in rest])
            for index, answer in zip(rest, again, strict=True):
                answers[index] = answer
            lost = [index for index in rest if answers[index].died]
        return answers

    async def _ask(self, cases: Sequence[Case]) -> list[Answer]:
        assert self._asking is not None
        return await asyncio.to_thread(self._asking.ask, cases)

    async def _revive(self, answer: Answer) -> bool:
        """Start a dead server anew, or one whose model is dead; return whether it was dead."""
        if answer is GONE:
            for _ in range(round(DYING_S / STEP_S)):
                await asyncio.sleep(STEP_S)
                if not self._tritons.supervisor.running("r1"):
                    break
            else:
                return False
        self.deaths += 1
        with contextlib.suppress(CrashError):
            await self._exit.aclose()
        self._exit = AsyncExitStack()
        await self._start()
        return True


def _lost(cases: Sequence[Case], answers: Sequence[Answer]) -> list[int]:
    """Return which requests have no answer, in the order in which they were asked."""
    lost = [index for index, each in enumerate(answers) if each.died]
    return sorted(lost, key=lambda index: cases[index].is_grpc)


@dataclass(frozen=True, slots=True)
class Failure:
    """A request that breaks laws."""

    seed: int
    number: int
    deadly: bool
    case: Case
    laws: list[str]

    def __str__(self) -> str:
        size = "deadly" if self.deadly else "harmless"
        return (
            f"seed {self.seed}, number {self.number}, {size}: {'; '.join(self.laws)}\n{self.case}"
        )


@dataclass(slots=True)
class Told:
    """A request with what both made of it."""

    number: int
    deadly: bool
    case: Case
    reading: Reading
    answer: Answer


@dataclass(slots=True)
class Result:
    """What a campaign found."""

    counts: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)
    told: list[Told] = field(default_factory=list)
    """The first harmless requests."""

    def add(self, each: Told) -> None:
        """Count a request."""
        verdict, accepted = each.reading.verdict, each.answer.accepted
        self.counts["bodies"] += 1
        self.counts["deadly"] += each.deadly
        self.counts["accepted"] += accepted
        self.counts[verdict.value] += 1
        self.counts[DEATHS] += each.answer.died
        self.counts[BEYOND_DEATHS] += each.answer.died and verdict is Verdict.BEYOND
        if accepted and verdict is not Verdict.BEYOND:
            self.counts["accepted within the bound"] += 1
            self.counts["accepted and known"] += verdict is Verdict.KNOWN
            if verdict is Verdict.REFUSED:
                self.counts[f"accepted and refused: {each.reading.why}"] += 1

    @property
    def known_share(self) -> float:
        """Share of known readings among the requests within the bound that Triton accepts."""
        return self.counts["accepted and known"] / self.counts["accepted within the bound"]

    def __str__(self) -> str:
        figures = ", ".join(f"{name} {count}" for name, count in sorted(self.counts.items()))
        return "\n\n".join([f"{figures}; known {self.known_share:.4f}", *map(str, self.failures)])


def make(seed: int, number: int) -> list[tuple[bool, Case]]:
    """Return one request: harmless and, where it differs, deadly."""
    made = []
    for deadly, scale in ((False, HARMLESS), (True, DEADLY)):
        chance = random.Random(f"{seed}:{number}")
        maker, oddity = chance.choice(MAKERS), chance.choice(ODDITIES)
        made.append((deadly, maker(chance, scale, oddity)))
    return made if made[0][1] != made[1][1] else made[:1]


async def run(server: Server, picker: Picker, seed: int, bodies: int) -> Result:
    """Ask picker and Triton about ``bodies`` requests, or until too many laws are broken."""
    result = Result()
    number = 0
    while result.counts["bodies"] < bodies and len(result.failures) < MOST_FAILURES:
        made = [
            (each, deadly, case)
            for each in range(number, number + GROUP)
            for deadly, case in make(seed, each)
        ]
        number += GROUP
        read = [(*each, picker.read(each[2])) for each in made]
        result.counts["deadly and refused"] += sum(
            deadly and reading.verdict is Verdict.REFUSED for _, deadly, _, reading in read
        )
        spared = server.deaths < MOST_DEATHS
        asked = [
            each
            for each in read
            if not each[1] or (spared and each[3].verdict is not Verdict.REFUSED)
        ]
        answers = await server.ask([case for _, _, case, _ in asked])
        for each, answer in zip(asked, answers, strict=True):
            told = Told(*each, answer)
            result.add(told)
            if not told.deadly and len(result.told) < MOST_KEPT:
                result.told.append(told)
            if (laws := broken(told.reading, answer)) and _is_new(laws, result.failures):
                small = await _shrunk(server, picker, told)
                result.failures.append(Failure(seed, told.number, told.deadly, small, laws))
    return result


def _kinds(laws: list[str]) -> set[str]:
    return {law.partition(",")[0][:40] for law in laws}


def _is_new(laws: list[str], failures: list[Failure]) -> bool:
    known = {kind for failure in failures for kind in _kinds(failure.laws)}
    return not _kinds(laws) <= known


async def _shrunk(server: Server, picker: Picker, told: Told) -> Case:
    """Return a smaller request that breaks one of the same laws."""
    wanted = {law.partition(":")[0] for law in broken(told.reading, told.answer)}

    async def fails(case: Case) -> bool:
        reading = picker.read(case)
        if reading.verdict is Verdict.REFUSED and "refused" not in wanted:
            return False
        (answer,) = await server.ask([case])
        return not wanted.isdisjoint(law.partition(":")[0] for law in broken(reading, answer))

    return await shrink(told.case, fails, DEADLY_SHRINKS if told.answer.died else SHRINKS)


async def shrink(case: Case, fails: Callable[[Case], Awaitable[bool]], most: int) -> Case:
    """Return a smaller request that fails as well, after at most ``most`` attempts."""
    for plain in _simpler(case):
        most -= 1
        if await fails(plain):
            case = plain
            break
    core, rebuild = _core(case)
    size = len(core) // 2
    while size and most > 0:
        start = 0
        while start < len(core) and most > 0:
            part = core[:start] + core[start + size :]
            most -= 1
            if await fails(rebuild(part)):
                core = part
            else:
                start += size
        size //= 2
    return rebuild(core)


def _simpler(case: Case) -> list[Case]:
    """Return the request without its content coding, where it has a valid one."""
    coded = dict(case.headers).get("content-encoding") in ("gzip", "deflate")
    headers = tuple(each for each in case.headers if each[0] != "content-encoding")
    try:
        body = zlib.decompress(case.body, 47) if coded else case.body
    except zlib.error:
        return []
    plain = Case(case.path, headers, body)
    return [] if plain == case else [plain]


def _core(case: Case) -> tuple[bytes, Callable[[bytes], Case]]:
    """Return the bytes to shorten, and how to make a request of what is left of them."""
    if case.is_grpc:
        if len(case.body) < 5 or case.body[0] > 1:
            return case.body, case.changed
        flag = case.body[:1]
        return case.body[5:], lambda part: case.changed(flag + len(part).to_bytes(4, "big") + part)
    told = [value for name, value in case.headers if name == LENGTH]
    if len(told) != 1 or not told[0].isdecimal() or int(told[0]) > len(case.body):
        return case.body, case.changed
    size = int(told[0])
    others = tuple(each for each in case.headers if each[0] != LENGTH)
    return case.body[:size], lambda part: Case(
        case.path, (*others, (LENGTH, str(len(part)))), part + case.body[size:], case.chunked
    )
