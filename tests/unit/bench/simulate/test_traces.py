"""Parsing of public traces, and errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.simulate import traces
from bench.simulate.traces import TraceError, read_trace

FIXTURES = Path(__file__).resolve().parents[3] / "contract" / "fixtures" / "traces"


def test_a_mooncake_slice() -> None:
    """A Mooncake slice has lengths, only full blocks, one common first block, and slots."""
    workload = read_trace(FIXTURES / "mooncake-conversation.jsonl")
    first = workload.jobs[0]
    assert (first.input_tokens, first.output_tokens, len(first.blocks)) == (6758, 500, 13)
    assert len({each.blocks[0] for each in workload.jobs if each.blocks}) == 1
    assert (len(workload.jobs), workload.slotted) == (60, True)


def test_an_azure_slice() -> None:
    """An Azure slice has times to the microsecond and no shared block."""
    workload = read_trace(FIXTURES / "azure-conversation.csv")
    assert workload.jobs[0].input_tokens == 374
    assert workload.jobs[1].at == pytest.approx(4.314579)
    blocks = [block for each in workload.jobs for block in each.blocks]
    assert len(blocks) == len(set(blocks)) > 0
    assert (len(workload.jobs), workload.slotted) == (40, False)


def test_a_byte_order_mark_is_no_column(tmp_path: Path) -> None:
    """A byte order mark and a missing final newline are accepted."""
    path = tmp_path / "t.csv"
    path.write_bytes(
        b"\xef\xbb\xbfTIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,9,0"
    )
    assert read_trace(path).jobs[0].output_tokens == 1


GOOD = '{"timestamp": 5, "input_length": 600, "output_length": 2, "hash_ids": [1, 2]}'


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("t.txt", GOOD, "ends with .jsonl"),
        ("t.jsonl", "", "no requests"),
        ("t.jsonl", GOOD + "\n{", "t.jsonl:2: not JSON"),
        ("t.jsonl", "[]", "t.jsonl:1: not a JSON object"),
        ("t.jsonl", GOOD.replace("5", "-1"), "timestamp must be an integer"),
        ("t.jsonl", GOOD.replace("600", "true"), "input_length must be"),
        ("t.jsonl", GOOD.replace("600", "99999999"), "input_length must be"),
        ("t.jsonl", GOOD.replace("[1, 2]", '["a"]'), "hash_ids must be"),
        ("t.jsonl", GOOD.replace("[1, 2]", "[]"), "need 1 hash_ids"),
        ("t.jsonl", GOOD + "\n" + GOOD.replace("5", "4"), "t.jsonl:2: timestamp 0.004 s is before"),
        ("t.csv", "A,B\n", "t.csv:1: the columns must be"),
        ("t.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n", "no requests"),
        ("t.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n1,2\n", "t.csv:2: 2 columns"),
        ("t.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\nx,2,3\n", "t.csv:2: Invalid iso"),
        (
            "t.csv",
            "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,-2,3\n",
            "t.csv:2: token counts",
        ),
        (
            "t.csv",
            "TIMESTAMP,ContextTokens,GeneratedTokens\n20231116T181546,2,3\n20231116T181546Z,2,3\n",
            "t.csv:3: time zones",
        ),
    ],
)
def test_a_bad_trace_is_named_with_its_line(
    tmp_path: Path, name: str, text: str, said: str
) -> None:
    """Each invalid line is an error with file, line and problem."""
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(TraceError, match=said):
        read_trace(path)


def test_a_missing_or_binary_file(tmp_path: Path) -> None:
    """A missing or binary file raises ``TraceError``."""
    with pytest.raises(TraceError, match="No such file"):
        read_trace(tmp_path / "none.csv")
    (tmp_path / "b.jsonl").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(TraceError, match="not UTF-8"):
        read_trace(tmp_path / "b.jsonl")


def test_the_bounds_on_requests_and_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trace above a limit is an error at the first line above it."""
    path = tmp_path / "t.jsonl"
    path.write_text(f"{GOOD}\n{GOOD}\n{GOOD}\n")
    monkeypatch.setattr(traces, "MAX_JOBS", 2)
    with pytest.raises(TraceError, match=r"t.jsonl:3: more than 2 requests"):
        read_trace(path)
    monkeypatch.setattr(traces, "MAX_LINE", 20)
    with pytest.raises(TraceError, match=r"t.jsonl:1: longer than 20"):
        read_trace(path)
