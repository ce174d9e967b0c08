"""What is replayed on the emulated fleet: workloads as HTTP requests, their rates and times.

Loads are shares of what least-in-flight sustains on the simulated fleet, as in the simulator: the
same engine, so the same saturation. It is found on ``CALIBRATION_JOBS``, as a short slice would end
before its queues have grown.
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
    """A workload that the suite knows."""

    source: str
    """A trace's file, or the name of a generator."""
    scale: float
    """Emulated seconds per second: as fast as leaves the machine idle for the most part."""
    cache_rich: bool
    """Prompts share much, so routing by caches can gain."""


KINDS: Final = {
    "conversation": Kind("conversation_trace.jsonl", 10.0, cache_rich=True),
    "sessions": Kind("sessions", 6.0, cache_rich=True),
    "shared-prefix": Kind("shared-prefix", 3.0, cache_rich=True),
    "nothing-shared": Kind("AzureLLMInferenceTrace_conv.csv", 2.0, cache_rich=False),
}


@dataclass(frozen=True, slots=True)
class Prepared:
    """A workload with the rate that the fleet sustains and the limit of a first token."""

    name: str
    kind: Kind
    workload: Workload
    saturation: float
    """Requests per emulated second."""
    slo_s: float
    """Emulated seconds."""


def prepare(name: str, replicas: int, most: int, scale: float | None = None) -> Prepared:
    """Read or make a workload of at most ``most`` jobs and find what a fleet sustains of it.

    ``scale`` is used instead of the workload's own.
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
    """Return the arrivals of one run in wall seconds.

    The slice of the workload is as long as the rate needs, and its own gaps are stretched to the
    rate: a trace that begins quietly is no lighter load.
    """
    rng = Random(seed)  # noqa: S311 - runs must repeat
    rate = prepared.saturation * load
    count = max(2, int(rate * prepared.kind.scale * seconds))
    return [at / prepared.kind.scale for at in arrivals(prepared.workload.first(count), rate, rng)]


def requests(jobs: Sequence[Job], salt: str, api: str = "chat") -> list[bytes]:
    """Return the HTTP requests of jobs, all streamed.

    Args:
        jobs: What to ask.
        salt: Of the prompts' text.
        api: ``chat``, OpenAI's chats of one message; or ``generate``, Triton's generate_stream.
    """
    path, body = (CHAT, chat) if api == "chat" else (GENERATE, generate)
    return [http_request(path, body(prompt_text(job, salt)), job.session) for job in jobs]


def generate(prompt: str) -> bytes:
    """Return the body of a Triton generate request."""
    return orjson.dumps({"text_input": prompt})


def chat(prompt: str, *, stream: bool = True) -> bytes:
    """Return the body of a chat completion."""
    message = {"role": "user", "content": prompt}
    return orjson.dumps({"model": MODEL, "messages": [message], "stream": stream})


def http_request(path: str, body: bytes, session: str | None = None) -> bytes:
    """Return the bytes of a POST."""
    named = f"{SESSION}: {session}\r\n" if session else ""
    head = (
        f"POST {path} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n{named}"
        f"content-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body
