"""Consistency of the systemd units with the product, and of the page that installs them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ext_proc.settings import PickerSettings
from gateway.settings import GatewaySettings
from support.units import ENVOY, FOLDER, PLACES, PROGRAM, ROOT, UNITS, Unit
from tidegate.cli.main import VERBS
from tidegate.doctor.host import FILES_A_CONNECTION, SPARE_FILES
from tidegate.stack.bounds import MAX_CONNECTIONS, MAX_HEAP_MIB
from tidegate.stack.envoy import envoy_command

PAGE = (ROOT / "docs/how-to/bare-hosts.md").read_text()
OPTIONS = "".join((ROOT / "docs/reference" / page).read_text() for page in ("cli.md", "cli-run.md"))
COMMANDS = [
    (name, command)
    for name in UNITS
    for key in ("ExecStartPre", "ExecStart", "ExecStop")
    for command in Unit(name).settings[key]
    if PROGRAM in command
]


@pytest.mark.parametrize(("name", "command"), COMMANDS)
def test_units_run_known_verbs_with_known_options(name: str, command: str) -> None:
    """A unit that does not start is an outage after the next boot."""
    verb, *words = command.partition(f"{PROGRAM} ")[2].split()
    assert verb in {one.name for one in VERBS}
    for option in re.findall(r"--[a-z-]+", " ".join(words)):
        assert f"`{option}`" in OPTIONS, (name, option)


def test_envoy_is_started_as_by_the_command_line() -> None:
    """With the drain flags by which a changed listener cuts no stream."""
    unit = Unit("tidegate-envoy.service")
    started = unit.words("ExecStart", {"WORKERS": "2"})
    assert started[0] == ENVOY
    wanted = envoy_command(Path(ENVOY), Path(started[2]))
    assert set(started) == {each for each in wanted if "flush" not in each and each != "1000"}
    files = FILES_A_CONNECTION * MAX_CONNECTIONS + SPARE_FILES
    assert int(unit.one("LimitNOFILE")) >= files
    assert int(unit.one("MemoryMax").removesuffix("M")) > MAX_HEAP_MIB


def test_a_unit_is_given_the_time_that_its_stop_takes() -> None:
    """Systemd kills what is still there."""
    stop = Unit("tidegate-envoy.service")
    (waits,) = re.findall(r"--timeout=(\d+)", stop.one("ExecStop"))
    assert stop.seconds("TimeoutStopSec") > int(waits)
    for name, settings in (
        ("tidegate-picker@.service", PickerSettings),
        ("tidegate-gateway.service", GatewaySettings),
    ):
        assert Unit(name).seconds("TimeoutStopSec") > settings.model_fields["drain"].default


def test_pickers_and_gateways_stop_after_envoy() -> None:
    """Units stop in the reverse order of their start."""
    for name in ("tidegate-picker@.service", "tidegate-gateway.service"):
        assert "tidegate-envoy.service" in Unit(name).one("Before").split()


def test_a_unit_runs_as_its_own_user_and_may_gain_no_rights() -> None:
    """All have the same bounds, but for what the control server's socket needs."""
    bounds = {}
    for name in UNITS:
        settings = Unit(name).settings
        assert settings["User"] == ["tidegate"]
        assert settings["NoNewPrivileges"] == ["yes"]
        text = (FOLDER / name).read_text().partition("# What it may do")[2]
        bounds[name] = set(text.splitlines())
    control = bounds.pop("tidegate-control.service")
    (others,) = {frozenset(each) for each in bounds.values()}
    assert others - control == {"PrivateUsers=yes"}
    assert {each for each in control - others if each[0] != "#"} == {"SystemCallFilter=@chown"}


def test_the_page_installs_every_file_and_names_every_place() -> None:
    """What it copies exists, what units name is in its table, and it starts each unit."""
    for pattern in re.findall(r"deploy/systemd/[\w.*@-]+", PAGE):
        assert list(ROOT.glob(pattern)), pattern
    for name in UNITS:
        assert f"{name.removesuffix('.service').replace('@', '@1')} " in f"{PAGE} ".replace(
            "\n", " "
        )
    for place in PLACES:
        assert place == "/run/tidegate-envoy" or place in PAGE
    assert PROGRAM in PAGE
    assert ENVOY in PAGE
    for verb in re.findall(r"bin/tidegate ([a-z-]+)", PAGE):
        assert verb in {one.name for one in VERBS}
    users = (FOLDER / "sysusers.conf").read_text()
    assert {"tidegate", "tidegate-operators"} <= set(users.split())
