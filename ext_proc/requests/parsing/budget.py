"""The bounds on the work of reading one request, in one place.

Rules:

1. No reading costs more than about 2 ms of CPU, whatever the bytes. Each bound below limits one
   kind of work, and says what a unit of it costs on a core of 2.5 GHz.
2. What is counted decides, never a clock: the same bytes are read, or refused, on each machine.
3. Beyond a bound a request is read in part where the rest only improves the choice of a replica;
   it is refused (``too-complex``) where a replica would act on what was not read.
"""

from __future__ import annotations

from typing import Final

from ext_proc.requests.parsing.errors import UnsoundRequest
from ext_proc.routing.values.refusal import RefusalKind

MAX_JSON_BYTES: Final = 4 * 2**20
"""Whole JSON larger than this is read as if cut off. A byte of text costs 1 ns, of white space 2.5;
so bytes that a client sent beyond the first MiB are the one work that may exceed 2 ms."""

MAX_CUT_BYTES: Final = 128 * 2**10
"""Maximum bytes read of a cut document: the most that Envoy sends in ``peek``."""

FREE_BYTES: Final = 8 * 2**10
"""Shorter JSON is not counted: it is within all bounds."""

MAX_CONTAINERS: Final = 12_288
"""Maximum arrays, and objects, of a JSON document; 40 to 100 ns each."""

MAX_COMMAS: Final = 100_000
"""Maximum commas of a whole JSON document, one for each number; 20 ns each. With more it is read as
if cut off."""

MAX_SECOND_BYTES: Final = MAX_CUT_BYTES + 2**10
"""Maximum bytes of JSON that is given to a second parser (``replica_json``): a first part that was
closed has a few more than ``MAX_CUT_BYTES``."""

MAX_SECOND_UNITS: Final = 10_240
"""Maximum units of it, 80 ns each: 1 for an array, 4 for an object and for a key, 1/4 for any other
value. Brackets, colons and commas in texts count too."""

MAX_ESCAPES: Final = 1024
"""Maximum backslashes of JSON that is repaired for a second parser; 0.5 us each."""

MAX_REWRITTEN: Final = 256 * 2**10
"""Maximum bytes of a gRPC message that is given to protobuf's own parser; 3 ns each."""

MAX_UNEVEN: Final = 2048
"""Maximum elements and arrays of a level that has both; 0.1 us each."""

MAX_LEVELS: Final = 1024
"""Maximum levels of nested arrays of all tensors, those of one element aside; 1 us each."""

MAX_INFLATED: Final = MAX_CUT_BYTES
"""Maximum bytes inflated of a body or message; 3 ns each for zeros, 11 ns for text."""

MAX_COMPRESSED: Final = 16 * 2**10
"""Maximum compressed bytes that are read; up to 95 ns each, where every 11 are a block of DEFLATE
with a table of its own and without content."""

QUIET_BYTES: Final = 4 * 2**10
"""Longer bodies are read without garbage collection: a collection of all that a process holds takes
20 ms, and a document of many arrays would start it."""

MAX_FIELDS: Final = 2048
"""Maximum fields of a gRPC message, nested ones included; 0.8 us each. Two bytes of a longer tag or
length count as a field."""

MAX_INPUTS: Final = 800
"""Maximum inputs of an inference request, and outputs; 1.5 us each, over gRPC 3 to 5."""

MAX_DIMENSIONS: Final = 4096
"""Maximum dimensions of all shapes of a request in JSON; 0.1 us each."""

MAX_LONG_DIMENSIONS: Final = 512
"""Maximum dimensions of those shapes of a gRPC request that have more than 16 bytes; up to 2 us
each."""

MAX_PACKED: Final = 4096
"""Maximum integers read of a typed tensor of gRPC; 0.3 us each."""

MAX_PACKED_BYTES: Final = 2 * MAX_PACKED
"""Maximum bytes of them; 0.2 us each."""

MAX_TEXTS: Final = 1024
"""Maximum texts read of a batch; 0.5 us each."""

MAX_PIECES: Final = 2560
"""Texts, roles, digests and marks of a chat after which its rest is unread, from the next message
that is more than a text and a role; 0.1 to 0.6 us each."""


MAX_PROMPTS: Final = 64
"""Maximum prompts of a batch whose blocks are found; the rest counts by its length only."""


class Levels:
    """What is left of ``MAX_LEVELS`` for one request."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = MAX_LEVELS

    def take(self) -> None:
        """Count one level.

        Raises:
            UnsoundRequest: There are too many.
        """
        self.left -= 1
        if self.left < 0:
            raise too_complex("the arrays of the inputs nest too often; send them flat")


def too_complex(message: str) -> UnsoundRequest:
    """Return the error of a request that costs too much to read."""
    return UnsoundRequest(RefusalKind.TOO_COMPLEX, message)
