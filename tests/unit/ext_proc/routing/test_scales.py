"""Bytes per token, learned from engines' counts."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Final

import pytest

from ext_proc.routing.scales import MAX_SENT, STALE_S, Scales, prompt_bytes
from ext_proc.routing.values.pool import Endpoint, EndpointKey, Pool, Variant
from ext_proc.routing.values.reading import Reading
from ext_proc.routing.values.request import Features, Form, Request
from ext_proc.routing.values.scale import BYTES_PER_TOKEN, LEAST, MOST

R1: Final = "r1"


class Engine:
    """An engine of one model, the picker's prompts to it, and other clients' ones.

    Args:
        scale: Bytes per token of the text.
        counts: Its page counts prompts, not only their tokens.
    """

    def __init__(self, scale: float = 4.0, *, counts: bool = True, usage: bool = False) -> None:
        self.scale, self.counts = scale, counts
        self.changes: list[tuple[str, float]] = []
        self.scales = Scales(lambda pool, factor: self.changes.append((pool, factor)))
        endpoint = Endpoint(EndpointKey(R1, 1), "stable", "10.0.0.1:1", None)
        models = frozenset({"m", "n"})
        self.pool = Pool(
            "p", models=models, variants=(Variant("stable", 1),), endpoints=(endpoint,), usage=usage
        )
        self.scales.set_pools({"p": self.pool})
        self.tokens, self.prompts, self.now, self.ticket = 0.0, 0.0, 0.0, 0
        self.page()

    def page(self, seconds: float = 1.0) -> None:
        """Read its page."""
        self.now += seconds
        prompts = self.prompts if self.counts else None
        reading = Reading(self.now, "m", prompt_tokens=self.tokens, prompts=prompts)
        self.scales.observe(R1, (reading,))

    def ask(self, size: int, model: str = "m", tokens: int | None = None) -> int:
        """Send a prompt that is computed and counted."""
        self.ticket += 1
        self.scales.sent(self.ticket, "p", model, R1, size, tokens)
        self.scales.began(self.ticket, R1)
        self.others(1, tokens or size / self.scale)
        return self.ticket

    def others(self, prompts: int, tokens: float) -> None:
        """Count prompts of other clients."""
        self.prompts += prompts
        self.tokens += tokens

    @property
    def found(self) -> float:
        """The pool's scale."""
        return self.scales.of("p")


@pytest.mark.parametrize("scale", [0.25, 1.0, 3.0, 8.0])
@pytest.mark.parametrize("counts", [True, False])
def test_the_scale_is_learned_within_some_prompts(scale, counts):
    """From four prompts (eight that are not counted) roughly, from forty to within 6 %."""
    engine, chance = Engine(scale, counts=counts), random.Random(1)
    for number in range(1, 41):
        engine.ask(chance.randint(500, 5_000))
        engine.page()
        if number == (4 if counts else 8):
            assert engine.found == pytest.approx(scale, rel=1.0 if scale < 1.0 else 0.4)
    assert engine.found == pytest.approx(scale, rel=0.06)
    assert engine.scales.of("p", "m") == pytest.approx(scale, rel=0.06)
    assert engine.scales.of("p", "unlisted") == engine.found


def test_an_engine_counts_prompts_before_the_log_tells_of_them():
    """Pages are a second ahead of the log; mean tokens of a prompt are compared, not sums."""
    engine, chance, late = Engine(4.0), random.Random(4), []
    for number in range(200):
        engine.ticket += 1
        size = chance.randint(500, 5_000)
        engine.scales.sent(engine.ticket, "p", "m", R1, size, None)
        engine.others(1, size / 4.0)
        late.append(engine.ticket)
        if len(late) > 4:
            engine.scales.began(late.pop(0), R1)
        engine.page(0.25)
        if number > 20:
            assert engine.found == pytest.approx(4.0, rel=0.35)
    assert engine.found == pytest.approx(4.0, rel=0.1)


def test_a_prompt_of_a_model_that_its_pool_lists_no_more_counts_for_the_pool():
    """It was computed before the change of the fleet and is told of after it."""
    engine = Engine(4.0)
    for _ in range(8):
        engine.ask(2_000, "n")
    engine.scales.set_pools({"p": replace(engine.pool, models=frozenset({"m"}))})
    engine.page()
    assert engine.found == pytest.approx(4.0, rel=0.4)
    assert engine.scales.describe("p")["prompts"] == 8


def test_what_is_measured_in_tokens_is_converted_at_each_change():
    """The factors of all changes together lead from the default to the scale."""
    engine = Engine(0.5)
    for _ in range(50):
        engine.ask(2_000)
        engine.page()
    product = 1.0
    for pool, factor in engine.changes:
        assert pool == "p"
        product *= factor
    assert product == pytest.approx(BYTES_PER_TOKEN / engine.found)
    assert len(engine.changes) < 20


def test_other_pickers_with_the_same_traffic_change_nothing():
    """Three of four prompts are theirs; the engine counts all."""
    engine, chance = Engine(3.0), random.Random(2)
    for _ in range(400):
        for _ in range(chance.randint(0, 6)):
            engine.others(1, chance.randint(500, 5_000) / 3.0)
        engine.ask(chance.randint(500, 5_000))
        engine.page()
    assert engine.found == pytest.approx(3.0, rel=0.1)


