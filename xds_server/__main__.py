"""``python -m xds_server --fleet FILE``: run the control server."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from typing import TYPE_CHECKING, Any, Final, get_args

import uvloop
from pydantic import ValidationError

from tidegate_common.flags import option_of, reworded
from tidegate_common.logs import LogFormat, LogLevel, quiet_grpc
from tidegate_common.tls.settings import IdentitySettings
from xds_server.settings import ControlSettings, Serve

if TYPE_CHECKING:
    from collections.abc import Sequence

EXIT_USAGE: Final = 2


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
        ("metrics", "address of /metrics and /healthz"),
    ):
        default = defaults[name].default
        parser.add_argument(
            f"--{name}", default=default, metavar="IP:PORT", help=f"{help_} ({default})"
        )
    parser.add_argument(
        "--admin",
        default=defaults["admin"].default,
        metavar="ADDRESS",
        help="address for operators: local, unix:PATH or ip:port; several with commas (local)",
    )
    parser.add_argument(
        "--admin-http", default="", metavar="ADDRESS", help="address of the same over HTTP (none)"
    )
    parser.add_argument(
        "--admin-host", action="append", metavar="NAME", help="host name of HTTP calls, repeatable"
    )
    parser.add_argument("--admin-group", metavar="GROUP", help="group that may open Unix sockets")
    parser.add_argument(
        "--admin-user",
        action="append",
        metavar="ROLE=USER",
        help="role of a member of that group, repeatable; operator if omitted",
    )
    parser.add_argument("--admin-tokens", metavar="FILE", help="file of the hashes of tokens")
    parser.add_argument("--audit", metavar="DIR", help="folder of the record of all admin calls")
    parser.add_argument(
        "--serve",
        choices=get_args(Serve),
        default=defaults["serve"].default,
        help="what Envoys are served; clusters = no listeners and routes (all)",
    )
    parser.add_argument("--state", metavar="DIR", help="folder for revisions; in memory if omitted")
    parser.add_argument(
        "--dns",
        action="append",
        metavar="IP:PORT",
        help="name server for replicas by name, repeatable; those of /etc/resolv.conf if omitted",
    )
    parser.add_argument("--log-format", choices=get_args(LogFormat), default="console")
    parser.add_argument("--log-level", choices=get_args(LogLevel), default="info")
    for name, field in IdentitySettings.model_fields.items():
        options: dict[str, Any] = {"action": "append"} if name == "role" else {}
        if field.annotation is bool:
            options["action"] = "store_true"
        about = str(field.description).replace("\n", " ")
        parser.add_argument(
            f"--{name.replace('_', '-')}", default=argparse.SUPPRESS, help=about, **options
        )
    try:
        settings = ControlSettings.model_validate(vars(parser.parse_args(argv)))
    except ValidationError as error:
        fault = error.errors()[0]
        option = option_of(fault)
        where = f"argument {option}: " if option else ""
        parser.exit(EXIT_USAGE, f"{where}{reworded(fault['msg'])}\n")
    quiet_grpc(os.environ)
    from xds_server.app import run  # noqa: PLC0415 - gRPC reads the environment when it is loaded

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run(settings))


if __name__ == "__main__":
    sys.exit(main())
