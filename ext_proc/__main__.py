"""``python -m ext_proc``: one picker of one or several processes."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

import uvloop
from pydantic import ValidationError

from ext_proc.server import transport
from ext_proc.settings import EXIT_USAGE, MissingExtraError, PickerSettings
from ext_proc.workers.parent import run_workers
from ext_proc.workers.plan import PlanError, plan
from tidegate_common.flags import option_of, reworded
from tidegate_common.logs import quiet_grpc

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ext_proc.control.source import PoolSource


def main(argv: Sequence[str] | None = None, source: PoolSource | None = None) -> int:
    """Parse the command line, run the picker and return the exit code.

    Args:
        argv: The command line.
        source: Where the pools come from; ``None`` = the control server.
    """
    parser = argparse.ArgumentParser(
        prog="python -m ext_proc",
        description="The picker: chooses a replica for each request and names it to Envoy.",
        argument_default=argparse.SUPPRESS,
    )
    for name, field in PickerSettings.model_fields.items():
        default = "picker-HOSTNAME" if name == "id" else field.default
        option, about = f"--{name.replace('_', '-')}", f"{field.description} Default: {default}."
        if field.annotation is bool:
            parser.add_argument(option, help=about, action="store_true")
        elif name == "role":
            parser.add_argument(option, help=about, action="append")
        else:
            parser.add_argument(option, help=about)
    try:
        settings = PickerSettings.model_validate(vars(parser.parse_args(argv)))
    except ValidationError as error:
        for problem in error.errors():
            reason = reworded(problem["msg"])
            if option := option_of(problem):
                reason = f"{option} {problem['input']!r}: {reason}"
            sys.stderr.write(f"{reason}\n")
        return EXIT_USAGE
    transport.choose(os.environ)
    quiet_grpc(os.environ)
    try:
        # Resolved once for all workers.
        settings = settings.model_copy(update={"transport": transport.named(settings.transport)})
        plans = plan(settings)
    except (PlanError, MissingExtraError) as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_USAGE
    if len(plans) > 1:
        if source is None:
            return uvloop.run(run_workers(settings, plans))
        return uvloop.run(run_workers(settings, plans, source.worker, source.arguments))
    from ext_proc.run import run_picker  # noqa: PLC0415 - help and bad flags need no gRPC

    return uvloop.run(run_picker(settings, source=source))


if __name__ == "__main__":
    sys.exit(main())
