"""``python -m ext_proc``: one picker of one or several processes."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import uvloop

from ext_proc.server import transport
from ext_proc.settings import EXIT_USAGE, MissingExtraError, PickerSettings
from ext_proc.workers.parent import run_workers
from ext_proc.workers.plan import PlanError, plan
from tidegate_common.flags import parsed
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
    settings = parsed(
        PickerSettings,
        argv,
        "The picker: chooses a replica for each request and names it to Envoy.",
    )
    return EXIT_USAGE if settings is None else run(settings, source)


def run(settings: PickerSettings, source: PoolSource | None = None) -> int:
    """Run a picker of one or several processes and return its exit code.

    Args:
        settings: Its settings.
        source: Where the pools come from; ``None`` = the control server.
    """
    transport.choose(os.environ)
    quiet_grpc(os.environ)
    try:
        # Resolved once for all workers.
        settings = settings.model_copy(update={"transport": transport.named(settings.transport)})
        plans = plan(settings, from_file=source is not None)
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
