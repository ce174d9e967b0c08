"""``python -m xds_server --fleet FILE``: run the control server."""

from __future__ import annotations

import argparse
import asyncio
import sys
from typing import TYPE_CHECKING, get_args

import uvloop
from pydantic import ValidationError

from tidegate_common.logs import LogFormat, LogLevel
from xds_server.app import run
from xds_server.settings import ControlSettings

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run until stopped; return the exit code (2 = invalid options, or the start failed)."""
    parser = argparse.ArgumentParser(
        prog="python -m xds_server",
        description="Tidegate's control server: publishes a fleet file over ADS to all Envoys and "
        "pickers.",
    )
    defaults = ControlSettings.model_fields
    parser.add_argument(
        "--fleet", required=True, metavar="FILE", help="the fleet file, watched for changes"
    )
    for name, help_ in (
        ("ads", "address for Envoys and pickers"),
        ("admin", "address for operators"),
        ("metrics", "address of /metrics and /healthz"),
    ):
        default = defaults[name].default
        parser.add_argument(
            f"--{name}", default=default, metavar="IP:PORT", help=f"{help_} ({default})"
        )
    parser.add_argument("--state", metavar="DIR", help="folder for revisions; in memory if omitted")
    parser.add_argument("--log-format", choices=get_args(LogFormat), default="console")
    parser.add_argument("--log-level", choices=get_args(LogLevel), default="info")
    options = parser.parse_args(argv)
    try:
        settings = ControlSettings.model_validate(vars(options))
    except ValidationError as error:
        fault = error.errors()[0]
        reason = fault["msg"].removeprefix("Value error, ")
        parser.error(f"argument --{fault['loc'][0]}: {reason}")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run(settings))


if __name__ == "__main__":
    sys.exit(main())
