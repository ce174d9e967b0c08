"""``python -m gateway``: one gateway."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import uvloop

from gateway.settings import GatewaySettings
from tidegate_common.flags import parsed
from tidegate_common.logs import quiet_grpc

if TYPE_CHECKING:
    from collections.abc import Sequence

EXIT_USAGE = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line, run the gateway and return the exit code."""
    settings = parsed(
        GatewaySettings,
        argv,
        "The gateway: answers questions about the whole fleet as one Triton would.",
    )
    return EXIT_USAGE if settings is None else run(settings)


def run(settings: GatewaySettings) -> int:
    """Run a gateway and return its exit code."""
    quiet_grpc(os.environ)
    from gateway.app import run_gateway  # noqa: PLC0415 - help and bad flags need no gRPC

    return uvloop.run(run_gateway(settings))


if __name__ == "__main__":
    sys.exit(main())
