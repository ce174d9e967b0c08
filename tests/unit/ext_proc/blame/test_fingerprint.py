"""Fingerprints of requests."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ext_proc.blame.fingerprint import BYTES, Fingerprints, shown

texts = st.text(max_size=4)
requests = st.tuples(texts, texts, st.binary(max_size=8))


@given(requests, requests)
def test_two_requests_have_one_fingerprint_if_they_are_equal(first, second):
    """Pool, model and body are told apart wherever one ends and the next begins."""
    made = Fingerprints(7)
    assert (made.of(*first) == made.of(*second)) is (first == second)
    assert len(made.of(*first)) == BYTES


@given(requests)
def test_the_seed_makes_the_fingerprint(request):
    """Pickers of one fleet agree, and no other party can compute it."""
    assert Fingerprints(7).of(*request) == Fingerprints(7).of(*request)
    assert Fingerprints(7).of(*request) != Fingerprints(8).of(*request)


def test_a_broken_surrogate_in_a_model_name_is_no_error():
    """JSON can carry one, so a client can send it."""
    assert Fingerprints(0).of("llm", "\ud800", b"")


def test_only_a_half_is_shown():
    """Logs and pages are for comparing, not for computing."""
    assert len(shown(bytes(BYTES))) == BYTES
