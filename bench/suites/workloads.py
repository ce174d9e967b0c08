"""Workloads of the emulated fleet as HTTP requests, with their rates and arrival times.

Loads are fractions of the saturation rate of least-in-flight on the simulated fleet; the emulator
has the same engine, so the same saturation rate. The rate is searched with ``CALIBRATION_JOBS``
jobs, because a shorter slice would end before its queues grow.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final

import orjson

from bench.emulator.dialects import MODEL
from bench.emulator.text import prompt_text
from bench.peers.contenders import CHAT
from bench.peers.envoys import SESSION
from bench.simulate.experiment import default_slo, saturation
from bench.simulate.generators import GENERATORS, PACE_PER_REPLICA
from bench.simulate.scenario import Scenario
from bench.simulate.traces import read_trace
from bench.simulate.workload import arrivals

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.simulate.workload import Job, Workload

TRACES: Final = Path(__file__).resolve().parents[1] / "traces"
CALIBRATION_JOBS: Final = 3_000
GENERATE: Final = f"/v2/models/{MODEL}/generate_stream"


@dataclass(frozen=True, slots=True)
class Kind:
    """Parameters of a workload."""

    source: str
    """Name of a trace file or of a generator."""
    scale: float
    """Emulated seconds per second, chosen so that the machine stays mostly idle."""
    cache_rich: bool
    """Whether prompts share long prefixes, so that cache affinity can help."""


KINDS: Final = {
    "conversation": Kind("conversation_trace.jsonl", 10.0, cache_rich=True),
    "sessions": Kind("sessions", 6.0, cache_rich=True),
    "shared-prefix": Kind("shared-prefix", 3.0, cache_rich=True),
    "nothing-shared": Kind("AzureLLMInferenceTrace_conv.csv", 2.0, cache_rich=False),
}


@dataclass(frozen=True, slots=True)
class Prepared:
    """A workload with its saturation rate and TTFT limit."""

    name: str
    kind: Kind
    workload: Workload
    saturation: float
    """Requests per emulated second."""
    slo_s: float
    """TTFT limit, emulated seconds."""


def prepare(name: str, replicas: int, most: int, scale: float | None = None) -> Prepared:
    """Read or generate a workload of at most ``most`` jobs and find its saturation rate.

    ``scale`` replaces the workload's default.
    """
    kind = KINDS[name] if scale is None else replace(KINDS[name], scale=scale)
    count = max(most, CALIBRATION_JOBS)
    if kind.source in GENERATORS:
        rng = Random(0)  # noqa: S311 - repeatable
        whole = GENERATORS[kind.source](count, rng, PACE_PER_REPLICA * replicas)
    else:
        whole = read_trace(TRACES / kind.source).first(count)
    scenario = Scenario(replicas=replicas)
    sample = whole.first(CALIBRATION_JOBS)
    slo_s = default_slo(sample, scenario)
    return Prepared(name, kind, whole.first(most), saturation(sample, scenario, slo_s), slo_s)


def times(prepared: Prepared, load: float, seconds: float, seed: int) -> list[float]:
    """Return the arrival times of one run, wall seconds.

    The run uses as many jobs of the workload as the rate requires, and scales their gaps to the
    rate, so that a trace with a quiet start is not a lighter load.
    """
    rng = Random(seed)  # noqa: S311 - runs must repeat
    rate = prepared.saturation * load
    count = max(2, int(rate * prepared.kind.scale * seconds))
    return [at / prepared.kind.scale for at in arrivals(prepared.workload.first(count), rate, rng)]


def requests(jobs: Sequence[Job], salt: str, api: str = "chat") -> list[bytes]:
    """Return the HTTP requests of jobs, all streamed.

    Args:
        jobs: The jobs.
        salt: Salt of the prompts' text.
        api: ``generate`` for Triton's generate_stream; all else is OpenAI chats of one message.
    """
    path, body = (GENERATE, generate) if api == "generate" else (CHAT, chat)
    return [http_request(path, body(prompt_text(job, salt)), job.session) for job in jobs]


def generate(prompt: str) -> bytes:
    """Return the body of a Triton generate request."""
    return orjson.dumps({"text_input": prompt})


def chat(prompt: str, *, stream: bool = True) -> bytes:
    """Return the body of a chat completion."""
    message = {"role": "user", "content": prompt}
    return orjson.dumps({"model": MODEL, "messages": [message], "stream": stream})


def http_request(path: str, body: bytes, session: str | None = None) -> bytes:
    """Return the bytes of a POST request."""
    named = f"{SESSION}: {session}\r\n" if session else ""
    head = (
        f"POST {path} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n{named}"
        f"content-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body
