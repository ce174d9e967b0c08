"""Certificates from files that change while a service runs."""

from __future__ import annotations

import pytest
import structlog

from support.identities import Machines, encrypted
from tidegate_common.tls.files import REMIND_S, Identity, TlsError, TlsFiles
from tidegate_common.tls.pem import Validity


@pytest.fixture(scope="module")
def pristine(tmp_path_factory) -> Machines:
    """Return an authority with a server's files, which tests of errors do not change."""
    return Machines(tmp_path_factory.mktemp("pristine"))


@pytest.fixture
def machines(tmp_path) -> Machines:
    """Return an authority with a server's files."""
    return Machines(tmp_path)


def test_a_renewed_certificate_is_taken_at_the_second_look(machines: Machines) -> None:
    """Its files are replaced one after the other, so the first look may see half of them."""
    identity = Identity(machines.files)
    before = identity.material
    machines.renew_server()
    assert not identity.look()
    assert identity.look()
    assert identity.material is not before
    assert identity.material.certificate == machines.files.certificate.read_bytes()


def test_unchanged_files_are_not_read_again(machines: Machines) -> None:
    """A look at them costs three stats."""
    identity = Identity(machines.files)
    before = identity.material
    assert not identity.look()
    assert not identity.look()
    assert identity.material is before


def test_a_broken_file_changes_nothing_and_is_said_once(machines: Machines) -> None:
    """The service goes on with what it has."""
    identity = Identity(machines.files)
    before = identity.material
    machines.files.certificate.write_text("broken")
    with structlog.testing.capture_logs() as logs:
        for _ in range(5):
            identity.look()
    assert identity.material is before
    assert [each["event"] for each in logs] == ["certificate_not_taken"]
    assert "contains no certificate" in identity.fault
    machines.renew_server()
    identity.look()
    assert identity.look()
    assert not identity.fault


def test_a_removed_file_changes_nothing(machines: Machines) -> None:
    """As while a volume is remounted."""
    identity = Identity(machines.files)
    machines.files.key.unlink()
    identity.look()
    assert not identity.look()
    assert identity.fault.startswith("cannot read ")


def test_files_that_come_back_as_they_were_are_no_fault(machines: Machines) -> None:
    """What is in force fits them again."""
    identity = Identity(machines.files)
    aside = machines.files.key.with_suffix(".aside")
    machines.files.key.replace(aside)
    identity.look()
    identity.look()
    aside.replace(machines.files.key)
    identity.look()
    assert not identity.fault


def _with(pristine: Machines, **files) -> TlsFiles:
    given = {
        "certificate": pristine.files.certificate,
        "key": pristine.files.key,
        "ca": pristine.files.ca,
    }
    return TlsFiles(**{**given, **files})


def test_a_key_of_another_certificate_is_refused(pristine: Machines) -> None:
    """The message names both files."""
    other = pristine.client("viewer").pair.key
    with pytest.raises(TlsError, match="is not the key of the certificate"):
        Identity(_with(pristine, key=other))


def test_a_key_with_a_passphrase_is_refused_without_asking_for_it(pristine: Machines) -> None:
    """A service that waits for a terminal would hang; the passphrase appears nowhere."""
    key = encrypted(pristine.client("operator").pair, "planted-secret")
    with pytest.raises(TlsError, match="has a passphrase"):
        Identity(_with(pristine, key=key))


def test_an_expired_certificate_is_refused(pristine: Machines) -> None:
    """Every peer would refuse it."""
    old = pristine.expired("picker").pair
    with pytest.raises(TlsError, match="has expired"):
        Identity(_with(pristine, certificate=old.certificate, key=old.key))


def test_authorities_that_are_none_are_refused(pristine: Machines) -> None:
    """Else no peer, or any, would be trusted."""
    with pytest.raises(TlsError, match="contains no certificates"):
        Identity(_with(pristine, ca=pristine.files.key))


def test_a_file_has_a_bound(pristine: Machines, tmp_path) -> None:
    """A device or a log is not read to its end."""
    large = tmp_path / "large"
    large.write_bytes(b"x" * (2**20 + 1))
    with pytest.raises(TlsError, match="is larger than"):
        Identity(_with(pristine, ca=large))


def test_errors_and_representations_contain_nothing_of_a_key(pristine: Machines) -> None:
    """They reach logs."""
    identity = Identity(pristine.files)
    secret = pristine.files.key.read_text().splitlines()[1]
    assert secret not in repr(identity.material)
    swapped = _with(pristine, certificate=pristine.files.key)
    with pytest.raises(TlsError) as caught:
        Identity(swapped)
    assert secret not in f"{caught.value!r}{caught.value.__cause__!r}"


def test_a_certificate_that_ends_soon_is_logged_once_a_day(machines: Machines) -> None:
    """From the last quarter of its life on, and no more once it is replaced."""
    now = [machines_end(machines) - 86_400.0]
    identity = Identity(machines.files, lambda: now[0])

    def logged() -> int:
        with structlog.testing.capture_logs() as logs:
            for _ in range(3):
                identity.look()
        return sum(each["event"] == "certificate_ends_soon" for each in logs)

    assert logged() == 0
    now[0] += 0.76 * 86_400.0
    assert [logged(), logged()] == [1, 0]
    now[0] += REMIND_S
    assert [logged(), logged()] == [1, 0]
    now[0] -= REMIND_S + 0.7 * 86_400.0
    machines.renew_server()
    assert logged() == 0


def machines_end(machines: Machines) -> float:
    """Return when the server's certificate ends, Unix seconds."""
    return Identity(machines.files).material.validity.ends


@pytest.mark.parametrize(
    ("life_days", "left_days", "soon"),
    [(90, 14.1, False), (90, 13.9, True), (20, 5.1, False), (20, 4.9, True), (1, -1, True)],
)
def test_the_last_quarter_of_a_life_is_soon_but_not_months_before_the_end(
    life_days: float, left_days: float, soon: bool
) -> None:
    """Certificates of an hour are replaced each half an hour, those of years weeks before."""
    held = Validity(0.0, life_days * 86_400.0)
    assert held.ends_soon(held.ends - left_days * 86_400.0) is soon
