"""Contents of a suite: chapters of traffic, fleets and policies. Data only.

A chapter becomes one table per load. Its first arm contains the compared policies; further arms
are references: the same traffic on another fleet or at another rate.

Rates are fractions of the saturation rate of least-in-flight on the standard fleet of eight
replicas, scaled by the number of replicas; a search for a thousand replicas would take longer than
the rest of the suite. A large fleet thus has the same rate per replica. Traffic without shared
prefixes scales like that; a policy that hits caches at random hits them less often on a hundred
replicas than on eight.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from bench.simulate.scenario import Scenario
from bench.simulate.schedulers.registry import OTHERS, names
from ext_proc.routing.policies import POLICIES

if TYPE_CHECKING:
    from collections.abc import Sequence

AUTO: Final = "auto"
STANDARD: Final = Scenario()
"""Fleet on which the saturation rate is measured."""
CONVERSATION: Final = "conversation_trace.jsonl"
AZURE: Final = "AzureLLMInferenceTrace_conv.csv"
GENERATED: Final = ("shared-prefix", "sessions", "bursts", "mixed")
LOADS: Final = (0.65, 0.9)
CORE: Final = (
    AUTO,
    "probe",
    "oracle",
    "prefix-affinity",
    "prequal",
    "least-in-flight",
    "p2c-work",
    "cache-aware",
    "smg-least-load",
    "dynamo",
    "llm-d",
    "round-robin",
)
TROUBLED: Final = (
    AUTO,
    "probe",
    "oracle",
    "prefix-affinity",
    "prequal",
    "least-in-flight",
    "cache-aware",
    "smg-least-load",
    "llm-d",
)
"""Policies of scenarios with an incident."""
BLIND: Final = (AUTO, "probe", "prefix-affinity", "prequal", "least-in-flight", "smg-least-load")
LARGE: Final = (AUTO, "probe", "prefix-affinity", "p2c-work", "least-in-flight", "cache-aware")
HUGE: Final = (AUTO, "probe", "prefix-affinity", "p2c-work")
"""Policies for 1,000 replicas; least-in-flight scans all replicas and takes minutes per run."""


@dataclass(frozen=True, slots=True)
class TrafficSource:
    """Source of the jobs."""

    source: str
    """Name of a generator or of a trace file."""
    requests: int | None = None
    """Number of requests from the trace's start, or generated; ``None``: all, or the default."""


@dataclass(frozen=True, slots=True)
class Arm:
    """Policies on one fleet."""

    policies: tuple[str, ...]
    scenario: Scenario = STANDARD
    label: str = ""
    """Suffix of the policy's name: the difference to the chapter's first arm."""
    pace: float = 1.0
    """Factor on the rate of the chapter's first arm."""


@dataclass(frozen=True, slots=True)
class Chapter:
    """One comparison."""

    name: str
    """Prefix of file names."""
    title: str
    about: str
    """Introduction of the chapter; may be empty."""
    traffic: TrafficSource
    loads: tuple[float, ...]
    """Fractions of the saturation rate of the standard fleet."""
    arms: tuple[Arm, ...]
    """The first arm contains ``auto``, the baseline of all comparisons."""
    seeds: int = 5
    judged: bool = False
    """Whether ``auto`` has targets in this chapter."""


def everything() -> tuple[str, ...]:
    """Return every policy once; of two names for the same rule, the first."""
    same = {
        *("least-request", "weighted-least-pending"),
        *("weighted-random", "weighted-round-robin"),  # with equal weights
    }
    return (AUTO, *OTHERS, *(name for name in names() if name not in same | {AUTO} | set(OTHERS)))


