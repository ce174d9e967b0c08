"""What PEM files say without a key."""

from __future__ import annotations

import ssl
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.certificates import Authority
from tidegate_common.tls.pem import validity


def test_the_end_of_a_certificate_is_read(tmp_path) -> None:
    """It is the one that Python reads."""
    pair = Authority(tmp_path, "ca").sign("a", "DNS:a.example", days=3)
    found = validity(pair.certificate.read_bytes()).ends
    assert found == pytest.approx(time.time() + 3 * 86_400, abs=60)


def test_a_year_of_four_digits_is_read(tmp_path) -> None:
    """Certificates beyond 2049 write the time in another form."""
    pair = Authority(tmp_path, "ca").sign("a", "DNS:a.example", days=36_500)
    found = validity(pair.certificate.read_bytes()).ends
    assert found == pytest.approx(time.time() + 36_500 * 86_400, abs=60)


BEGIN, END = b"-----BEGIN CERTIFICATE-----", b"-----END CERTIFICATE-----"


@pytest.mark.parametrize("text", [b"", BEGIN, BEGIN + b"\n" + END, END + BEGIN])
def test_a_file_without_a_certificate_is_refused(text: bytes) -> None:
    """A key, an empty file or half a file."""
    with pytest.raises(ValueError, match="certificate"):
        validity(text)


@given(st.binary(max_size=200))
def test_no_bytes_end_in_another_error(der: bytes) -> None:
    """The file is an operator's, but it may be anything."""
    with pytest.raises(ValueError, match="cannot be read"):
        validity(ssl.DER_cert_to_PEM_cert(der).encode())
