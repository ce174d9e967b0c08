"""A writer of the store that is killed."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing

from support.stored_pieces import POOLS, pieces_of, wanted
from xds_server.fleet.store import RevisionStore

_WRITER = """
import sys
from pathlib import Path
sys.path[:0] = sys.argv[2:]
from support.stored_pieces import POOLS, state, wanted
from xds_server.fleet.revision import FileState
from xds_server.fleet.store import RevisionStore
store = RevisionStore(Path(sys.argv[1]), max_revisions=5)
found = store.latest()
number = 0 if found is None else found.revision.number
while True:
    number += 1
    content = wanted({name: (number >> at) % 3 for at, name in enumerate(POOLS)})
    store.append(state(number, content, file=FileState(str(number), content)))
    print(number, flush=True)
"""


def test_a_kill_between_any_two_instructions_loses_nothing_that_was_stored(tmp_path) -> None:
    """A confirmed revision is there; one that was not confirmed is whole or absent."""
    paths = [*filter(None, sys.path)]
    confirmed = 0
    for turn in range(4):
        command = [sys.executable, "-c", _WRITER, str(tmp_path), *paths]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            try:
                for _ in range(8 + turn):
                    confirmed = int(process.stdout.readline())
            finally:
                process.kill()
            rest = process.stdout.read().splitlines()
            confirmed = int(rest[-1]) if rest else confirmed
        with closing(RevisionStore(tmp_path, max_revisions=5)) as store:
            latest = store.latest()
            assert latest is not None
            assert latest.revision.number in {confirmed, confirmed + 1}
            assert latest.file is not None
            assert latest.file.fleet == latest.fleet
            for each in store.revisions(9):
                content = {name: (each.number >> at) % 3 for at, name in enumerate(POOLS)}
                assert store.fleet(each.number) == wanted(content)
            stored, named = pieces_of(store)
            assert stored == named
