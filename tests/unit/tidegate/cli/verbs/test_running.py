"""The verbs that start a service: they offer all that the service can be told."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
import typer.main

from ext_proc import __main__ as picker
from ext_proc.settings import PickerSettings
from gateway import __main__ as gateway
from gateway.settings import GatewaySettings
from tidegate.cli.main import app
from xds_server import __main__ as control
from xds_server.settings import ControlSettings

if TYPE_CHECKING:
    from types import ModuleType

    from support.command_line import Run

SERVICES = {
    "picker": (picker, PickerSettings),
    "xds": (control, ControlSettings),
    "gateway": (gateway, GatewaySettings),
}
VALUES = {
    "workers": "2",
    "transport": "grpc",
    "destinations": "one",
    "serve": "clusters",
    "scrape-interval": "0.5",
    "drain": "3.0",
    "timeout": "3.0",
    "admin-timeout": "30.0",
    "ready-percent": "75.0",
    "tls-client": "optional",
    "tls-max-age": "60.0",
    "health-port": "18090",
    "log-format": "json",
    "log-level": "debug",
}
"""Values for options that do not take any text."""
MORE = {"picker": {"fleet", "dns"}}
"""Options of a verb that its service alone could not follow: it combines both services."""
FLAGS = {"require-pick", "require-model", "insecure", "admin-by-envoy"}
"""Options without a value."""


def offered(service: ModuleType, capsys: pytest.CaptureFixture[str]) -> set[str]:
    """Return the options of a service's own command line."""
    with pytest.raises(SystemExit):
        service.main(["--help"])
    return set(re.findall(r"--([a-z][a-z-]*)", capsys.readouterr().out)) - {"help"}


@pytest.mark.parametrize("verb", SERVICES)
def test_a_verb_has_every_option_of_its_service(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What ``python -m ext_proc`` or ``python -m xds_server`` takes, the verb takes."""
    command = typer.main.get_command(app).commands[verb]  # type: ignore[attr-defined]
    service, settings = SERVICES[verb]
    fields = {name.replace("_", "-") for name in settings.model_fields}
    own = {name.removeprefix("--") for each in command.params for name in each.opts} - {"help"}
    assert own == fields | MORE.get(verb, set())
    assert fields <= offered(service, capsys)


@pytest.mark.parametrize("verb", SERVICES)
def test_a_verb_hands_every_option_on(verb: str, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each value reaches the service under the same name."""
    service, settings = SERVICES[verb]
    names = [name.replace("_", "-") for name in settings.model_fields]
    flags = {f"--{name}" for name in names if name in FLAGS}
    names = [name for name in names if name not in FLAGS]
    told = {f"--{name}": VALUES.get(name, f"{name}-value") for name in names}
    received: list[list[str]] = []
    monkeypatch.setattr(service, "main", lambda arguments: received.append(arguments) or 0)
    ran = run(verb, *flags, *(word for pair in told.items() for word in pair))
    assert ran.code == 0, ran.err
    words = [word for word in received[0] if word not in flags]
    assert dict(zip(words[::2], words[1::2], strict=True)) == told
    assert flags <= set(received[0])
