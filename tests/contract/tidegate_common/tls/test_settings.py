"""Options about identity."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from ext_proc.__main__ import main as picker
from ext_proc.settings import PickerSettings
from support.identities import Machines, encrypted
from tidegate_common.tls.settings import secured
from xds_server.__main__ import main as control
from xds_server.app import EXIT_CANNOT_START

FILES = {"tls_cert": "/c", "tls_key": "/k", "tls_ca": "/a"}


@pytest.mark.parametrize("missing", FILES)
def test_half_of_the_files_is_refused(missing: str) -> None:
    """A service with a forgotten file would be plain."""
    given = {name: value for name, value in FILES.items() if name != missing}
    with pytest.raises(ValidationError, match="belong together"):
        PickerSettings(**given)


def test_roles_without_certificates_are_refused() -> None:
    """They would have no effect."""
    with pytest.raises(ValidationError, match="--role needs certificates"):
        PickerSettings(role=("admin=a.example",))


@pytest.mark.parametrize("main", [picker, control])
def test_the_command_line_says_what_is_wrong(main, capsys: pytest.CaptureFixture[str]) -> None:
    """In one line, with usage code 2."""
    needed = ["--fleet", "f.yaml"] if main is control else []
    try:
        code = main([*needed, "--tls-cert", "/c"])
    except SystemExit as error:
        code = error.code
    assert code == 2
    assert "--tls-cert, --tls-key and --tls-ca belong together" in capsys.readouterr().err


def test_settings_survive_the_way_to_a_worker() -> None:
    """Workers get them as JSON."""
    given = PickerSettings(**FILES, role=("admin=a.example",), health_port=1)
    assert PickerSettings.model_validate_json(given.model_dump_json()) == given


@pytest.mark.parametrize("main", [picker, control])
def test_a_passphrase_is_in_no_message(main, tmp_path, capfd: pytest.CaptureFixture[str]) -> None:
    """A key that needs one ends the start, and is not asked for on a terminal."""
    own = Machines(tmp_path)
    key = encrypted(own.client("picker").pair, "planted-secret")
    file = tmp_path / "fleet.yaml"
    file.write_text(
        "pools: [{name: a, match: {models: [a]}, endpoints: [{http: '127.0.0.1:1', id: r}]}]"
    )
    needed = ["--fleet", str(file)] if main is control else []
    files = ["--tls-cert", str(own.files.certificate), "--tls-ca", str(own.files.ca)]
    code = main([*needed, *files, "--tls-key", str(key)])
    said = capfd.readouterr()
    assert code == EXIT_CANNOT_START
    assert "has a passphrase" in said.err + said.out
    assert "planted-secret" not in said.err + said.out


def test_without_certificates_on_loopback_nothing_is_checked() -> None:
    """As on one machine."""
    assert secured(PickerSettings()) is None
