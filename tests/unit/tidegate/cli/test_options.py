"""Bundles of options."""

from __future__ import annotations

from inspect import signature
from typing import Annotated, get_args

import typer

from tidegate.cli.options import LogFormatName, LogLevelName, ReadFlags, expand_bundles
from tidegate.terminal.output import Output
from tidegate_api.addresses import ADMIN_ADDRESS
from tidegate_common.logs import LogFormat, LogLevel


def test_a_bundle_becomes_its_options() -> None:
    """The verb shows each field as an option in its place, and gets the bundle."""
    taken = []

    def verb(name: Annotated[str, typer.Argument()] = "a", *, flags: ReadFlags) -> None:
        """Do it."""
        taken.append((name, flags))

    run = expand_bundles(verb)
    shown = signature(run).parameters
    tls = ["tls_cert", "tls_key", "tls_ca", "tls_server_name"]
    assert list(shown) == ["name", "server", "output", *tls]
    assert shown["server"].default == ADMIN_ADDRESS
    plain = {"tls_cert": None, "tls_key": None, "tls_ca": None, "tls_server_name": ""}
    run(name="b", server="1.2.3.4:5", output=Output.JSON, **plain)
    assert taken == [("b", ReadFlags(server="1.2.3.4:5", output=Output.JSON))]
    assert run.__doc__ == "Do it."


def test_log_options_are_those_of_the_services() -> None:
    """The command line's words for logs are those that the services take."""
    where = "tidegate/cli/options.py and tidegate_common/logs.py differ"
    assert tuple(LogFormatName) == get_args(LogFormat), where
    assert tuple(LogLevelName) == get_args(LogLevel), where
