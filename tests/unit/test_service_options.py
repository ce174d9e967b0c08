"""The options of the services are those of their verbs."""

from __future__ import annotations

from typing import get_args

import pytest
import typer
from pydantic import BaseModel

from ext_proc.settings import PickerSettings
from gateway.settings import GatewaySettings
from tidegate.cli.main import app, main
from tidegate.cli.options import LogFormatName, LogLevelName
from tidegate_common.logs import LogFormat, LogLevel
from xds_server.settings import ControlSettings

OF_THE_VERB = {"picker": {"fleet", "dns"}}
"""Options that a service alone could not follow, since the verb combines both services."""
DECIDED_BY_THE_VERB = {"picker": {"require_pick"}}
"""Options whose default depends on others of the verb."""


SERVICES = {"xds": ControlSettings, "picker": PickerSettings, "gateway": GatewaySettings}


def test_a_wrong_setting_ends_a_verb_as_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    """The message names the option; nothing is started."""
    with pytest.raises(SystemExit) as ended:
        main(["picker", "--listen", "nope"])
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("--listen 'nope': no address; write host:port")


@pytest.mark.parametrize(("verb", "model"), SERVICES.items(), ids=SERVICES)
def test_services_and_their_verbs_have_the_same_options(verb: str, model: type[BaseModel]) -> None:
    """A verb that starts a service has its settings as options, with their defaults."""
    command = typer.main.get_command(app).commands[verb]  # type: ignore[attr-defined]
    options = {each.opts[0].removeprefix("--").replace("-", "_"): each for each in command.params}
    missing = model.model_fields.keys() - options.keys()
    assert not missing, f"`{verb}` has no option for {missing}"
    assert options.keys() - model.model_fields.keys() == OF_THE_VERB.get(verb, set())
    for name, option in options.items():
        if name in OF_THE_VERB.get(verb, set()) | DECIDED_BY_THE_VERB.get(verb, set()):
            continue
        field = model.model_fields[name]
        default = getattr(option.default, "value", option.default)
        if option.multiple and field.default == ():
            default = default or ()
        if not field.is_required() and field.default_factory is None:
            assert default == field.default, (
                f"--{name} of `{verb}` has the default {default}, "
                f"{model.__module__} has {field.default}"
            )


def test_log_options_are_those_of_the_services() -> None:
    """The command line's words for logs are those that the services take."""
    where = "tidegate/cli/options.py and tidegate_common/logs.py differ"
    assert tuple(LogFormatName) == get_args(LogFormat), where
    assert tuple(LogLevelName) == get_args(LogLevel), where
