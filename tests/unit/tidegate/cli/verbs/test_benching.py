"""The verb ``bench``: its errors and its report."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from tidegate.cli import laboratory
from tidegate.cli.main import main


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str]:
    """Run the verb; return its exit code and stderr."""
    with pytest.raises(SystemExit) as ended:
        main(["bench", *args])
    return int(ended.value.code or 0), capsys.readouterr().err


def test_an_unknown_suite_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    """The error names the suites."""
    code, err = run(capsys, "everything")
    assert code == 2
    assert "no suite 'everything'; there are throughput, overhead" in err


def test_without_a_checkout_it_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without a checkout the error says to run it from one."""
    monkeypatch.setattr(laboratory, "ROOT", tmp_path)
    code, err = run(capsys)
    assert code == 1
    assert "run it from a checkout" in err


def test_a_report_is_written_of_earlier_results(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """``--report-only`` measures nothing and rewrites the report."""
    row = {"mode": "none", "picker_us": 2, "bare_us": 1, "ratio": 2.0, "ours_us": 1}
    suite = {"command": "c", "date": "d", "took_s": 1, "form": "quick", "rows": []}
    suite["rows"] = [{**row, "transport": "grpc", "compiled": False, "exchanges_per_s": 5}]
    (tmp_path / "results.json").write_bytes(orjson.dumps({"suites": {"picker": suite}}))
    code, err = run(capsys, "--report-only", "--out", str(tmp_path))
    assert code == 0
    assert "written:" in err
    assert "2x, 60% above" in (tmp_path / "report.md").read_text()
