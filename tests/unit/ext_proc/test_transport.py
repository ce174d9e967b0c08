"""How gRPC is told to read sockets."""

from __future__ import annotations

import os
import subprocess
import sys

from ext_proc import transport


def test_the_cheaper_listener_is_named():
    """A process that says nothing gets it."""
    environment: dict[str, str] = {}
    transport.choose(environment)
    assert environment == {"GRPC_EXPERIMENTS": "-event_engine_listener"}


def test_an_operators_choice_stays():
    """What is set already is left alone."""
    environment = {"GRPC_EXPERIMENTS": "call_v3"}
    transport.choose(environment)
    assert environment == {"GRPC_EXPERIMENTS": "call_v3"}


def test_grpc_knows_the_name():
    """The installed gRPC takes the name without complaint, or the choice has no effect."""
    begin = (
        "from concurrent.futures import ThreadPoolExecutor; import grpc\n"
        "server = grpc.server(ThreadPoolExecutor(1)); server.add_insecure_port('127.0.0.1:0')\n"
        "server.start(); server.stop(None).wait()"
    )
    environment = {**os.environ, "GRPC_EXPERIMENTS": transport.LISTENER}
    run = subprocess.run(
        [sys.executable, "-c", begin], env=environment, capture_output=True, text=True, check=True
    )
    assert "Unknown experiment" not in run.stderr


def test_it_is_chosen_in_time():
    """The picker's command chooses before gRPC is loaded, as gRPC reads the choice then only."""
    look = "import sys, ext_proc.__main__; print('grpc' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"