def full() -> tuple[Chapter, ...]:
    """Return the suite of the documentation."""
    return (
        Chapter(
            "conversation",
            "Conversation trace, 8 replicas",
            "Mooncake's complete trace: long prompts of multi-turn sessions, with one first block"
            " that all share.",
            TrafficSource(CONVERSATION),
            LOADS,
            (Arm(everything()),),
            judged=True,
        ),
        Chapter(
            "azure",
            "Azure conversation trace, 8 replicas",
            "No prefix is shared, so only load balance matters. The first 10,000 requests.",
            TrafficSource(AZURE, 10_000),
            LOADS,
            (Arm(everything()),),
            judged=True,
        ),
        *(
            Chapter(
                source,
                f"Generator `{source}`, 8 replicas",
                "",
                TrafficSource(source, 6_000),
                LOADS,
                (Arm(CORE),),
                judged=True,
            )
            for source in GENERATED
        ),
        *_slow(),
        *_changes(),
        *_blind(),
        Chapter(
            "hundred",
            "100 replicas, sessions",
            "The first 30 % of requests warm the caches. The rate per replica is that of eight"
            " replicas; there least-in-flight hits caches at random, here it does not and is"
            " overloaded.",
            TrafficSource("sessions", 20_000),
            (0.9,),
            (Arm(LARGE, Scenario(replicas=100, warmup=0.3)),),
            judged=True,
            seeds=5,
        ),
        Chapter(
            "hundred-mixed",
            "100 replicas, mixed sizes",
            "The rate per replica is that of eight replicas; least-in-flight sustains it here too.",
            TrafficSource("mixed", 20_000),
            (0.9,),
            (Arm(LARGE, Scenario(replicas=100)),),
            judged=True,
            seeds=5,
        ),
        Chapter(
            "thousand",
            "1,000 replicas, sessions",
            "The first half of the requests warms the caches. The rate per replica is that of"
            " eight replicas.",
            TrafficSource("sessions", 40_000),
            (0.9,),
            (Arm(HUGE, Scenario(replicas=1_000, warmup=0.5)),),
            judged=True,
            seeds=3,
        ),
    )


def quick() -> tuple[Chapter, ...]:
    """Return a suite that takes about two minutes."""
    shown = (AUTO, "probe", "oracle", "prefix-affinity", "least-in-flight", "cache-aware", "llm-d")
    return (
        *(
            Chapter(name, f"{title}, 8 replicas", "", traffic, LOADS, (Arm(shown),), 2, True)
            for name, title, traffic in (
                ("conversation", "Conversation trace", TrafficSource(CONVERSATION, 4_000)),
                ("azure", "Azure conversation trace", TrafficSource(AZURE, 4_000)),
                ("sessions", "Generator `sessions`", TrafficSource("sessions", 3_000)),
                ("mixed", "Generator `mixed`", TrafficSource("mixed", 3_000)),
            )
        ),
        Chapter(
            "hundred",
            "100 replicas, sessions",
            "",
            TrafficSource("sessions", 8_000),
            (0.9,),
            (Arm((AUTO, "probe", "least-in-flight"), Scenario(replicas=100, warmup=0.3)),),
            2,
            True,
        ),
    )


SUITES: Final = {"full": full, "quick": quick}

_TRACE: Final = TrafficSource(CONVERSATION, 6_000)
_LOAD: Final = 0.75
_AT: Final = 600.0
_LATER: Final = 900.0
_BRAKE_S: Final = 120.0


def _slow() -> Sequence[Chapter]:
    """Return the chapters with two of eight replicas at half speed: the capacity of seven."""
    reference = Arm((AUTO,), STANDARD, "8 full ones at 8/7 of the rate", 8 / 7)
    return [
        Chapter(
            f"slow-{name}",
            f"Two half-speed replicas among eight, {title}",
            "The first 6,000 requests of the conversation trace. The fleet has the capacity of"
            " seven replicas: the slow ones cost no more than their share if `auto` is no slower"
            " than on eight full-speed replicas at 8/7 of the rate.",
            _TRACE,
            (_LOAD,),
            (Arm(TROUBLED, Scenario(slow_replicas=2, capacities_known=known)), reference),
        )
        for name, title, known in (
            ("known", "stated as `capacity`", True),
            ("unknown", "not stated", False),
        )
    ]


