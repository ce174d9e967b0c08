"""Experiments: requests whose replica chance decides, to learn who is at fault for failures.

Rules:

1. While a replica is suspected (``health.experiment``), a request that is drawn to it, or that
   nothing draws anywhere, is part of the experiment: it gets the suspect first, or not at all.
2. Drawn is a request whose replica was picked for something that callers can know or choose: a
   cached prompt that others lack, an adapter, what a hash is made of.
3. What cannot be moved is never part of one: leased sequences, sessions of ``session-sticky``,
   suspects of a death, and requests that the suspect cannot get.
4. Nothing here is called while no failures are known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ext_proc.routing.health.experiment import FEW, MANY, identity
from ext_proc.routing.pipeline.scheduler import cheapest

if TYPE_CHECKING:
    from ext_proc.routing.health.conditions import Conditions
    from ext_proc.routing.pipeline.scheduler import Choice
    from ext_proc.routing.values.rng import Rng

SEVERAL: Final = 2


def assigned(choice: Choice, order: list[int], conditions: Conditions, rng: Rng) -> list[int]:
    """Return the order of candidates as an experiment decides it, and note that in the choice.

    Args:
        choice: The choice; its ``experiment`` is set if the request is part of one.
        order: Indices of the pick and its fallbacks by price.
        conditions: Knows the suspects.
        rng: Source of randomness.
    """
    context = choice.context
    request, candidates = context.request, context.candidates
    fixed = choice.leased or request.care is not None or len(candidates) < SEVERAL
    ejection = conditions.ejections.get(request.pool)
    if fixed or ejection is None or choice.policy.stays(context):
        return order
    crowd = len(candidates)
    if crowd > MANY and not choice.sampled and rng.random() * crowd >= FEW:
        return order  # the others are a sample
    drawn, picked = _is_drawn(choice, order[0], conditions), candidates[order[0]].key
    found = ejection.assign(picked, context.now, rng, drawn=drawn)
    if found is None:
        return order
    key, gets_it = found
    subject = next((i for i, each in enumerate(candidates) if each.key == key), None)
    if subject is None:
        return order
    choice.experiment = identity(key, drawn=drawn, gets_it=gets_it)
    others = [i for i in cheapest(choice.prices, len(order) + 1, rng) if i != subject]
    return [subject, *others][: len(order)] if gets_it else others[: len(order)]


def _is_drawn(choice: Choice, index: int, conditions: Conditions) -> bool:
    held, features = choice.context.matched, choice.context.request.features
    return (
        choice.policy.keyed
        or held[index] > min(held)
        or features.adapter is not None
        or features.model in conditions.adapters
    )
