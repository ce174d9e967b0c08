"""A wrong command line: one sentence that names what is wrong, in no library's words."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import grpc
import pytest
import typer.main

from tidegate.cli.main import VERBS, Verb, complete
from tidegate.cli.mistakes import close

if TYPE_CHECKING:
    from support.command_line import FakeAdmin, Run

LIBRARY = ("Traceback", "pydantic", "Input should", "Value error", "pattern", "grpc", "usage:")
"""Words that only libraries use."""

FLEET = """\
pools:
- name: llm
  match: {models: [toy]}
  endpoints: [{grpc: "127.0.0.1:8001"}]
"""


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("stauts", "no verb 'stauts'; did you mean status?"),
        ("qqqq", "no verb 'qqqq'; there are demo"),
        ("status --chek", "status: no option --chek; did you mean --check?"),
        ("get endpoint", "get: WHAT: 'endpoint' does not exist; did you mean endpoints?"),
        ("get", "get: WHAT is missing: pools, endpoints"),
        ("status -o jsn", "status: --output: 'jsn' does not exist; did you mean json?"),
        ("drain", "drain: ENDPOINT is missing; for example: tidegate drain r2"),
        ("drain a b", "drain: there is no argument b"),
        ("drain r1 --timeout", "--timeout needs a value"),
        ("rollback x", "rollback: REVISION: write a whole number; for example"),
        ("rollback 0", "rollback: REVISION: write at least 1"),
        ("shed llm 101", "shed: PERCENT: write at most 100"),
        ("diff x", "diff: OLD: write a whole number"),
        ("breaker llm max-reqests=3", "no 'max-reqests' to set; did you mean max-requests?"),
        ("slow-start llm windw=3s", "no 'windw' to set; did you mean window?"),
        ("picker --metrics x", "--metrics 'x': no address; write host:port"),
        ("picker --listen 1.2.3.4:1,x", "--listen '1.2.3.4:1,x': no address"),
        ("picker --otlp x", "--otlp 'x': no address; write host:port"),
        ("xds --fleet f --admin x", "--admin: 'x' is no address; write ip:port"),
        ("up -f {fleet} --picker-metrics x", "up: --picker-metrics: 'x' is no address; write"),
        ("up -f {fleet} --envoy-admin x", "up: --envoy-admin: 'x' is no address; write"),
        ("up -f {fleet} --admin unix:x", "up: --admin: 'unix:x' is no address; write"),
        ("up -f {fleet} --admin local --ads x", "up: --ads: 'x' is no address; write"),
        ("up -f {fleet} --ads x", "up: --ads: 'x' is no address; write"),
        ("envoy-bootstrap --xds x", "envoy-bootstrap: --xds: 'x' is no address; write host:port"),
        ("reporter --endpoint r1 --picker x", "reporter: --picker: 'x' is no address; write"),
        ("reporter --endpoint r1 --picker h:1 --metrics x", "reporter: --metrics: 'x' is no URL"),
        ("explain --picker 127.0.0.1:1", "(Connection refused); set --picker"),
    ],
)
def test_a_mistake_is_one_sentence(run: Run, tmp_path, line: str, said: str) -> None:
    """An operator reads what to type instead, not what a library thinks of it."""
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(FLEET)
    ran = run(*line.format(fleet=fleet).split())
    assert said in ran.err
    assert ran.err.count("\n") == 1
    assert not [word for word in LIBRARY if word in ran.err.removeprefix("tidegate: ")]
    assert ran.code == (1 if line.startswith("explain") else 2)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (grpc.StatusCode.UNKNOWN, "failed at this call: look at its log (UNKNOWN)"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "has too much to do, or its answer is larger than"),
        (grpc.StatusCode.DATA_LOSS, "cannot be read"),
    ],
)
def test_words_of_the_transport_are_not_repeated(
    run: Run, admin: FakeAdmin, code: grpc.StatusCode, said: str
) -> None:
    """`Exception calling application` tells an operator nothing."""
    admin.error = (code, "Exception calling application: grpc")
    ran = run("shed", "llm", "1", "--server", admin.address)
    assert ran.code == 1
    assert said in ran.err
    assert "Exception" not in ran.err


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_every_example_is_a_right_command_line(verb: Verb) -> None:
    """What a help page shows can be typed: options exist, and values are of their kinds."""
    command = typer.main.get_command(complete()).commands[verb.name]  # type: ignore[attr-defined]
    program, name, *words = shlex.split(verb.example.partition(" > ")[0])
    assert (program, name) == ("tidegate", verb.name)
    with command.make_context(name, words) as context:
        assert context.params


def test_an_error_of_the_program_itself_is_one_sentence(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator can report it; the place is shown to those who ask for it."""

    def broken(*_: object) -> None:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr("tidegate.cli.verbs.files.read_text", broken)
    ran = run("validate", "fleet.yaml")
    assert ran.code == 1
    assert "an error of the program itself: ZeroDivisionError: by zero; set TIDEGATE_TR" in ran.err
    assert "Traceback" not in ran.err
    monkeypatch.setenv("TIDEGATE_TRACEBACK", "1")
    with pytest.raises(ZeroDivisionError):
        run("validate", "fleet.yaml")


def test_names_that_are_far_off_are_answered_with_what_there_is() -> None:
    """A list helps where no name is close; it is bounded."""
    names = [f"pool-{number}" for number in range(40)]
    assert close("pool-7", names) == "did you mean pool-7?"
    assert close("zzz", names).endswith("pool-11 and 28 more")
    assert close("zzz", ()) == "there are none"
