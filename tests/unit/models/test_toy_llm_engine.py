"""The toy model's scheduler."""

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from toyllm.engine import Engine, FullError, RequestTooLargeError, Token
from toyllm.settings import Settings

BLOCK = "x" * 64


def engine(**changes) -> Engine:
    """Return an engine with round costs: 1 ms per prompt token, 10 + 1 per running to decode."""
    values = {
        "prefill_us_per_token": 1000.0,
        "decode_ms_base": 10.0,
        "decode_ms_per_running": 1.0,
        "chunk_tokens": 64,
        "cache_blocks": 64,
        **changes,
    }
    return Engine(Settings(**values), "1")


def run(subject: Engine) -> list[Token]:
    """Run until idle and return all tokens."""
    tokens: list[Token] = []
    while not subject.idle:
        tokens += subject.step().tokens
    return tokens


def test_a_request_gets_as_many_tokens_as_it_asked_for():
    """Only the last token is marked."""
    subject = engine()
    subject.submit(7, "hello", 3)
    tokens = run(subject)
    assert [(token.key, token.position, token.last) for token in tokens] == [
        (7, 0, False),
        (7, 1, False),
        (7, 2, True),
    ]


def test_with_nothing_to_do_an_iteration_is_free():
    """An idle engine takes no time and counts no iteration."""
    subject = engine()
    assert subject.step() == (0.0, ())
    assert subject.load().iterations == 0


def test_generated_tokens_join_the_cache():
    """The next turn of a conversation reuses the answer before it."""
    subject = engine()
    subject.submit(1, BLOCK, 32)
    answer = "".join(token.text for token in run(subject))
    subject.submit(2, BLOCK + answer + "and now?", 1)
    assert run(subject)[0].cached_tokens == 48


def test_prefill_is_first_come_first_served_within_a_chunk():
    """What one prompt leaves of a chunk goes to the next."""
    subject = engine()
    subject.submit(1, BLOCK * 3, 1)
    subject.submit(2, "b" * 64 * 3, 1)
    assert [token.key for token in subject.step().tokens] == [1]
    assert [token.key for token in subject.step().tokens] == [2]


def test_requests_wait_for_memory_in_order():
    """A request that does not fit blocks later ones, so it cannot starve."""
    subject = engine(cache_blocks=8)
    subject.submit(1, BLOCK * 5, 1)
    subject.submit(2, "b" * 64 * 5, 1)
    subject.submit(3, "c", 1)
    subject.step()
    assert subject.load().waiting == 2
    assert [token.key for token in run(subject) if token.last] == [1, 2, 3]


def test_an_empty_prompt_is_answered():
    """An empty prompt gets a first token without computation."""
    subject = engine()
    subject.submit(1, "", 2)
    assert [token.input_tokens for token in run(subject)] == [0, 0]


def test_cancelling_a_waiting_request_takes_it_out_of_the_queue():
    """A cancelled waiting request never runs."""
    subject = engine(max_running=1)
    subject.submit(1, "a", 1)
    subject.submit(2, "b", 1)
    assert subject.cancel(2)
    assert [token.key for token in run(subject)] == [1]


def test_cancelling_something_unknown_is_told():
    """Cancelling an unknown key returns false and changes nothing."""
    assert not engine().cancel(5)


def test_a_request_larger_than_the_cache_is_refused():
    """The error contains the needed and the available number of blocks."""
    with pytest.raises(RequestTooLargeError, match=r"need 65 cache blocks .* has 64"):
        engine().submit(1, BLOCK * 64, 1)


def test_a_request_that_just_fits_is_accepted():
    """The bound itself is allowed."""
    subject = engine()
    subject.submit(1, BLOCK * 63, 16)
    assert len(run(subject)) == 16


@pytest.mark.parametrize("max_tokens", [0, -1, 4097])
def test_max_tokens_outside_its_range_is_refused(max_tokens):
    """The error names the range."""
    with pytest.raises(RequestTooLargeError, match="1 to 4096"):
        engine().submit(1, "a", max_tokens)


def test_the_queue_is_bounded():
    """One more than the bound is refused and changes nothing."""
    subject = engine(max_waiting=2)
    subject.submit(1, "a", 1)
    subject.submit(2, "a", 1)
    with pytest.raises(FullError):
        subject.submit(3, "a", 1)
    assert subject.load().waiting == 2


def test_the_gauges_of_a_prefilling_request():
    """A request in prefill counts as context, with all its blocks reserved."""
    subject = engine()
    subject.submit(1, BLOCK * 10, 16)
    subject.step()
    load = subject.load()
    assert (load.context, load.used_blocks, load.free_blocks, load.max_blocks) == (1, 11, 53, 64)


@settings(max_examples=60, deadline=None)
@given(
    requests=st.lists(
        st.tuples(st.text("ab", max_size=400), st.integers(1, 40), st.integers(0, 30)),
        max_size=20,
    )
)
def test_every_request_ends_exactly_once(requests):
    """With any submissions and cancellations, each request ends once and no block leaks."""
    subject = engine(cache_blocks=16, max_running=3)
    ended: list[int] = []
    accepted = set()
    for key, (prompt, max_tokens, _) in enumerate(requests):
        subject.submit(key, prompt, max_tokens)
        accepted.add(key)
    for step in range(10_000):
        for key, (_, _, cancel_at) in enumerate(requests):
            if cancel_at == step and key % 3 == 0 and subject.cancel(key):
                ended.append(key)
        if subject.idle:
            break
        ended += [token.key for token in subject.step().tokens if token.last]
    assert sorted(ended) == sorted(accepted)
    assert subject.load().used_blocks == 0
