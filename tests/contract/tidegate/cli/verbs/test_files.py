"""The verbs ``validate`` and ``envoy-bootstrap``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import yaml

from tidegate.cli.verbs import files

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from support.command_line import FakeAdmin, Run

FLEET = """\
pools:
- name: llm
  default: true
  match: {models: [toy-llm]}
  endpoints:
  - {grpc: 127.0.0.1:8001}
"""


def test_a_valid_file_is_summed_up(run: Run, tmp_path: Path) -> None:
    """A valid file prints the number of pools and endpoints."""
    file = tmp_path / "fleet.yaml"
    file.write_text(FLEET)
    ran = run("validate", str(file))
    assert ran.code == 0
    assert "1 pools, 1 endpoints" in ran.out


def test_a_bad_file_is_told_by_its_line(run: Run, tmp_path: Path) -> None:
    """The error names file, line and field path; the exit code is 1."""
    file = tmp_path / "fleet.yaml"
    file.write_text(FLEET.replace("127.0.0.1:8001", "nowhere"))
    ran = run("validate", str(file))
    assert ran.code == 1
    assert f"{file}:6" in ran.err
    assert "endpoints[0].grpc" in ran.err


def test_two_files_are_compared(run: Run, tmp_path: Path) -> None:
    """The fields that drain connections are named before anything is applied."""
    old, new = tmp_path / "old.yaml", tmp_path / "new.yaml"
    old.write_text(FLEET)
    new.write_text(FLEET + "listener: {buffer_bytes: 131072}\n")
    ran = run("validate", str(new), "--against", str(old))
    assert ran.code == 0
    assert f"changes from {old}:" in ran.out
    assert "drains the listener's connections: listener.buffer_bytes" in ran.out
    found = json.loads(run("validate", str(new), "--against", str(old), "-o", "json").out)
    assert found["drains"] == ["listener.buffer_bytes"]
    assert len(found["changes"]) == 2


def test_a_change_without_drains_says_so(run: Run, tmp_path: Path) -> None:
    """Silence would leave the question open."""
    old, new = tmp_path / "old.yaml", tmp_path / "new.yaml"
    old.write_text(FLEET)
    new.write_text(FLEET + "pickers: {timeout: 3s}\n")
    out = run("validate", str(new), "--against", str(old)).out
    assert "drains no connection" in out
    assert run("validate", str(old), "--against", str(old)).out.endswith("  no difference\n")


def test_a_file_is_compared_with_what_runs(run: Run, admin: FakeAdmin, tmp_path: Path) -> None:
    """The control server is asked by a dry run of ``apply``."""
    file = tmp_path / "fleet.yaml"
    file.write_text(FLEET)
    ran = run("validate", str(file), "--server", admin.address, "-o", "json")
    found = json.loads(ran.out)
    assert found["changes"] == ["pool llm: variant canary weight 5 -> 10"]
    assert found["drains"] == []
    (request,) = admin.requests
    assert request.options.dry_run


def test_nothing_is_said_of_changes_that_were_not_asked_for(run: Run, tmp_path: Path) -> None:
    """Unknown is null; and only one comparison is made at a time."""
    file = tmp_path / "fleet.yaml"
    file.write_text(FLEET)
    found = json.loads(run("validate", str(file), "-o", "json").out)
    assert (found["changes"], found["drains"], found["envoy"]) == (None, None, None)
    assert run("validate", str(file), "--against", str(file), "--server", "h:1").code == 2


def test_the_schema_is_json(run: Run) -> None:
    """``--schema`` prints the JSON Schema and needs no file."""
    ran = run("validate", "--schema")
    assert ran.code == 0
    assert "pools" in json.loads(ran.out)["properties"]


def test_what_is_no_text_is_refused(run: Run, tmp_path: Path) -> None:
    """A file that is not UTF-8 is one error with the byte offset."""
    file = tmp_path / "fleet.yaml"
    file.write_bytes(b"pools: \xff")
    ran = run("validate", str(file))
    assert ran.code == 1
    assert "not UTF-8 text (byte 7)" in ran.err


def test_a_huge_file_is_not_read(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file larger than ``MAX_FILE_BYTES`` is rejected."""
    monkeypatch.setattr(files, "MAX_FILE_BYTES", 10)
    file = tmp_path / "fleet.yaml"
    file.write_text("# 10 bytes")
    assert "larger" not in run("validate", str(file)).err
    file.write_text("# 11 bytes!")
    assert "larger than 10 bytes" in run("validate", str(file)).err


def test_a_bootstrap_names_its_node(run: Run) -> None:
    """The bootstrap is YAML with the node id."""
    ran = run("envoy-bootstrap", "--node-id", "edge-1", "--xds", "127.0.0.1:18000")
    assert ran.code == 0
    assert yaml.safe_load(ran.out)["node"]["id"] == "edge-1"


def test_a_bad_address_is_one_sentence(run: Run) -> None:
    """An invalid address is an error that names the expected form."""
    ran = run("envoy-bootstrap", "--xds", "nowhere")
    assert ran.code == 2
    assert "host:port" in ran.err


def test_a_bootstrap_with_tls_writes_the_files_that_name_its_certificate(
    run: Run, tmp_path
) -> None:
    """Envoy finds its certificate through them, and reads it again when it is replaced."""
    folder = tmp_path / "secrets"
    files = ("--tls-cert", "/c/tls.crt", "--tls-key", "/c/tls.key", "--tls-ca", "/c/ca.crt")
    ran = run("envoy-bootstrap", *files, "--secrets", str(folder))
    assert ran.code == 0, ran.err
    assert "transport_socket" in ran.out
    assert sorted(path.name for path in folder.iterdir()) == [
        "tidegate-ca.yaml",
        "tidegate-certificate.yaml",
    ]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("--tls-cert /c", "belong together"),
        ("--tls-cert c --tls-key /k --tls-ca /a --secrets /s", "is relative"),
    ],
)
def test_a_bootstrap_with_half_of_tls_is_refused(run: Run, given: str, words: str) -> None:
    """The error says what to give."""
    ran = run("envoy-bootstrap", *given.split())
    assert (ran.code, ran.out) == (1, "")
    assert words in ran.err
