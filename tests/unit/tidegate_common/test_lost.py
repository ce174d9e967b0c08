"""Why a stream ended, for a log that people read."""

from __future__ import annotations

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate_common.lost import MAX_CHARS, why_lost

REFUSED = (
    "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:18000: Failed to"
    " connect to remote host: Connection refused"
)


@pytest.mark.parametrize(
    ("status", "details", "words"),
    [
        ("UNAVAILABLE", REFUSED, "not reached: connection refused"),
        ("UNAVAILABLE", f"{REFUSED} (111)", "not reached"),
        ("UNAVAILABLE", "DNS resolution failed for x:1: C-ares status", "name not found"),
        ("UNAVAILABLE", "Socket closed", "connection closed"),
        ("UNAVAILABLE", "ping timeout", "silent"),
        ("UNAVAILABLE", "Ssl handshake failed: CERTIFICATE_VERIFY_FAILED: self", "not trusted"),
        ("UNAVAILABLE", "the control server is stopping", "the control server is stopping"),
        ("PERMISSION_DENIED", "no role for tls", "PERMISSION_DENIED: no role for tls"),
        ("UNAVAILABLE", None, "UNAVAILABLE"),
    ],
)
def test_the_reason_is_in_plain_words(status: str, details: str | None, words: str) -> None:
    """What the other service says itself is kept."""
    assert why_lost(status, details).endswith(words)
    assert "ipv4" not in why_lost(status, details)


@given(st.sampled_from([each.name for each in grpc.StatusCode]), st.text(max_size=2000))
def test_any_words_give_a_bounded_reason(status: str, details: str) -> None:
    """Another service may send anything."""
    said = why_lost(status, details)
    assert 0 < len(said) <= MAX_CHARS + len(status) + 2


async def test_a_port_where_nobody_listens_is_refused() -> None:
    """GRPC still writes it as this module expects."""
    async with grpc.aio.insecure_channel("127.0.0.1:1") as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary("/a/b")(b"", timeout=10)
    error = caught.value
    assert why_lost(error.code().name, error.details()) == "not reached: connection refused"
