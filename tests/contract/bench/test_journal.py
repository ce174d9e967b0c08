"""Stored runs, and a suite that resumes."""

from __future__ import annotations

import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench import engine
from bench.journal import CODE, ROOT, SHOWING, Journal, code_digest
from bench.peers.environment import Environment
from bench.simulate import replica
from bench.simulate.workload import Workload
from bench.suites import fleet
from bench.suites.context import Context
from bench.suites.fleet_plan import KEYS, FleetCell
from bench.suites.workloads import KINDS, Prepared

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

ROW = {"name": "a", "seed": 0, "cost": 1.5}


def journal(folder: Path, *, fresh: bool = False, **conditions: object) -> Journal:
    """Return a journal with the keys name and seed."""
    return Journal(folder, "x", conditions, ("name", "seed"), fresh=fresh)


def test_a_kept_run_is_there_again(tmp_path: Path) -> None:
    """A new process reads the stored runs and appends to them."""
    journal(tmp_path).add(ROW)
    again = journal(tmp_path)
    assert ("a", 0) in again
    assert ("a", 1) not in again
    again.add({**ROW, "seed": 1})
    assert [row["seed"] for row in journal(tmp_path).rows] == [0, 1]


def test_other_conditions_do_not_meet(tmp_path: Path) -> None:
    """Different conditions have different files; earlier runs are found again."""
    journal(tmp_path, code="1").add(ROW)
    other = journal(tmp_path, code="2")
    assert not other.rows
    assert len(other.others) == 1
    assert journal(tmp_path, code="1").rows == [ROW]


def test_fresh_begins_anew(tmp_path: Path) -> None:
    """``fresh`` drops the runs under the same conditions only."""
    journal(tmp_path, code="1").add(ROW)
    journal(tmp_path, code="2").add(ROW)
    assert not journal(tmp_path, code="2", fresh=True).rows
    assert journal(tmp_path, code="1").rows == [ROW]


