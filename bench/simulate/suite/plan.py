"""What a suite runs: chapters of traffic, fleets and policies. Data only.

A chapter becomes one table per load. Its first arm holds the policies that are compared; further
arms are yardsticks: the same traffic on another fleet or at another rate.

Rates are shares of what least-in-flight sustains on the standard fleet of eight replicas, scaled
by the number of replicas: finding it anew for a thousand replicas would take longer than the rest.
A large fleet so has the same rate per replica. What shares nothing scales like that; a policy that
finds histories by chance only, on one of eight, does not find them on one of a hundred.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from bench.simulate.scenario import Scenario
from bench.simulate.schedulers.registry import OTHERS, names
from ext_proc.routing.policies import POLICIES

if TYPE_CHECKING:
    from collections.abc import Sequence

AUTO: Final = "auto"
STANDARD: Final = Scenario()
"""The fleet on which saturation is found."""
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
"""For scenarios in which something is wrong."""
BLIND: Final = (AUTO, "probe", "prefix-affinity", "prequal", "least-in-flight", "smg-least-load")
LARGE: Final = (AUTO, "probe", "prefix-affinity", "p2c-work", "least-in-flight", "cache-aware")
HUGE: Final = (AUTO, "probe", "prefix-affinity", "p2c-work")
"""Without least-in-flight: overloaded, and looking at all of a thousand, it takes minutes a run."""


@dataclass(frozen=True, slots=True)
class TrafficSource:
    """Where the jobs come from."""

    source: str
    """A generator's name or a trace's file name."""
    requests: int | None = None
    """The first so many, or so many generated; ``None`` = all, or a generator's usual number."""


@dataclass(frozen=True, slots=True)
class Arm:
    """Policies on one fleet."""

    policies: tuple[str, ...]
    scenario: Scenario = STANDARD
    label: str = ""
    """What is different from the chapter's first arm, behind the policy's name."""
    pace: float = 1.0
    """Of the rate of the chapter's first arm."""


@dataclass(frozen=True, slots=True)
class Chapter:
    """One comparison."""

    name: str
    """For files."""
    title: str
    about: str
    """Sentences for the reader; may be empty."""
    traffic: TrafficSource
    loads: tuple[float, ...]
    """Shares of saturation on the standard fleet."""
    arms: tuple[Arm, ...]
    """The first one has ``auto``, with which everything is compared."""
    seeds: int = 5
    judged: bool = False
    """Whether ``auto`` has aims here."""


def everything() -> tuple[str, ...]:
    """Return every policy once; where two are one rule under two names, the first."""
    same = {
        *("least-request", "weighted-least-pending"),
        *("weighted-random", "weighted-round-robin"),  # with equal weights
    }
    return (AUTO, *OTHERS, *(name for name in names() if name not in same | {AUTO} | set(OTHERS)))


def full() -> tuple[Chapter, ...]:
    """Return the suite behind the documentation."""
    return (
        Chapter(
            "conversation",
            "Conversation trace, 8 replicas",
            "Mooncake's trace, all of it: long prompts whose turns continue each other, and one"
            " first block that all share.",
            TrafficSource(CONVERSATION),
            LOADS,
            (Arm(everything()),),
            judged=True,
        ),
        Chapter(
            "azure",
            "Azure conversation trace, 8 replicas",
            "Nothing is shared, so only balance counts. The first 10,000 requests.",
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
            "The first three tenths fill the caches. The rate per replica is that of eight;"
            " least-in-flight finds histories by chance there, here it does not and is overloaded.",
            TrafficSource("sessions", 20_000),
            (0.9,),
            (Arm(LARGE, Scenario(replicas=100, warmup=0.3)),),
            judged=True,
            seeds=5,
        ),
        Chapter(
            "hundred-mixed",
            "100 replicas, mixed sizes",
            "The rate per replica is that of eight; least-in-flight holds it here too.",
            TrafficSource("mixed", 20_000),
            (0.9,),
            (Arm(LARGE, Scenario(replicas=100)),),
            judged=True,
            seeds=5,
        ),
        Chapter(
            "thousand",
            "1,000 replicas, sessions",
            "The first half fills the caches. The rate per replica is that of eight.",
            TrafficSource("sessions", 40_000),
            (0.9,),
            (Arm(HUGE, Scenario(replicas=1_000, warmup=0.5)),),
            judged=True,
            seeds=3,
        ),
    )


def quick() -> tuple[Chapter, ...]:
    """Return what two minutes allow."""
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
    """Two of eight at half the speed: a fleet of seven, in work."""
    yardstick = Arm((AUTO,), STANDARD, "8 full ones at 8/7 of the rate", 8 / 7)
    return [
        Chapter(
            f"slow-{name}",
            f"Two half-speed replicas among eight, {title}",
            "The first 6,000 requests of the conversation trace. The fleet does the work of seven:"
            " the slow ones cost no more than their share if `auto` is no slower here than on eight"
            " full replicas at 8/7 of the rate.",
            _TRACE,
            (_LOAD,),
            (Arm(TROUBLED, Scenario(slow_replicas=2, capacities_known=known)), yardstick),
        )
        for name, title, known in (
            ("known", "stated as `capacity`", True),
            ("unknown", "not stated", False),
        )
    ]


def _changes() -> Sequence[Chapter]:
    """Return a replica joining, a replica failing, a replica that becomes slow."""
    window, braked = (_AT, _LATER), (_AT, _AT + _BRAKE_S)
    return [
        Chapter(
            "join",
            "A replica joins cold",
            "Seven replicas, and an eighth from second 600 on, without a ramp; measured are the"
            " requests of the 300 s after that. The yardsticks are those who never get the eighth,"
            " and those who had it all along.",
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
            "One of eight dies at second 600 and returns cold 60 s later; measured are the requests"
            " of the 300 s after its death. Lost are those that had begun to be answered.",
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
            "One of eight works at a quarter of its speed from second 600 on, for 120 s, and tells"
            " nobody; measured are the requests of that time.",
            _TRACE,
            (_LOAD,),
            (
                Arm(TROUBLED, Scenario(brake_at_s=_AT, brake_s=_BRAKE_S, window_s=braked)),
                Arm((AUTO,), Scenario(window_s=braked), "none slow"),
            ),
        ),
    ]


def _blind() -> Sequence[Chapter]:
    """Return frozen readings, no readings, and several pickers."""
    window = (_AT, _LATER)
    return [
        Chapter(
            "frozen",
            "Telemetry frozen",
            "From second 600 on readings come with new times and old numbers for 300 s; measured"
            " are the requests of that time. Yardsticks: readings as they should be, and none at"
            " all.",
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
            "Each decides on its share of the requests and learns of the others from readings only,"
            " once a second.",
            _TRACE,
            (_LOAD,),
            (
                Arm(BLIND, Scenario(pickers=2), "2 pickers"),
                Arm((*BLIND, "consistent-hash-bounded"), Scenario(pickers=8), "8 pickers"),
                Arm((*BLIND, "consistent-hash-bounded"), STANDARD, "1 picker"),
            ),
        ),
    ]


def picker_policies() -> frozenset[str]:
    """Return the policies that run the picker's code."""
    return frozenset(POLICIES)
