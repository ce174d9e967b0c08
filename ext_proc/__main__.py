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

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line, run the picker and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m ext_proc",
        description="The picker: chooses a replica for each request and names it to Envoy.",
        argument_default=argparse.SUPPRESS,
    )
    for name, field in PickerSettings.model_fields.items():
        default = "picker-HOSTNAME" if name == "id" else field.default
        parser.add_argument(
            f"--{name.replace('_', '-')}", help=f"{field.description} Default: {default}."
        )
    try:
        settings = PickerSettings.model_validate(vars(parser.parse_args(argv)))
    except ValidationError as error:
        for problem in error.errors():
            option = "--" + str(problem["loc"][0]).replace("_", "-")
            sys.stderr.write(f"{option} {problem['input']!r}: {problem['msg']}\n")
        return EXIT_USAGE
    transport.choose(os.environ)
    try:
        # Resolved once for all workers.
        settings = settings.model_copy(update={"transport": transport.named(settings.transport)})
        plans = plan(settings)
    except (PlanError, MissingExtraError) as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_USAGE
    if len(plans) > 1:
        return uvloop.run(run_workers(settings, plans))
    from ext_proc.app import run_picker  # noqa: PLC0415 - help and bad flags need no gRPC

    return uvloop.run(run_picker(settings))


if __name__ == "__main__":
    sys.exit(main())
