"""The guide to a policy of one's own, as it stands: the package, the simulator, the bench."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
GUIDE = (ROOT / "docs" / "how-to" / "write-a-policy.md").read_text()


def block(language: str) -> str:
    """Return the guide's only block of a language."""
    (found,) = re.findall(rf"```{language}\n(.*?)```", GUIDE, re.DOTALL)
    return str(found)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the guide's package, as pip would install it."""
    folder = tmp_path_factory.mktemp("site")
    project = tomllib.loads(block("toml"))["project"]
    (folder / "acme_policies.py").write_text(block("python"))
    info = folder / f"acme_policies-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    (group, points), *_ = project["entry-points"].items()
    lines = [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
    (info / "entry_points.txt").write_text("\n".join(lines))
    return folder


def run(installed: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command of this checkout with the package."""
    env = {**os.environ, "PYTHONPATH": f"{installed}{os.pathsep}{ROOT}"}
    return subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_its_commands_run(installed: Path) -> None:
    """Both compare or time the policy, and neither its package nor ours had to change."""
    for line in block("sh").splitlines():
        first, *rest = shlex.split(line)
        words = ("-m", first) if first == "tidegate" else ()
        ended = run(installed, *words, *rest)
        assert ended.returncode == 0, ended.stderr
        assert "acme.longest-match" in ended.stdout


def test_validate_knows_where_it_is_installed(installed: Path, tmp_path: Path) -> None:
    """With the package nothing is warned of; without it the warning says what to do."""
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(
        "pools:\n- {name: llm, default: true, match: {models: [m]},"
        " routing: {policy: acme.longest-match}, endpoints: [{http: '127.0.0.1:1'}]}\n"
    )
    found = run(installed, "-m", "tidegate", "validate", str(fleet))
    assert (found.returncode, "warning" in found.stdout) == (0, False), found.stderr
    lacking = run(tmp_path, "-m", "tidegate", "validate", str(fleet))
    assert lacking.returncode == 0
    assert "pool llm names the policy acme.longest-match, which no package" in lacking.stdout
    assert "install it with each picker" in lacking.stdout


def test_a_picker_refuses_to_start_with_another_version(installed: Path, tmp_path: Path) -> None:
    """One line names the package, the policy and the two versions."""
    kept = shutil.ignore_patterns("__pycache__")
    shutil.copytree(installed, tmp_path, ignore=kept, dirs_exist_ok=True)
    module = tmp_path / "acme_policies.py"
    module.write_text(module.read_text().replace("interface = 1", "interface = 2"))
    ended = run(tmp_path, "-m", "ext_proc", "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0")
    assert ended.returncode == 2
    assert "Traceback" not in ended.stdout + ended.stderr
    said = "'acme.longest-match' of acme-policies 1.0 (acme_policies:LongestMatch): it states"
    assert said in ended.stdout + ended.stderr
