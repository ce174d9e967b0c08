"""Which test worker runs which files, and when.

Files that take longest come first, as a worker that gets one last would work alone.

Real Tritons are started in few of the lab's workers. Three Tritons take ten seconds of a processor,
and as much again while they idle; only half of the files need them. So the first ``TRITON_WORKERS``
workers get the files that do, and the others the rest; whoever of the first has no such file left,
helps the others.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from xdist.scheduler import LoadFileScheduling

if TYPE_CHECKING:
    from collections.abc import Iterable

    from xdist.workermanage import WorkerController

ROOT: Final = Path(__file__).parents[2]
TRITON_WORKERS: Final = 2
LEAST_WORKERS: Final = 4
"""With fewer workers any of them runs any file."""
FIXTURES: Final = {"tritons", "shared", "lend", "lend_once", "new_stack", "new_module_stack"}
"""What starts the worker's Tritons; a fixture ``stack`` does where the file has none of its own."""
LONGEST: Final = {
    "lab": (
        *("test_ended_loads", "test_forged_calls", "test_hostile_clients"),
        *("test_feedback", "test_membership_churn", "test_moved_models", "test_evidence"),
        *("test_placement", "test_operations", "test_closed_edge", "test_retries"),
        *("test_differential", "test_framing", "test_xds_storm", "test_edge_bounds"),
        *("test_found_replicas", "test_edge_hostile", "test_limits", "test_settings"),
        *("test_clients", "test_edge_bypass", "test_gateway_differential"),
    ),
    "process": (
        *("test_on_call", "test_several_hosts", "test_status", "test_reasons"),
        *("test_deadly_requests", "test_compose", "test_foreign_folders", "test_hostile_peers"),
        *("test_incidents", "test_innocents", "test_failures", "test_queue_adversaries"),
        *("test_hung_replicas", "test_canary", "test_clusters_only", "test_edge_keys"),
    ),
}
"""Files that take fifteen seconds and more, by layer; what is missing here only begins later."""
RANKS: Final = {name: place for files in LONGEST.values() for place, name in enumerate(files)}


@cache
def needs_tritons(path: str) -> bool:
    """Return whether a test or a fixture of the file takes the worker's Tritons."""
    defined = [
        node
        for node in ast.walk(ast.parse((ROOT / path).read_text("utf-8")))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]
    taking = set(FIXTURES)
    if "stack" not in {each.name for each in defined}:
        taking.add("stack")
    return any(
        taking & {argument.arg for argument in each.args.args}
        for each in defined
        if each.name.startswith("test_")
        or any("fixture" in ast.unparse(one) for one in each.decorator_list)
    )


def _files(tests: Iterable[str]) -> set[str]:
    """Return the files of tests' ids."""
    return {each.partition("::")[0] for each in tests}


def rank(path: str) -> int:
    """Return the place of a file in the order in which files begin."""
    return RANKS.get(Path(path).stem, len(RANKS))


class LongestFirst(LoadFileScheduling):  # type: ignore[misc]  # xdist's classes are untyped here
    """Gives the longest of the files that are left to the worker that is free."""

    def _assign_work_unit(self, node: WorkerController) -> None:
        units = self.workqueue
        units.move_to_end(min(units, key=lambda unit: min(map(rank, _files(units[unit])))), False)
        super()._assign_work_unit(node)


class FewTritons(LoadFileScheduling):  # type: ignore[misc]  # xdist's classes are untyped here
    """Gives files to workers by the rules above."""

    def _assign_work_unit(self, node: WorkerController) -> None:
        scope = self._next(node)
        if scope is not None:
            self.workqueue.move_to_end(scope, last=False)
            super()._assign_work_unit(node)

    def _reschedule(self, node: WorkerController) -> None:
        if not node.shutting_down and self.workqueue and self._next(node) is None:
            node.shutdown()
        else:
            super()._reschedule(node)

    def _next(self, node: WorkerController) -> str | None:
        """Return the file that a worker is to run next."""
        has_tritons = self.nodes.index(node) < TRITON_WORKERS
        queue = sorted(self.workqueue, key=rank)
        for scope in queue:
            if needs_tritons(scope) == has_tritons:
                return scope
        return queue[0] if queue and has_tritons else None
