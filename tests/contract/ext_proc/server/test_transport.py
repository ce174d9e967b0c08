"""What a Python of its own loads for the picker's transport, and when."""

from __future__ import annotations

import os
import subprocess
import sys

from ext_proc.server import transport


def test_grpc_knows_the_name():
    """The installed gRPC accepts the name without a warning; otherwise it would have no effect."""
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
    """The picker's command sets it before gRPC is loaded, because gRPC reads it only then."""
    look = "import sys, ext_proc.__main__; print('grpc' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"


def test_the_picker_runs_without_the_extra():
    """Without it all of the picker is loaded and a server is created."""
    look = (
        "import sys; sys.modules['ngh2'] = None\n"
        "import asyncio, ext_proc.app, ext_proc.server.service\n"
        "from ext_proc.server.transport import server\n"
        "async def made(): return type(server('auto', limit=1)).__module__\n"
        "print(asyncio.run(made()))"
    )
    run = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert run.stdout == "ext_proc.server.growing\n"
