"""What ``make dist`` says of a wheel, and which Pythons it takes."""

from __future__ import annotations

import io
import re
import sys
import zipfile
from pathlib import Path

import pytest
from rich.console import Console

from tidegate.demo.report import PhaseFinding, judge, show_summary
from tools.compiling import GROUP
from tools.dist import table
from tools.pythons import PROVEN, NoPythonError, Python, chosen, look
from tools.steps import StepError, Steps
from tools.trial import COPIED, VERDICT, Result, copy_tests
from tools.wheels import content, foreign

ROOT = Path(__file__).resolve().parents[3]


def wheel(folder: Path, tag: str, *names: str) -> Path:
    """Write a wheel with these files."""
    path = folder / f"tidegate-1-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, "1234")
    return path


def test_a_wheel_is_described(tmp_path: Path) -> None:
    """Its tag, its sizes, and how many libraries are in it."""
    made = wheel(tmp_path, "cp311-cp311-linux_x86_64", "ext_proc/a.so", "ext_proc/a.py", "x.so")
    what = content(made)
    assert what.tag == "cp311-cp311-linux_x86_64"
    assert (what.size, what.unpacked) == (made.stat().st_size, 12)
    assert what.files == {"ext_proc": 2, "x.so": 1}
    assert what.libraries == 2


@pytest.mark.parametrize(
    "name",
    ["tools/dist.py", "bench/run.py", "tests/a.py", "x.so", "ext_proc/__pycache__/a.pyc"],
)
def test_what_is_not_the_product_s_is_found(tmp_path: Path, name: str) -> None:
    """A wheel carries neither the laboratory, nor the tests, nor what building leaves."""
    good = ("ext_proc/a.py", "tidegate-1.dist-info/METADATA", f"{GROUP}__mypyc.cpython-311.so")
    assert foreign(wheel(tmp_path, "py3-none-any", *good), ROOT) == []
    assert foreign(wheel(tmp_path, "py3-none-any", *good, name), ROOT) == [name]


def test_a_python_that_is_named_is_taken() -> None:
    """By its path or its name."""
    (python,) = chosen([sys.executable])
    assert python.version == f"{sys.version_info.major}.{sys.version_info.minor}"
    assert python.version in PROVEN


def test_a_python_that_does_not_run_is_an_error(tmp_path: Path) -> None:
    """A shim of pyenv, for example, whose version is not chosen."""
    shim = tmp_path / "python3.12"
    shim.write_text("#!/bin/sh\nexit 127\n")
    shim.chmod(0o755)
    assert look(str(shim)) is None
    with pytest.raises(NoPythonError, match="does not run"):
        chosen([str(shim)])


def test_a_python_that_cannot_be_tried_is_an_error(tmp_path: Path) -> None:
    """The demo has no wheels for it."""
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "3.13.0 /usr/bin/python3.13"\n')
    python.chmod(0o755)
    with pytest.raises(NoPythonError, match=r"Python 3\.13\.0"):
        chosen([str(python)])


def test_a_step_that_fails_shows_the_end_of_its_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And where the log is; that it began is on the terminal."""
    steps = Steps(tmp_path / "logs")
    with pytest.raises(StepError, match=r"go wrong failed \(3\); .*go-wrong.log ends:\nwhy"):
        steps.run("go wrong", ("sh", "-c", "echo why; exit 3"), cwd=tmp_path)
    assert "s] go wrong" in capsys.readouterr().out


def test_a_step_sees_no_code_of_the_caller_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wheel is tried, not the checkout that is on the caller's path."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    said = Steps(tmp_path / "logs").run(
        "look", ("sh", "-c", 'echo "<$PYTHONPATH>"'), cwd=tmp_path, env={"OTHER": "1"}
    )
    assert said == "<>\n"


def test_the_tests_are_copied_without_the_product(tmp_path: Path) -> None:
    """What is imported of ours can then only be what is installed."""
    copy = copy_tests(ROOT, tmp_path / "copy")
    assert {path.name for path in copy.iterdir()} == {*COPIED, "conftest.py"}


def test_the_table_has_a_row_for_each_wheel(tmp_path: Path) -> None:
    """With the verdicts of those that were tried."""
    pure = wheel(tmp_path, "py3-none-any", "ext_proc/a.py")
    fast = wheel(tmp_path, "cp311-cp311-linux_x86_64", "ext_proc/a.so", "x.so")
    result = Result(160_000_000, "9 passed", True, "6 of 6 passed", True)
    first, *rows = table([pure, fast], {pure: result}).splitlines()
    assert first.split()[:2] == ["wheel", "tag"]
    assert rows[0].split()[0] == "pure"
    assert rows[0].endswith("160.0 MB           0                 9 passed   6 of 6 passed")
    assert rows[1].split()[-5:] == ["1", "not", "tried", "not", "tried"]


def test_versions_have_two_parts() -> None:
    """As wheels' tags and folders of packages have them."""
    assert Python(Path("/usr/bin/python3"), "3.11.7").version == "3.11"


def test_the_verdict_is_the_line_that_the_demo_prints() -> None:
    """The demo's report ends with a line that the trial recognises."""
    text = io.StringIO()
    printed = Console(file=text, width=200)
    findings = [PhaseFinding("one", (), (), judge((), "it did"))]
    show_summary(printed, findings, Path("logs"))
    last = text.getvalue().strip().splitlines()[-1]
    assert re.match(VERDICT, last)