def test_other_clients_with_longer_prompts_are_told_apart():
    """Their prompts are five times as long, come at times, and are as many as ours."""
    engine, chance = Engine(3.0), random.Random(3)
    for number in range(4_000):
        engine.ask(chance.randint(500, 1_500))
        if number // 200 % 2:
            engine.others(2, 2 * 5_000 / 3.0)
        if number % 4 == 0:
            engine.page()
    assert engine.found == pytest.approx(3.0, rel=0.15)


def test_an_answer_that_tells_its_tokens_is_believed_before_a_counter():
    """With ``telemetry.usage`` other clients do not matter."""
    engine = Engine(2.0, counts=False, usage=True)
    for _ in range(60):
        ticket = engine.ask(1_000)
        engine.scales.told(ticket, 500)
        engine.others(1, 10_000.0)
        engine.page()
    assert engine.found == pytest.approx(2.0, rel=0.06)
    assert engine.scales.describe("p")["from"] == "answers"


def test_models_of_a_pool_have_scales_of_their_own():
    """Where answers tell them, or pages of several models do."""
    engine = Engine(usage=True)
    for _ in range(40):
        engine.scales.told(engine.ask(1_000, "m"), 1_000)
        engine.scales.told(engine.ask(1_000, "n"), 250)
    assert engine.scales.of("p", "m") == pytest.approx(1.0, rel=0.06)
    assert engine.scales.of("p", "n") == pytest.approx(4.0, rel=0.06)


def test_a_page_of_two_models_teaches_each_of_them():
    """Prompts count for the model that they name."""
    engine, tokens = Engine(), {"m": 0.0, "n": 0.0}
    for number in range(120):
        for model, scale in (("m", 1.0), ("n", 8.0)):
            engine.ask(800, model)
            tokens[model] += 800 / scale
        readings = [Reading(float(number), m, prompt_tokens=t) for m, t in tokens.items()]
        engine.scales.observe(R1, readings)
    assert engine.scales.of("p", "m") == pytest.approx(1.0, rel=0.06)
    assert engine.scales.of("p", "n") == pytest.approx(8.0, rel=0.06)


def test_a_restart_of_the_engine_teaches_nothing():
    """A counter that falls is a new one; so is the one after a restart that the picker saw."""
    engine = Engine(2.0)
    for _ in range(50):
        engine.ask(1_000)
        engine.page()
    before = engine.found
    for _ in range(20):
        engine.ask(1_000)
        engine.tokens, engine.prompts = 10.0, 1.0
        engine.page()
        engine.ask(1_000)
        engine.scales.restarted(R1)
        engine.others(0, 50_000.0)
        engine.page()
    assert engine.found == before


def test_a_counter_that_stands_still_teaches_nothing():
    """Prompts of that time do not count when it moves again."""
    engine = Engine(2.0)
    for _ in range(50):
        engine.ask(1_000)
        engine.page()
    before, tokens = engine.found, engine.tokens
    for _ in range(100):
        engine.ask(1_000)
        engine.tokens = tokens
        engine.page(STALE_S / 10)
    for _ in range(64):
        engine.ask(1_000)
    engine.page()
    assert engine.found == pytest.approx(before, rel=0.2)


def test_prompts_of_known_tokens_are_taken_off():
    """Prompts of token ids beside texts, as their number is exact."""
    engine = Engine(2.0)
    for _ in range(60):
        engine.ask(1_000)
        engine.ask(16_000, tokens=4_000)
        engine.page()
    assert engine.found == pytest.approx(2.0, rel=0.06)


@pytest.mark.parametrize(("tokens", "bound"), [(1e12, LEAST), (1e-3, MOST)])
def test_the_scale_is_bounded(tokens, bound):
    """Whatever an engine counts."""
    engine = Engine()
    for _ in range(200):
        engine.ask(1_000)
        engine.others(0, tokens - 250.0 if tokens > 1.0 else -249.9)
        engine.page()
    assert LEAST <= engine.found <= MOST
    assert abs(engine.found / bound - 1.0) < 0.9


def test_prompts_without_a_count_are_bounded():
    """Answers that never tell, and requests that fail, leave at most ``MAX_SENT``."""
    engine = Engine(usage=True)
    for number in range(MAX_SENT + 100):
        engine.scales.sent(number, "p", "m", R1, 100, None)
    assert len(engine.scales) == MAX_SENT
    engine.scales.failed(MAX_SENT + 99)
    assert len(engine.scales) == MAX_SENT - 1


def test_nothing_is_kept_where_no_engine_counts():
    """A pool of Triton models without tokens costs nothing."""
    engine = Engine()
    engine.scales.sent(1, "p", "m", "r2", 100, None)
    assert len(engine.scales) == 0


@pytest.mark.parametrize(
    ("announced", "size"), [(None, 800), ("900", 900), ("99999", 800), ("50", 800), ("x", 800)]
)
def test_a_prompt_that_was_read_in_part_is_as_long_as_its_body(announced, size):
    """If that is announced, and is not so much longer that it may be pictures."""
    features = Features(Form.OPENAI, prompt=b"x" * 800, prompt_is_partial=True)
    headers = {} if announced is None else {"content-length": announced}
    request = Request("p", None, "http", features, headers=headers)
    assert prompt_bytes(request) == size
    features.prompt_is_partial = False
    assert prompt_bytes(request) == 800
