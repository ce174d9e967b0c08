"""``python -m xds_server --fleet FILE``: run the control server."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING, Final

import uvloop

from tidegate_common.flags import parsed
from tidegate_common.logs import quiet_grpc
from xds_server.settings import ControlSettings

if TYPE_CHECKING:
    from collections.abc import Sequence

EXIT_USAGE: Final = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line, run the control server and return the exit code."""
    settings = parsed(
        ControlSettings,
        argv,
        "The control server: publishes a fleet file over ADS to all Envoys and pickers.",
    )
    return EXIT_USAGE if settings is None else run(settings)


def run(settings: ControlSettings) -> int:
    """Run until stopped; return the exit code (2 = the start failed)."""
    quiet_grpc(os.environ)
    from xds_server import app  # noqa: PLC0415 - gRPC reads the environment when it is loaded

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(app.run(settings))


if __name__ == "__main__":
    sys.exit(main())
