"""The command line as a program."""

from __future__ import annotations

import subprocess
import sys


def test_help_imports_nothing_heavy() -> None:
    """``--help`` imports neither gRPC nor pydantic nor numpy."""
    code = (
        "import sys\n"
        "from tidegate.cli.main import main\n"
        "try:\n    main(['--help'])\n"
        "except SystemExit:\n    pass\n"
        "print([m for m in ('grpc', 'pydantic', 'numpy', 'aiohttp', 'yaml') if m in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.rstrip().endswith("[]")


def test_the_module_is_the_command() -> None:
    """``python -m tidegate`` runs the same program."""
    ended = subprocess.run(
        [sys.executable, "-m", "tidegate", "--version"], capture_output=True, text=True, check=True
    )
    assert ended.stdout.startswith("tidegate ")
