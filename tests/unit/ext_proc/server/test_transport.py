"""Selection of gRPC's socket polling."""

from __future__ import annotations

import os
import sys

import pytest

from ext_proc.__main__ import main
from ext_proc.server import transport
from ext_proc.settings import EXIT_USAGE, MissingExtraError


def test_the_cheaper_listener_is_named():
    """It is selected unless the environment names one."""
    environment: dict[str, str] = {}
    transport.choose(environment)
    assert environment == {"GRPC_EXPERIMENTS": "-event_engine_listener"}


def test_an_operators_choice_stays():
    """An existing setting is left unchanged."""
    environment = {"GRPC_EXPERIMENTS": "call_v3"}
    transport.choose(environment)
    assert environment == {"GRPC_EXPERIMENTS": "call_v3"}


@pytest.mark.parametrize(("wanted", "meant"), [("auto", "nghttp2"), ("nghttp2", "nghttp2")])
def test_the_fast_one_is_taken_where_it_is_installed(wanted, meant):
    """It is the default then; gRPC's own server can still be requested."""
    assert transport.named(wanted) == meant
    assert transport.named("grpc") == "grpc"


def test_without_the_extra_the_default_is_grpc(monkeypatch):
    """Nothing needs the extra unless it is requested by name."""
    monkeypatch.setitem(sys.modules, "ngh2", None)
    assert transport.named("auto") == "grpc"
    with pytest.raises(MissingExtraError, match=r"--transport nghttp2 .*'tidegate\[fast\]'"):
        transport.named("nghttp2")


def test_the_command_says_once_what_is_missing(monkeypatch, capsys):
    """The error is reported before any worker starts, with the exit code of a usage error."""
    monkeypatch.setitem(sys.modules, "ngh2", None)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    assert main(["--transport", "nghttp2", "--workers", "2"]) == EXIT_USAGE
    assert capsys.readouterr().err.count("pip install 'tidegate[fast]'") == 1