def _changes() -> Sequence[Chapter]:
    """Return the chapters in which a replica joins, fails or becomes slow."""
    window, braked = (_AT, _LATER), (_AT, _AT + _BRAKE_S)
    return [
        Chapter(
            "join",
            "A replica joins cold",
            "Seven replicas, and an eighth from second 600 on, without slow start. Measured: the"
            " requests of the next 300 s. References: a fleet of seven, and a fleet of eight from"
            " the start.",
            _TRACE,
            (_LOAD,),
            (
                Arm(TROUBLED, Scenario(join_at_s=_AT, window_s=window)),
                Arm((AUTO,), Scenario(replicas=7, window_s=window), "7 replicas"),
                Arm((AUTO,), Scenario(window_s=window), "8 from the start"),
                Arm(
                    (AUTO,),
                    Scenario(join_at_s=_AT, window_s=window, slow_start_s=60.0),
                    "ramp of 60 s",
                ),
            ),
        ),
        Chapter(
            "failure",
            "A replica fails",
            "One of eight fails at second 600 and returns cold 60 s later. Measured: the requests"
            " of the 300 s after the failure. Requests on it with a first token are lost.",
            _TRACE,
            (_LOAD,),
            (
                Arm(TROUBLED, Scenario(fail_at_s=_AT, window_s=window)),
                Arm((AUTO,), Scenario(window_s=window), "no failure"),
            ),
        ),
        Chapter(
            "slowed",
            "A replica becomes slow",
            "One of eight runs at a quarter of its speed from second 600 on, for 120 s, without"
            " notice. Measured: the requests of that time.",
            _TRACE,
            (_LOAD,),
            (
                Arm(TROUBLED, Scenario(brake_at_s=_AT, brake_s=_BRAKE_S, window_s=braked)),
                Arm((AUTO,), Scenario(window_s=braked), "none slow"),
            ),
        ),
    ]


def _blind() -> Sequence[Chapter]:
    """Return the chapters with frozen telemetry, no telemetry, and several pickers."""
    window = (_AT, _LATER)
    return [
        Chapter(
            "frozen",
            "Telemetry frozen",
            "From second 600 on, samples have new times and old values for 300 s. Measured: the"
            " requests of that time. References: correct telemetry, and no telemetry.",
            _TRACE,
            (_LOAD,),
            (
                Arm(BLIND, Scenario(freeze_at_s=_AT, freeze_s=_LATER - _AT, window_s=window)),
                Arm(BLIND, Scenario(window_s=window), "not frozen"),
                Arm((AUTO,), Scenario(telemetry_s=0.0, window_s=window), "no readings"),
            ),
        ),
        Chapter(
            "pickers",
            "Two and eight pickers",
            "Each picker schedules its share of the requests and sees the load of the others only"
            " in telemetry, once a second.",
            _TRACE,
            (_LOAD,),
            (
                Arm(BLIND, Scenario(pickers=2), "2 pickers"),
                Arm((*BLIND, "consistent-hash-bounded"), Scenario(pickers=8), "8 pickers"),
                Arm((*BLIND, "consistent-hash-bounded"), STANDARD, "1 picker"),
            ),
        ),
    ]


def narrowed(chapters: Sequence[Chapter], policies: Sequence[str]) -> tuple[Chapter, ...]:
    """Return chapters with some of their policies; ``auto``, their baseline, is always one."""
    kept = {AUTO, *policies}

    def arm(each: Arm) -> Arm:
        return replace(each, policies=tuple(name for name in each.policies if name in kept))

    return tuple(replace(each, arms=tuple(map(arm, each.arms))) for each in chapters)


def picker_policies() -> frozenset[str]:
    """Return the names of the policies that run the picker's code."""
    return frozenset(POLICIES)
