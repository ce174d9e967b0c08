"""The order of an engine's batches; ``test_follower.py`` has most of it."""

from __future__ import annotations

from ext_proc.telemetry.kv_events.sequence import Sequence, Step


def test_a_replay_that_clears_the_cache_is_complete_at_its_end():
    """The batches after the one that cleared it have stored blocks since."""
    sequence = Sequence(can_replay=True)
    assert sequence.live(9) is Step.REPLAY
    for number in (5, 6, 7):
        assert sequence.replayed(number, first=number == 5) is Step.APPLY
        if number == 6:
            sequence.cleared()
        assert not sequence.complete
    sequence.replay_ended(empty=False)
    assert sequence.complete


def test_a_live_batch_that_clears_the_cache_makes_it_known_at_once():
    """Also after a replay that did not reach far enough back."""
    sequence = Sequence(can_replay=True)
    sequence.replayed(5, first=True)
    sequence.replay_ended(empty=False)
    assert sequence.live(6) is Step.APPLY
    assert not sequence.complete
    sequence.cleared()
    assert sequence.complete
