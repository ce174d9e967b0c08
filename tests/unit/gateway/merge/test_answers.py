"""Which answers of replicas count."""

from __future__ import annotations

from gateway.merge.answers import MAX_NAMED, MAX_NOTE, Said, good_of, note, usual_error


def good(replica: str, body: bytes = b"") -> Said:
    """Return a good answer."""
    return Said(replica, 200, body, good=True)


def test_the_error_of_most_counts():
    """A single replica with an error of its own does not speak for the fleet."""
    said = [Said("r1", 500), Said("r2", 404, b"x"), Said("r3", 404, b"x")]
    assert usual_error(said) == said[1]


def test_of_equally_many_errors_the_first_counts():
    """So that the same question has the same answer again."""
    said = [Said("r1", 500), Said("r2", 404), Said("r3", fault="timeout")]
    assert usual_error(said) == said[0]


def test_silence_is_no_error_to_pass_on():
    """There is nothing to pass on."""
    assert usual_error([Said("r1", fault="timeout")]) is None
    assert usual_error([]) is None


def test_a_fault_is_no_good_answer():
    """Whatever came before the fault does not count."""
    assert good_of([Said("r1", 200, good=True, fault="malformed"), good("r2")]) == [good("r2")]


def test_the_note_tells_how_many_and_names_the_others():
    """A caller sees what an answer is made of."""
    said = [good("r1"), good("r2"), Said("r3", fault="timeout"), Said("r4", 404)]
    assert note(said, {"r2": "differs"}) == "2/4; r2=differs, r3=timeout, r4=refuses"
    assert note([good("r1")], {}) == "1/1"


def test_the_note_is_bounded():
    """A header must not grow with the fleet."""
    said = [Said(f"{'r' * 200}{n}", fault="timeout") for n in range(1000)]
    made = note(said, {}, unasked=5)
    assert len(made) <= MAX_NOTE
    short = note([Said(f"r{n}", fault="timeout") for n in range(MAX_NAMED + 3)], {}, 2)
    assert short.startswith(f"0/{MAX_NAMED + 5}; r0=timeout")
    assert short.endswith("more=3, unasked=2")
