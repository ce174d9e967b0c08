"""``python -m gateway``: one gateway."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

import uvloop
from pydantic import ValidationError

from gateway.settings import GatewaySettings
from tidegate_common.logs import quiet_grpc

if TYPE_CHECKING:
    from collections.abc import Sequence

EXIT_USAGE = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line, run the gateway and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m gateway",
        description="The gateway: answers questions about the whole fleet as one Triton would.",
        argument_default=argparse.SUPPRESS,
    )
    for name, field in GatewaySettings.model_fields.items():
        default = "gateway-HOSTNAME" if name == "id" else field.default
        option, about = f"--{name.replace('_', '-')}", f"{field.description} Default: {default}."
        if field.annotation is bool:
            parser.add_argument(option, help=about, action="store_true")
        elif name == "role":
            parser.add_argument(option, help=about, action="append")
        else:
            parser.add_argument(option, help=about.replace("%", "%%"))
    try:
        settings = GatewaySettings.model_validate(vars(parser.parse_args(argv)))
    except ValidationError as error:
        for problem in error.errors():
            reason = problem["msg"].removeprefix("Value error, ")
            if problem["loc"]:
                option = "--" + str(problem["loc"][0]).replace("_", "-")
                reason = f"{option} {problem['input']!r}: {problem['msg']}"
            sys.stderr.write(f"{reason}\n")
        return EXIT_USAGE
    quiet_grpc(os.environ)
    from gateway.app import run_gateway  # noqa: PLC0415 - help and bad flags need no gRPC

    return uvloop.run(run_gateway(settings))


if __name__ == "__main__":
    sys.exit(main())
