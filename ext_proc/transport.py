"""How gRPC reads its sockets, chosen before it is loaded.

gRPC's event engine reads each server connection in threads of its own and hands what came to the
completion queue's thread, which wakes ours: two changes of thread for each step of a stream. Its
older listener lets the completion queue's thread read: one change less, and a sixth of the CPU of
a bare picker (``bench/bare_picker.py``; figures in ``docs/performance.md``).

Source: ``GRPC_EXPERIMENTS`` in gRPC's ``doc/environment_variables.md`` and
``src/core/lib/experiments/experiments.yaml``. A name that a later release does not know is logged
by it and changes nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import MutableMapping

VARIABLE: Final = "GRPC_EXPERIMENTS"
LISTENER: Final = "-event_engine_listener"


def choose(environment: MutableMapping[str, str]) -> None:
    """Name the cheaper listener, unless the operator has named experiments already.

    Args:
        environment: The process's, before gRPC begins; children inherit it.
    """
    environment.setdefault(VARIABLE, LISTENER)
