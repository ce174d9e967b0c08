"""The verb ``simulate``: its output and its errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tidegate.cli import laboratory
from tidegate.cli.main import main

FIXTURES = Path(__file__).resolve().parents[4] / "contract" / "fixtures" / "traces"
QUICK = ("--policies", "round-robin,oracle", "--seeds", "1", "--rate", "2")


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    """Run the verb; return its exit code, stdout and stderr."""
    with pytest.raises(SystemExit) as ended:
        main(["simulate", *args])
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


def test_a_trace_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    """The table of a Mooncake trace has one line per policy."""
    trace = FIXTURES / "mooncake-conversation.jsonl"
    code, out, _ = run(capsys, "--trace", str(trace), *QUICK)
    assert code == 0
    assert "mooncake-conversation: 60 requests" in out
    assert "2 requests/s" in out
    assert [line.split()[0] for line in out.splitlines()[-2:]] == ["round-robin", "oracle"]


def test_loads_are_shares_of_what_was_found(capsys: pytest.CaptureFixture[str]) -> None:
    """Without ``--rate``, the saturation rate is searched and printed."""
    code, out, _ = run(
        capsys,
        *("--trace", "sessions", "--requests", "80", "--replicas", "2"),
        *("--policies", "oracle", "--seeds", "2", "--load", "0.5,0.8", "-o", "json"),
    )
    data = json.loads(out)
    assert code == 0
    assert [row["rate"] / data["saturation"] for row in data["rows"]] == pytest.approx([0.5, 0.8])


def test_the_trace_s_own_pace(capsys: pytest.CaptureFixture[str]) -> None:
    """``--load trace`` replays recorded arrival times, with all incidents configured."""
    code, out, _ = run(
        capsys,
        *("--trace", str(FIXTURES / "azure-conversation.csv"), "--load", "trace"),
        *("--policies", "oracle,prefix-affinity", "--seeds", "1", "--against", "oracle"),
        *("--fail-at", "5", "--join-at", "3", "--slow", "2", "--slow-start", "5"),
        *("--pickers", "2", "--freeze-at", "2", "--freeze", "4"),
    )
    assert code == 0
    assert "mean vs oracle" in out


def test_files_are_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """``--html`` and ``--png`` write the page and the plots."""
    page, plots = tmp_path / "page.html", tmp_path / "plots"
    code, _, _ = run(
        capsys,
        *("--trace", "bursts", "--requests", "30", *QUICK),
        *("--html", str(page), "--png", str(plots)),
    )
    assert code == 0
    assert page.read_text().startswith("<!doctype html>")
    assert len(list(plots.glob("bursts-*.png"))) == 7


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (("--trace", "nothing"), 2, "none of shared-prefix"),
        (("--trace", "no.jsonl"), 1, "No such file"),
        (("--trace", "bursts", "--policies", "best"), 2, "best unknown"),
        (("--trace", "burst"), 2, "did you mean bursts?"),
        (("--trace", "bursts", "--policies", "orakle"), 2, "did you mean oracle?"),
        (("--trace", "bursts", "--policies", ","), 2, "none unknown"),
        (("--trace", "bursts", "--load", "0.5,x"), 2, "--load: '0.5,x'"),
        (("--trace", "bursts", "--rate", "-1"), 2, "--rate: '-1'"),
        (("--trace", "bursts", "--against", "oracle", "--policies", "probe"), 2, "--against"),
        (("--trace", "bursts", "--replicas", "1", "--fail-at", "3"), 1, "cannot lose"),
        (("--trace", "mixed", "--cache-blocks", "20"), 1, "needs"),
        (("--trace", "bursts", "--requests", "30", "--slo", "1000"), 1, "any rate"),
        (
            ("--trace", "bursts", "--requests", "10", *QUICK, "--html", "/no/such/page.html"),
            1,
            "/no/such/page.html: No such file",
        ),
    ],
)
def test_a_wrong_call_is_one_sentence(
    capsys: pytest.CaptureFixture[str], args: tuple[str, ...], code: int, said: str
) -> None:
    """Each usage error has its exit code and one line that names it."""
    ended, _, err = run(capsys, *args)
    assert ended == code
    assert said in err
    assert len(err.splitlines()) == 1


def test_without_a_checkout_it_says_where_to_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without a checkout, the error says to run it from one."""
    monkeypatch.setattr(laboratory, "ROOT", tmp_path)
    code, _, err = run(capsys, "--trace", "sessions")
    assert code == 1
    assert "the simulator is not part of the package: run it from a checkout" in err
    assert len(err.splitlines()) == 1
