"""What the unit layer refuses, tried beside it."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from contextlib import suppress

import grpc
import pytest

from support.unit_limits import UnitLimitError, UnitLimits


@pytest.fixture(scope="module")
def of_module() -> UnitLimits:
    """Return limits of which the hook stays, but watches only while a test says so."""
    return UnitLimits()


@pytest.fixture
def limits(of_module: UnitLimits):
    """Watch during a test."""
    of_module.begin()
    yield of_module
    of_module.end()


def _bind() -> None:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))


async def _grpc_port() -> None:
    grpc.aio.server().add_insecure_port("127.0.0.1:0")


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (_bind, "opens a socket: socket.bind"),
        (lambda: socket.getaddrinfo("localhost", 1), "opens a socket: socket.getaddrinfo"),
        (lambda: asyncio.run(_grpc_port()), "opens a socket: add_insecure_port of grpc.aio"),
        (lambda: subprocess.run([sys.executable], check=True), "starts a process: subprocess"),
        (lambda: os.system("true"), "starts a process: os.system"),  # noqa: S605, S607 - never runs
        (lambda: time.sleep(0), "sleeps: move the clock"),
    ],
)
def test_a_call_that_no_unit_test_makes_is_refused(limits, call, said):
    """It raises, and is remembered where the caller takes the error for another one."""
    with suppress(UnitLimitError):
        call()
        pytest.fail("not refused")
    assert limits.end().startswith(said)


def test_what_needs_no_peer_is_allowed(limits):
    """An event loop has a pair of sockets; it is nothing that the layer forbids."""
    asyncio.run(asyncio.sleep(0))
    assert limits.end() is None


def test_nothing_is_refused_outside_a_test(of_module):
    """The hook stays in the process, and watches no more."""
    of_module.begin()
    of_module.end()
    _bind()
