"""Whether replicas have the same model: what describes it, and the differences in words. Pure.

Rules:

1. Compared are a digest of the configuration without what does not say what the model is, the
   versions, the platform or backend, and name, type and shape of inputs and outputs
   (``tidegate_common.parity``, whose rules hold).
2. What one replica has and completion cannot have made, such as another ``max_batch_size``, shape,
   parameter or policy, is a difference.
3. At most ``MAX_DIFFERENCES`` are told, and of each at most ``MAX_PATHS`` places.

Sources: ``model_config.proto`` of Triton; KServe's metadata.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tidegate_common.parity import ParityError, canonical, digest, usual

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

MAX_DIFFERENCES: Final = 32
MAX_PATHS: Final = 8
MAX_VALUE_CHARS: Final = 60
MAX_VERSIONS: Final = 1000
MAX_TENSORS: Final = 1024


class ModelDescription(NamedTuple):
    """What a replica says of a model."""

    config: Mapping[str, Any]
    """Its configuration without what does not count."""
    versions: tuple[str, ...]
    platform: str
    """Its platform, or else its backend."""
    tensors: tuple[str, ...]
    """Each input and output with type and shape, in words."""
    has_warmup: bool
    """The server sends requests of the model's own before the model is ready."""

    @property
    def digest(self) -> str:
        """SHA-256 of the configuration, hexadecimal."""
        return digest(self.config)


def described(config: bytes, metadata: bytes) -> ModelDescription:
    """Return what a replica says of a model.

    Args:
        config: Its answer to ``/v2/models/M/config``.
        metadata: Its answer to ``/v2/models/M``.

    Raises:
        ParityError: They are no configuration, or no metadata.
    """
    whole, told = _object(config), _object(metadata)
    versions = told.get("versions", [])
    if not isinstance(versions, list) or not all(isinstance(each, str) for each in versions):
        raise ParityError("the metadata have no list of versions")
    tensors = []
    for field in ("inputs", "outputs"):
        listed = told.get(field, [])
        if not isinstance(listed, list) or len(listed) > MAX_TENSORS:
            raise ParityError(f"the metadata have no list of {field}")
        tensors += [_tensor(field[:-1], each) for each in listed]
    return ModelDescription(
        canonical(whole),
        tuple(sorted(versions, key=lambda each: (len(each), each)))[:MAX_VERSIONS],
        str(told.get("platform") or whole.get("platform") or whole.get("backend") or "")[:256],
        tuple(sorted(tensors)),
        bool(whole.get("model_warmup")),
    )


def differences(models: Mapping[str, ModelDescription], wanted: str = "") -> list[str]:
    """Return what differs between replicas, in sentences; none = they have the same.

    Args:
        models: What each replica says.
        wanted: A version that each must have; empty = any.
    """
    found: list[str] = []
    if not models:
        return found
    if wanted:
        found += [
            f"{name} has no version {wanted} but {_listed(each.versions)}"
            for name, each in models.items()
            if wanted not in each.versions
        ]
    found += _unlike(models, "versions", lambda each: _listed(each.versions))
    found += _unlike(models, "platform", lambda each: each.platform or "none")
    found += _unlike(models, "inputs and outputs", lambda each: _listed(each.tensors))
    digests = {name: each.digest for name, each in models.items()}
    first, others = usual(digests)
    for name in filter(others.__contains__, digests):
        places = list(_places("", models[name].config, models[first].config))
        more = f" and {len(places) - MAX_PATHS} more" if len(places) > MAX_PATHS else ""
        found.append(
            f"configuration: {name} differs from {first} in {'; '.join(places[:MAX_PATHS])}"
            f"{more} ({digests[name][:12]}, {digests[first][:12]})"
        )
    if len(found) > MAX_DIFFERENCES:
        return [*found[: MAX_DIFFERENCES - 1], f"and {len(found) - MAX_DIFFERENCES + 1} more"]
    return found


def _unlike(
    models: Mapping[str, ModelDescription], what: str, form: Callable[[ModelDescription], str]
) -> Iterator[str]:
    forms = {name: form(each) for name, each in models.items()}
    first, others = usual(forms)
    for name in filter(others.__contains__, forms):
        yield f"{what}: {name} has {forms[name]}, {first} has {forms[first]}"


def _places(path: str, one: Any, other: Any) -> Iterator[str]:
    """Yield where two canonical values differ, with both values."""
    if one == other:
        return
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted(one.keys() | other.keys()):
            here = f"{path}.{key}" if path else key
            yield from _places(here, one.get(key), other.get(key))
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for place, (mine, its) in enumerate(zip(one, other, strict=True)):
            yield from _places(f"{path}[{place}]", mine, its)
    else:
        yield f"{path[:120]} ({_shown(one)}, {_shown(other)})"


def _shown(value: Any) -> str:
    text = "not set" if value is None else json.dumps(value, sort_keys=True)
    return text if len(text) <= MAX_VALUE_CHARS else f"{text[:MAX_VALUE_CHARS]}..."


def _tensor(kind: str, given: Any) -> str:
    try:
        shape = ",".join(str(int(each)) for each in given["shape"])
        return f"{kind} {given['name']!s:.120} {given['datatype']!s:.20} [{shape:.200}]"
    except (KeyError, TypeError, ValueError) as error:
        raise ParityError(f"an {kind} has no name, type or shape") from error


def _listed(values: tuple[str, ...]) -> str:
    text = ", ".join(values) or "none"
    return text if len(text) <= MAX_VALUE_CHARS * 4 else f"{text[: MAX_VALUE_CHARS * 4]}..."


def _object(data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ParityError("the answer is no JSON") from error
    if not isinstance(found, dict):
        raise ParityError("the answer is no object")
    return found
