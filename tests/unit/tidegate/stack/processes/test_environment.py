<<<<<<< HEAD
"""The environment of our services."""
=======
"""Code that a child of the stack imports."""
>>>>>>> d8dc0b4 (State in the tests of stack and demo what each checks)

from __future__ import annotations

import os
from pathlib import Path

from tidegate.stack.processes.environment import service_environment
from tidegate_common.children import ROOT


<<<<<<< HEAD
def test_services_run_the_code_of_this_checkout() -> None:
    """Our packages come first, and output is not buffered, so that logs are whole."""
    environment = service_environment()
    assert environment["PYTHONPATH"].split(os.pathsep)[0] == str(ROOT)
    assert environment["PYTHONUNBUFFERED"] == "1"


def test_a_picker_of_another_installation_runs_its_code() -> None:
    """The installation that is named goes before ours."""
    assert service_environment(Path("/other"))["PYTHONPATH"].split(os.pathsep)[0] == "/other"
=======
def origin(environment: dict[str, str], folder: Path) -> Path:
    """Return the folder from which a child in ``folder`` takes ``python -m ext_proc``."""
    # `-m` searches the current folder first, unless the environment forbids it.
    (folder / "asks.py").write_text("import ext_proc; print(ext_proc.__file__)")
    command = [sys.executable, "-m", "asks"]
    path = os.pathsep.join((environment["PYTHONPATH"], str(folder)))
    done = subprocess.run(
        command,
        cwd=folder,
        env={**environment, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    return Path(done.stdout.strip()).parents[1]


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """Return a folder that contains a package with the project's name."""
    (tmp_path / "ext_proc").mkdir()
    (tmp_path / "ext_proc" / "__init__.py").touch()
    return tmp_path


def test_services_run_the_code_of_this_checkout(tmp_path: Path) -> None:
    """A child in any folder imports the packages of this checkout."""
    assert origin(service_environment(), tmp_path) == ROOT


def test_a_picker_of_another_installation_runs_its_code(elsewhere: Path, tmp_path: Path) -> None:
    """The given installation has priority over the current folder and the checkout."""
    installed = tmp_path / "installed"
    (installed / "ext_proc").mkdir(parents=True)
    (installed / "ext_proc" / "__init__.py").touch()
    assert origin(service_environment(installed), elsewhere) == installed
>>>>>>> d8dc0b4 (State in the tests of stack and demo what each checks)
