"""An operation that loads or unloads a model on replicas, and its stored form. Pure."""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Final, Literal, get_args

if TYPE_CHECKING:
    from collections.abc import Sequence

Kind = Literal["load", "unload"]
Phase = Literal[
    "waiting", "checking", "changing", "comparing", "warming", "undoing", "done", "undone", "failed"
]
Place = Literal["unknown", "planned", "calling", "changed", "kept", "undoing", "undone", "stuck"]
"""Where one replica stands:

* ``unknown``: nothing was asked or changed there yet; ``planned``: the call is to be made.
* ``calling``: the call was or may have been sent; ``changed``: it succeeded.
* ``kept``: nothing has to be changed, or the change stays whatever comes.
* ``undoing``: the opposite call was or may have been sent; ``undone``: it succeeded, or nothing had
  been changed; ``stuck``: it failed each time.
"""

ENDED: Final[frozenset[Phase]] = frozenset({"done", "undone", "failed"})
MAX_REPLICAS: Final = 256
MAX_STEPS: Final = 200
"""Most steps that an operation remembers: the first ones and the newest."""
MAX_STEP_CHARS: Final = 400
MAX_REASON_CHARS: Final = 1000
MAX_STORED_WARMUP: Final = 2**20
"""Most bytes of an operation's warm-up requests, together, that are stored with it."""


class OperationError(ValueError):
    """The text is no stored operation."""


@dataclass(frozen=True, slots=True)
class OperationStep:
    """Something that happened."""

    at_unix_ms: int
    text: str


@dataclass(slots=True)
class ModelTarget:
    """A replica of an operation."""

    id: str
    place: Place = "unknown"
    reloaded: bool = False
    """It had the model before, and a load has replaced or restored it: it is not unloaded."""
    tries: int = 0
    """Opposite calls that were begun."""
    called: bool = False
    """A call was or may have been sent."""


@dataclass(slots=True)
class Operation:
    """What is wanted, and how far it has come."""

    number: int
    kind: Kind
    pool: str
    model: str
    version: str
    """The version that must be READY after a load; empty = any."""
    author: str
    reason: str
    parallel: int
    """Most replicas that change at a time."""
    force: bool
    dry_run: bool
    began_unix_ms: int
    targets: list[ModelTarget]
    """In the order of the pool."""
    phase: Phase = "waiting"
    why: str = ""
    """Why it is or was undone; empty = there was no reason to."""
    steps: list[OperationStep] = field(default_factory=list)
    left_out: int = 0
    """Steps that are not remembered."""
    ended_unix_ms: int = 0
    """0 = it has not ended."""
    warmups: int = 0
    """Number of warm-up requests."""
    resumable: bool = False
    """All that it needs is stored, so that the next process can go on with it."""
    resumed: int = 0
    """Restarts over which it has gone on."""
    now: str = ""
    """What its replicas serve since it was undone, in words; empty = it was not, or nothing had
    been changed."""

    @property
    def ended(self) -> bool:
        """Nothing follows any more."""
        return self.phase in ENDED

    def tell(self, at_unix_ms: int, text: str) -> None:
        """Add a step."""
        self.steps.append(OperationStep(at_unix_ms, text[:MAX_STEP_CHARS]))
        if len(self.steps) > MAX_STEPS:
            del self.steps[MAX_STEPS // 2]
            self.left_out += 1


def dump(operation: Operation) -> str:
    """Return an operation as text."""
    return json.dumps(asdict(operation), separators=(",", ":"))


def load(text: str) -> Operation:
    """Return what ``dump`` wrote.

    Raises:
        OperationError: The text is something else.
    """
    try:
        given = json.loads(text)
        targets = [ModelTarget(**each) for each in given.pop("targets")]
        steps = [OperationStep(**each) for each in given.pop("steps")]
        operation = Operation(**given, targets=targets, steps=steps)
        known = (
            operation.kind in get_args(Kind)
            and operation.phase in get_args(Phase)
            and all(each.place in get_args(Place) for each in targets)
            and isinstance(operation.number, int)
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise OperationError("no operation") from error
    if not known:
        raise OperationError("no operation of this version")
    return operation


def dump_warmup(number: int, bodies: Sequence[bytes]) -> str | None:
    """Return an operation's warm-up requests as text; ``None`` = they are too large to store."""
    if sum(map(len, bodies)) > MAX_STORED_WARMUP:
        return None
    return json.dumps([number, *(base64.b64encode(each).decode() for each in bodies)])


def load_warmup(text: str | None, number: int) -> tuple[bytes, ...] | None:
    """Return what ``dump_warmup`` wrote for an operation; ``None`` = it is something else."""
    try:
        given, *bodies = json.loads(text or "")
        found = tuple(base64.b64decode(each, validate=True) for each in bodies)
    except (ValueError, TypeError, binascii.Error, RecursionError):
        return None
    return found if given == number and found else None
