"""The verbs that start a service: they offer all that the service can be told."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import typer.main

from ext_proc import __main__ as picker
from ext_proc.settings import PickerSettings
from gateway import __main__ as gateway
from gateway.settings import GatewaySettings
from tidegate.cli.main import complete
from tidegate_common.flags import parsed
from xds_server import __main__ as control
from xds_server.settings import ControlSettings

if TYPE_CHECKING:
    from pydantic import BaseModel

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
    "role": "admin=a.example",
    "speaks": "a.example=*",
    "admin-user": "viewer=ann",
    "admin": "unix:/run/admin",
    "admin-http": "unix:/run/http",
    "store": "etcd://127.0.0.1:7",
    "log-format": "json",
    "log-level": "debug",
}
"""Values for options that do not take any text."""
ADDRESSES = {
    *("ads", "advertise", "admin-grpc", "dns", "grpc", "http", "listen", "metrics", "otlp", "xds"),
    *("group-listen", "group-members"),
}
FLAGS = {"require-pick", "require-model", "insecure", "admin-by-envoy", "accept-loss"}
"""Options without a value."""


@pytest.mark.parametrize("verb", SERVICES)
def test_a_verb_hands_every_option_on(verb: str, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each value reaches the service as by its own command line, also where one is repeatable."""
    service, settings = SERVICES[verb]
    words: list[str] = []
    for field in settings.model_fields:
        name = field.replace("_", "-")
        value = VALUES.get(name, "127.0.0.1:7" if name in ADDRESSES else f"{name}-value")
        if verb == "gateway" and name == "admin":
            value = "127.0.0.1:7"
        words += [f"--{name}"] if name in FLAGS else [f"--{name}", value]
    words += ["--role", "viewer=b.example", "--speaks", "b.example=r1"]
    taken: list[BaseModel] = []
    monkeypatch.setattr(service, "run", lambda given: taken.append(given) or 0)
    ran = run(verb, *words)
    assert ran.code == 0, ran.err
    assert taken == [parsed(settings, words, "")]
    assert taken[0].model_fields_set == settings.model_fields.keys()
    assert (taken[0].role, taken[0].speaks) == (  # type: ignore[attr-defined]
        ("admin=a.example", "viewer=b.example"),
        ("a.example=*", "b.example=r1"),
    )


@pytest.mark.parametrize("verb", SERVICES)
def test_a_verb_has_options_of_its_own_and_those_of_its_service(verb: str) -> None:
    """One of its own may have the name of a setting, as ``--require-pick``, and takes its place."""
    command = typer.main.get_command(complete([verb])).commands[verb]  # type: ignore[attr-defined]
    options = [each.opts[0].removeprefix("--").replace("-", "_") for each in command.params]
    own = {"picker": {"fleet", "dns"}}.get(verb, set())
    assert sorted(options) == sorted(SERVICES[verb][1].model_fields.keys() | own)


def test_an_option_has_bounds_variable_and_default_of_its_setting() -> None:
    """Also those of a setting that may be missing."""
    command = typer.main.get_command(complete(["picker"])).commands["picker"]  # type: ignore[attr-defined]
    options = {each.name: each for each in command.params}
    assert (options["health_port"].min, options["health_port"].max) == (0, 65_535)
    assert (options["drain"].default, options["drain"].max) == (10.0, 3600)
    assert (options["zone"].envvar, options["zone"].metavar) == ("TIDEGATE_ZONE", "NAME")
    assert options["transport"].default == "auto"
    assert options["role"].multiple
    assert options["id"].default is None


@pytest.mark.parametrize("verb", SERVICES)
def test_a_service_explains_its_settings_itself(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """As ``python -m ext_proc --help``."""
    service, settings = SERVICES[verb]
    with pytest.raises(SystemExit) as ended:
        service.main(["--help"])
    assert not ended.value.code
    shown = capsys.readouterr().out
    assert not [
        each for each in settings.model_fields if f"--{each.replace('_', '-')}" not in shown
    ]
