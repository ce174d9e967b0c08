"""``simulate``: compare routing policies in simulated time; needs a checkout."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path  # noqa: TC003 - typer reads annotations at runtime
from typing import Annotated

import typer

from tidegate.cli import laboratory
from tidegate.terminal.errors import USAGE, CliError
from tidegate.terminal.output import console

DEFAULT_POLICIES = "round-robin,least-in-flight,prefix-affinity,oracle"
MAX_SEEDS = 100


class OutputForm(StrEnum):
    """Output format of the result."""

    TABLE = "table"
    JSON = "json"


class LimitName(StrEnum):
    """Whether replicas are limited by what they run at once."""

    AUTO = "auto"
    NONE = "none"


def simulate(
    trace: Annotated[
        str,
        typer.Option(
            "--trace",
            metavar="FILE|GENERATOR",
            help="A Mooncake (.jsonl) or Azure (.csv) trace, or one of: shared-prefix, sessions,"
            " bursts, mixed.",
        ),
    ],
    policies: Annotated[
        str,
        typer.Option("--policies", metavar="A,B,...", help="Policies to compare, or 'all'."),
    ] = DEFAULT_POLICIES,
    replicas: Annotated[
        int, typer.Option("--replicas", min=1, max=10_000, help="Number of replicas.")
    ] = 8,
    load: Annotated[
        str,
        typer.Option(
            "--load",
            metavar="X,...",
            help="Loads as fractions of the highest rate that least-in-flight sustains, or"
            " 'trace' for the trace's own arrival times.",
        ),
    ] = "0.65,0.9",
    rate: Annotated[
        str,
        typer.Option(
            "--rate", metavar="R,...", help="Rates, requests per second; replaces --load."
        ),
    ] = "",
    seeds: Annotated[
        int, typer.Option("--seeds", min=1, max=MAX_SEEDS, help="Number of seeds, from 0.")
    ] = 5,
    requests: Annotated[
        int | None,
        typer.Option(
            "--requests",
            min=10,
            max=1_000_000,
            help="Number of requests: the first N of a trace, or N generated.",
        ),
    ] = None,
    against: Annotated[
        str,
        typer.Option("--against", metavar="POLICY", help="Baseline; default: the first policy."),
    ] = "",
    slo: Annotated[
        float | None,
        typer.Option(
            "--slo", min=0.001, help="TTFT limit, seconds; default: derived from prompt lengths."
        ),
    ] = None,
    slow: Annotated[int, typer.Option("--slow", min=0, help="Number of half-speed replicas.")] = 0,
    slow_unknown: Annotated[
        bool, typer.Option("--slow-unknown", help="Hide the capacity of slow replicas.")
    ] = False,
    join_at: Annotated[
        float | None, typer.Option("--join-at", help="Second at which a cold replica joins.")
    ] = None,
    fail_at: Annotated[
        float | None, typer.Option("--fail-at", help="Second at which a replica fails for 60 s.")
    ] = None,
    brake_at: Annotated[
        float | None,
        typer.Option("--brake-at", help="Second at which a replica drops to 1/4 speed for 60 s."),
    ] = None,
    slow_start: Annotated[
        float, typer.Option("--slow-start", min=0, help="Slow-start window, seconds; 0 = off.")
    ] = 0.0,
    telemetry: Annotated[
        float, typer.Option("--telemetry", min=0, help="Telemetry interval, seconds; 0 = none.")
    ] = 1.0,
    telemetry_delay: Annotated[
        float,
        typer.Option("--telemetry-delay", min=0, help="Age of telemetry on arrival, seconds."),
    ] = 0.1,
    freeze_at: Annotated[
        float | None, typer.Option("--freeze-at", help="Second from which telemetry is frozen.")
    ] = None,
    freeze: Annotated[
        float, typer.Option("--freeze", min=0.1, help="Length of --freeze-at, seconds.")
    ] = 30.0,
    pickers: Annotated[
        int,
        typer.Option(
            "--pickers", min=1, max=64, help="Number of pickers; they share only telemetry."
        ),
    ] = 1,
    limit: Annotated[
        LimitName, typer.Option("--limit", help="The pool's `routing.limit`.")
    ] = LimitName.NONE,
    in_flight: Annotated[
        int,
        typer.Option("--in-flight", min=0, help="`per_endpoint_in_flight`; 0 = none."),
    ] = 0,
    max_wait: Annotated[
        float,
        typer.Option(
            "--max-wait",
            min=0,
            max=10,
            help="`routing.max_wait`, seconds: what exceeds limits waits.",
        ),
    ] = 0.0,
    deadline: Annotated[
        float | None,
        typer.Option("--deadline", min=0.001, help="Seconds after which each caller has left."),
    ] = None,
    slots: Annotated[
        int, typer.Option("--slots", min=1, help="Requests that a replica runs at once.")
    ] = 256,
    cache_blocks: Annotated[
        int, typer.Option("--cache-blocks", min=1, help="Cache of a replica, 512-token blocks.")
    ] = 3_000,
    prefill_rate: Annotated[
        float, typer.Option("--prefill-rate", min=1, help="Prefill rate, tokens per second.")
    ] = 8_000.0,
    warmup: Annotated[
        float, typer.Option("--warmup", min=0, max=0.99, help="Fraction of requests not measured.")
    ] = 0.1,
    jobs: Annotated[
        int, typer.Option("--jobs", "-j", min=1, max=256, help="Number of processes.")
    ] = 1,
    output: Annotated[
        OutputForm, typer.Option("--output", "-o", help="Output format.")
    ] = OutputForm.TABLE,
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="Write an HTML page (extra: bench)."),
    ] = None,
    png: Annotated[
        Path | None, typer.Option("--png", metavar="DIR", help="Write PNG plots (extra: bench).")
    ] = None,
) -> None:
    """Compare routing policies on a trace in simulated time. Needs a checkout."""
    command = laboratory.load("bench.simulate.command", "simulator", "tidegate simulate")
    try:
        if html or png:
            command.require_matplotlib()
        scenario = command.Scenario(
            replicas=replicas,
            engine=command.EngineConfig(
                prefill_rate=prefill_rate, cache_blocks=cache_blocks, max_running=slots
            ),
            limit=limit.value,
            per_endpoint_in_flight=in_flight,
            hold_s=max_wait,
            deadline_s=deadline,
            slow_replicas=slow,
            capacities_known=not slow_unknown,
            join_at_s=join_at,
            fail_at_s=fail_at,
            brake_at_s=brake_at,
            telemetry_s=telemetry,
            telemetry_delay_s=telemetry_delay,
            slow_start_s=slow_start,
            freeze_at_s=freeze_at,
            freeze_s=freeze,
            pickers=pickers,
            warmup=warmup,
        )
        options = command.SimulationOptions(
            trace=trace,
            policies=policies,
            loads=None if load == "trace" else _numbers("--load", load),
            rates=_numbers("--rate", rate) if rate else None,
            seeds=seeds,
            requests=requests,
            against=against,
            slo_s=slo,
            processes=jobs,
        )
        report = command.simulate(options, scenario, console(stderr=True))
    except command.OptionError as error:
        raise CliError(str(error), USAGE) from None
    except command.FAILURES as error:
        raise CliError(str(error)) from None
    try:
        command.write(report, as_data=output is OutputForm.JSON, html=html, png=png)
    except OSError as error:
        raise CliError(f"{error.filename}: {error.strerror}") from None


def _numbers(option: str, text: str) -> list[float]:
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or not all(0 < number < 1e6 for number in numbers):  # noqa: PLR2004 - sane
        raise CliError(f"{option}: {text!r} is not a list of positive numbers", USAGE)
    return numbers
