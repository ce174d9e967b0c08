"""``tidegate diff``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from support.command_line import FakeAdmin, Run


def test_two_revisions_are_compared(run: Run, admin: FakeAdmin) -> None:
    """Each difference is printed on one line."""
    ran = run("diff", "3", "5", "--server", admin.address)
    assert (ran.code, ran.out.strip()) == (0, "pool llm removed")
    (request,) = admin.requests
    assert (request.old_revision, request.new_revision) == (3, 5)


def test_one_revision_is_compared_with_what_is_in_force(run: Run, admin: FakeAdmin) -> None:
    """Without differences the output is "no difference"."""
    assert run("diff", "3", "--server", admin.address).out.strip() == "no difference"


def test_a_file_is_compared_without_changing_anything(
    run: Run, admin: FakeAdmin, tmp_path: Path
) -> None:
    """``diff -f`` sends a dry run of ``apply``."""
    file = tmp_path / "fleet.yaml"
    file.write_text("pools: []")
    ran = run("diff", "-f", str(file), "-o", "json", "--server", admin.address)
    assert json.loads(ran.out) == {"changes": ["pool llm: variant canary weight 5 -> 10"]}
    (request,) = admin.requests
    assert (request.fleet, request.options.dry_run) == ("pools: []", True)


def test_there_must_be_something_to_compare(run: Run, admin: FakeAdmin) -> None:
    """No revision and no file, or both, is a usage error."""
    assert run("diff", "--server", admin.address).code == 2
    assert run("diff", "3", "-f", "x.yaml", "--server", admin.address).code == 2