@given(cut=st.integers(0, 60))
def test_a_journal_cut_anywhere_is_readable(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    """Complete lines are kept, a truncated one is skipped, and new lines are readable."""
    folder = tmp_path_factory.mktemp("cut")
    made = journal(folder)
    for seed in range(3):
        made.add({**ROW, "seed": seed})
    data = made.path.read_bytes()
    kept = data[: len(data) - cut]
    made.path.write_bytes(kept)
    whole = sum(1 for line in kept.splitlines()[1:] if line.endswith(b"}"))
    again = journal(folder)
    assert len(again.rows) == whole
    again.add({**ROW, "seed": 9})
    assert [row["seed"] for row in journal(folder).rows] == [*range(whole), 9]


def test_the_code_s_digest_leaves_out_what_only_shows(tmp_path: Path) -> None:
    """A change of the picker changes the digest; a change of the report does not."""
    for folder in ("bench/report", "ext_proc", "docs"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "ext_proc" / "a.py").write_text("1")
    before = code_digest(tmp_path)
    (tmp_path / "bench" / "report" / "b.py").write_text("2")
    (tmp_path / "docs" / "c.md").write_text("3")
    assert code_digest(tmp_path) == before
    (tmp_path / "ext_proc" / "a.py").write_text("4")
    assert code_digest(tmp_path) != before


def test_the_code_s_digest_covers_simulator_and_engine() -> None:
    """The digest covers the folders of the simulator and the engine."""
    for module in (replica, engine, sys.modules[engine.EngineCore.__module__]):
        place = Path(module.__file__).relative_to(ROOT).as_posix()
        assert place.split("/")[0] in CODE
        assert not place.startswith(SHOWING)


# --- The suite ------------------------------------------------------------------------------------


class Bench:
    """The suite ``fleet`` with fake runs; records the runs and the output."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.ran: list[tuple[Any, ...]] = []
        self.said: list[str] = []
        self.saved: list[dict[str, Any]] = []
        self.fails: dict[tuple[Any, ...], BaseException] = {}

        @asynccontextmanager
        async def replicas(*_: object, **__: object) -> AsyncIterator[None]:
            yield

        def prepare(name: str, *_: object) -> Prepared:
            return Prepared(name, KINDS[name], Workload(name, []), 1.0, 1.0)

        async def one(_: object, cell: FleetCell, *__: object) -> dict[str, Any]:
            if cell.key in self.fails:
                raise self.fails[cell.key]
            self.ran.append(cell.key)
            return {**dict(zip(KEYS, cell.key, strict=True)), "about": {}, "took_s": 1.0}

        monkeypatch.setattr(fleet, "EmulatedFleet", replicas)
        monkeypatch.setattr(fleet.workloads, "prepare", prepare)
        monkeypatch.setattr(fleet, "_run_cell", one)

    async def run(self, **changes: Any) -> dict[str, Any]:
        """Run the suite, on one workload without faults."""
        self.ran.clear()
        self.said.clear()
        self.saved.clear()
        wanted = {"contenders": ("tidegate",), "workloads": ("sessions",), **changes}
        return await fleet.run(
            Context(
                full=False,
                environment=Environment(Path()),
                say=self.said.append,
                out=self.folder,
                save=lambda found: self.saved.append(orjson.loads(orjson.dumps(found))),
                **wanted,
            )
        )


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Return a suite in an empty folder."""
    return Bench(tmp_path, monkeypatch)


async def test_more_seeds_add_to_those_there(bench: Bench) -> None:
    """A start with three seeds after one adds two runs; a further start runs nothing."""
    await bench.run(seeds=1)
    found = await bench.run(seeds=3)
    assert [key[2] for key in bench.ran] == [1, 2]
    assert [row["seed"] for row in found["rows"]] == [0, 1, 2]
    assert any("1 of 3 runs are stored" in text for text in bench.said)
    await bench.run(seeds=3)
    assert not bench.ran


async def test_other_contenders_add_theirs(bench: Bench) -> None:
    """Earlier contenders stay in the tables."""
    await bench.run()
    found = await bench.run(contenders=("envoy-least-request",))
    assert [key[3] for key in bench.ran] == ["envoy-least-request"]
    assert [row["contender"] for row in found["rows"]] == ["tidegate", "envoy-least-request"]


async def test_a_suite_that_is_cut_goes_on(bench: Bench) -> None:
    """Each run is saved at its end, so a second start runs only the rest."""
    bench.fails[("sessions", 0.65, 1, "tidegate", "")] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        await bench.run(seeds=3)
    assert [len(each["rows"]) for each in bench.saved] == [1]
    assert bench.saved[-1]["left"] == 2
    bench.fails.clear()
    found = await bench.run(seeds=3)
    assert [key[2] for key in bench.ran] == [1, 2]
    assert found["left"] == 0


async def test_other_parameters_begin_anew(bench: Bench) -> None:
    """Runs of another length are not mixed; the output mentions them."""
    await bench.run(seconds=5.0)
    found = await bench.run(seconds=6.0)
    assert len(bench.ran) == len(found["rows"]) == 1
    assert any("1 other journal in" in text for text in bench.said)
    await bench.run(seconds=6.0, fresh=True)
    assert len(bench.ran) == 1


async def test_a_failed_run_is_named_and_made_again(bench: Bench) -> None:
    """Other runs continue after a failure; the next start retries the failed run."""
    bench.fails[("sessions", 0.65, 0, "tidegate", "")] = RuntimeError("no")
    found = await bench.run(seeds=2)
    assert found["broken"] == ["sessions 65% tidegate, seed 0: RuntimeError: no"]
    assert (found["left"], len(found["rows"])) == (1, 1)
    bench.fails.clear()
    await bench.run(seeds=2)
    assert [key[2] for key in bench.ran] == [0]


async def test_runs_that_fail_in_a_row_end_the_suite(bench: Bench) -> None:
    """Three consecutive failures end the suite with an error."""
    for seed in range(4):
        bench.fails[("sessions", 0.65, seed, "tidegate", "")] = RuntimeError("no")
    with pytest.raises(fleet.FleetSuiteError, match="seed 2: RuntimeError: no"):
        await bench.run(seeds=4)
