"""Which sessions a rollout moves: the weights of its steps under the draw of pickers and Envoys."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ext_proc.routing.pipeline.filters import draw_variant, session_point
from ext_proc.routing.values.pool import Pool, Variant
from ext_proc.routing.values.request import Features, Form
from tidegate_api.pools import MAX_WEIGHT_SUM
from xds_server.applications.canary.controller import TOTALS, CanaryController, spec_of
from xds_server.applications.canary.plan import CanaryPlan
from xds_server.fleet.model.fleet import VariantSpec

NAMES = st.permutations(["v1", "v2", "v3"])
STEPS = st.lists(
    st.floats(0.01, 99.0), min_size=1, max_size=6, unique_by=lambda each: round(each, 3)
)
SESSIONS = [f"session-{number}" for number in range(200)]


def moved(names: list[str], weights: dict[str, int]) -> set[str]:
    """Return the sessions that the picker's draw sends to v2."""
    pool = Pool("llm", variants=tuple(Variant(name, weights[name]) for name in names))
    features = [Features(Form.GENERATE, session=each) for each in SESSIONS]
    return {
        each.session or ""
        for each in features
        if draw_variant(pool, each, {}, drawn=None, rng=None) == "v2"  # type: ignore[arg-type]
    }


def steps_of(names: list[str], steps: list[float], chance: float) -> list[dict[str, int]]:
    """Return the weights before a rollout, and those of its steps."""
    before = {name: 100 if name == "v1" else 0 for name in names}
    plan = CanaryPlan((*sorted(steps), 100.0), 60.0, 20)
    controller = CanaryController(spec_of("r1", "llm", before, "v2", chance), plan, 0.0)
    found = [before]
    for percent in plan.steps:
        canary = controller._weight(percent)
        shares = {"v2": canary, "v1": controller.spec.total - canary}
        found.append({name: shares.get(name, 0) for name in names})
    return found


@settings(max_examples=20, deadline=None)
@given(NAMES, STEPS, st.floats(0.0, 0.999))
def test_a_step_moves_sessions_to_the_canary_only(
    names: list[str], steps: list[float], chance: float
) -> None:
    """Those of a step are part of those of the next one, wherever the variants are listed."""
    groups = [moved(names, each) for each in steps_of(names, steps, chance)]
    assert groups[0] == set()
    assert groups[-1] == set(SESSIONS)
    for smaller, larger in pairwise(groups):
        assert smaller <= larger


def test_each_rollout_moves_other_sessions() -> None:
    """Those that got one canary are in the next as often as others."""
    many = [f"session-{number}" for number in range(20_000)]
    both = 0
    first, then = TOTALS[123_456], TOTALS[654_321]
    for each in many:
        low = session_point(each, first) < first // 10
        both += low and session_point(each, then) < then // 10
    # Binomial with a mean of 200: six standard deviations are 84.
    assert 116 <= both <= 284


@pytest.mark.parametrize("total", [TOTALS[0], TOTALS[-1]])
def test_the_weights_of_a_rollout_are_within_all_bounds(total: int) -> None:
    """Of the fleet file, of the wire, and of the sum that Envoy takes."""
    assert total <= MAX_WEIGHT_SUM < 2**32
    assert VariantSpec.model_validate({"name": "v1", "weight": total}).weight == total
