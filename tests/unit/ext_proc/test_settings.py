"""Settings and the command line."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from ext_proc.__main__ import main
from ext_proc.settings import EXIT_USAGE, PickerSettings


def test_defaults_are_loopback():
    """Nothing listens beyond this machine by default."""
    settings = PickerSettings()
    assert (settings.listen, settings.xds) == ("127.0.0.1:18001", "127.0.0.1:18000")
    assert settings.metrics == "127.0.0.1:18081"
    assert settings.id.startswith("picker-")


@pytest.mark.parametrize(
    "bad",
    [{"listen": "nope"}, {"scrape_interval": 0}, {"id": ""}, {"log_level": "loud"}, {"x": 1}],
)
def test_bad_settings_are_refused(bad):
    """Each out-of-range value is an error."""
    with pytest.raises(ValidationError):
        PickerSettings.model_validate(bad)


def test_a_bad_option_is_named(capsys):
    """The command line names the wrong option, and ends with 2."""
    assert main(["--scrape-interval", "soon"]) == EXIT_USAGE
    assert capsys.readouterr().err.startswith("--scrape-interval 'soon':")
