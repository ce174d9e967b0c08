"""What makes two descriptions of a model the same, and which one counts. Pure.

Rules:

1. The description that most replicas give counts, of equally many that of the first.
2. A configuration is compared without what does not say what the model is:

   * fields at their default: a server that completes configurations (``auto_complete_config``)
     writes them, one that does not leaves them out. So a ``dynamic_batching`` without settings,
     which completion adds, is none;
   * the name, GPUs and host policy of instances, which follow from the machine;
   * the order of inputs and outputs, which completion takes from the model.
3. The order of keys, and in metadata that of inputs and outputs, makes no difference.

Source: ``model_config.proto`` of Triton.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_DEPTH: Final = 64
"""Most levels of a configuration."""
TENSORS: Final = ("input", "output", "inputs", "outputs")
"""Keys of the lists whose order does not matter: of a configuration, and of metadata."""
INSTANCES: Final = "instance_group"
OF_THE_MACHINE: Final = frozenset({"name", "gpus", "host_policy", "secondary_devices"})
"""Fields of ``INSTANCES`` that do not count."""
_DEFAULT_NAMES: Final = frozenset(
    {"FORMAT_NONE", "PRIORITY_DEFAULT", "TYPE_INVALID", "KIND_AUTO", "MODEL_CONTROL_NONE"}
)
"""Names of enumerations' first values, which mean that nothing is set."""


class ParityError(ValueError):
    """The answer of a replica does not describe a model."""


def usual(forms: Mapping[str, str]) -> tuple[str, frozenset[str]]:
    """Return a replica whose description counts, and the replicas that differ from it (rule 1).

    Args:
        forms: Canonical form by replica, at least one.
    """
    counts: dict[str, int] = {}
    for form in forms.values():
        counts[form] = counts.get(form, 0) + 1
    first = max(forms, key=lambda replica: counts[forms[replica]])  # the first of equal ones
    return first, frozenset(each for each, form in forms.items() if form != forms[first])


def digest(value: Any) -> str:
    """Return the SHA-256 of a JSON value, hexadecimal; the order of keys does not matter."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def canonical(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration without what does not count (rule 2).

    Raises:
        ParityError: It is nested too deeply.
    """
    made = unordered(config)
    if isinstance(made.get(INSTANCES), list):
        made[INSTANCES] = [
            {key: value for key, value in each.items() if key not in OF_THE_MACHINE}
            if isinstance(each, dict)
            else each
            for each in made[INSTANCES]
        ]
    found = _pruned(made, 0)
    return found if isinstance(found, dict) else {}


def unordered(described: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration or metadata with inputs and outputs in the order of their names."""
    made = dict(described)
    for field in TENSORS:
        if isinstance(made.get(field), list):
            made[field] = sorted(made[field], key=_name_of)
    return made


def _pruned(value: Any, depth: int) -> Any:
    """Return a value without fields at their default; ``None`` = it is one itself."""
    if depth > MAX_DEPTH:
        raise ParityError("the configuration is nested too deeply")
    if isinstance(value, dict):
        kept = {key: _pruned(each, depth + 1) for key, each in value.items()}
        return {key: each for key, each in kept.items() if each is not None} or None
    if isinstance(value, list):
        # An element keeps its place: a list of two empty elements is not one of none.
        return [_or_empty(_pruned(each, depth + 1), each) for each in value] or None
    if value in (0, "", False) or value is None or value in _DEFAULT_NAMES:
        return None
    return str(value) if isinstance(value, float) and value != value else value  # noqa: PLR0124


def _or_empty(pruned: Any, value: Any) -> Any:
    if pruned is not None:
        return pruned
    return {} if isinstance(value, dict) else [] if isinstance(value, list) else value


def _name_of(tensor: Any) -> str:
    return str(tensor.get("name", "")) if isinstance(tensor, dict) else ""
