"""Environment of the services that the stack starts."""

from __future__ import annotations

import os
from pathlib import Path

from tidegate.stack.processes.spawning import service_environment
from tidegate_common.children import ROOT


def test_services_run_the_code_of_this_checkout() -> None:
    """The packages of this checkout come first, and output is not buffered."""
    environment = service_environment()
    assert environment["PYTHONPATH"].split(os.pathsep)[0] == str(ROOT)
    assert environment["PYTHONUNBUFFERED"] == "1"


def test_a_picker_of_another_installation_runs_its_code() -> None:
    """The given installation has priority over the checkout."""
    assert service_environment(Path("/other"))["PYTHONPATH"].split(os.pathsep)[0] == "/other"
