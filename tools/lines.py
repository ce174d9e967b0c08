"""Lines by folder, and words of the documentation: ``python -m tools.lines [REVISION]``.

With a revision, that one's are beside those of the work tree. A word of the documentation is what
stands between white space and has a letter or a digit, outside the parts of pages that
``docs/generate`` makes from the code. ``docs/`` has at most ``MAX_WORDS``, which a test holds.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
PRODUCT: Final = (
    "ext_proc",
    "gateway",
    "tidegate",
    "tidegate_api",
    "tidegate_common",
    "xds_server",
)
SUFFIXES: Final = (".py", ".md")
GENERATED: Final = ("_pb2.py", "_pb2_grpc.py")
MAX_WORDS: Final = 65_000
"""Words of ``docs/`` at most."""
_MADE: Final = re.compile(r"<!-- generated: (?!end )[^>]+-->.*?<!-- generated: end -->", re.DOTALL)
_WORD: Final = re.compile(r"\S*[^\W_]\S*")


def folder_of(path: str) -> str | None:
    """Return the folder that a file counts for; ``None`` = it does not count."""
    if not path.endswith(SUFFIXES) or path.endswith(GENERATED):
        return None
    first, *rest = path.split("/")
    if not rest:
        return "docs" if path.endswith(".md") else None
    if first == "xds_server" or (first in {"ext_proc", "tests"} and len(rest) > 1):
        return f"{first}/{rest[0]}" if len(rest) > 1 else first
    return first


def _git(*words: str) -> str:
    command = ("git", *words)
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout  # noqa: S603 - our own words


def counted(revision: str | None) -> Counter[str]:
    """Return the lines by folder, of a revision or of the work tree."""
    found: Counter[str] = Counter()
    if revision is None:
        for path in _git("ls-files").splitlines():
            folder = folder_of(path)
            if folder is not None and (ROOT / path).is_file():
                found[folder] += len((ROOT / path).read_bytes().splitlines())
        return found
    for line in _git("diff", "--numstat", "--no-renames", EMPTY_TREE, revision).splitlines():
        added, _, path = line.split("\t")
        folder = folder_of(path)
        if folder is not None and added != "-":
            found[folder] += int(added)
    return found


def words(text: str) -> int:
    """Return the words of a Markdown page that were written by hand."""
    return len(_WORD.findall(_MADE.sub("", text)))


def words_by_folder(revision: str | None) -> Counter[str]:
    """Return the words of the documentation by folder, of a revision or of the work tree."""
    found: Counter[str] = Counter()
    if revision is None:
        for file in (*ROOT.glob("*.md"), *ROOT.joinpath("docs").rglob("*.md")):
            found[_words_folder(file.relative_to(ROOT).as_posix())] += words(file.read_text())
        return found
    for path in _git("ls-tree", "-r", "--name-only", revision).splitlines():
        if path.endswith(".md") and (path.startswith("docs/") or "/" not in path):
            found[_words_folder(path)] += words(_git("show", f"{revision}:{path}"))
    return found


def _words_folder(path: str) -> str:
    return path.rpartition("/")[0] or path


EMPTY_TREE: Final = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
"""What git calls a tree without files."""


def table(now: Counter[str], before: Counter[str] | None) -> str:
    """Return a line for each folder and, below, one for the product and each other top folder."""
    kinds: dict[str, Counter[str]] = {}
    for folder in sorted(now | (before or now)):
        top = folder.split("/")[0]
        of = kinds.setdefault("product" if top in PRODUCT else top, Counter())
        of["before"] += (before or now)[folder]
        of["now"] += now[folder]
    rows = [
        (folder, (before or now)[folder], now[folder]) for folder in sorted(now | (before or now))
    ]
    rows += [("", 0, 0), *((kind, each["before"], each["now"]) for kind, each in kinds.items())]
    if before is None:
        return "".join(f"{name:28}{here:>9}\n" if name else "\n" for name, _, here in rows)
    return "".join(
        f"{name:28}{was:>9}{here:>9}{here - was:>+8}\n" if name else "\n"
        for name, was, here in rows
    )


def words_table(now: Counter[str], before: Counter[str] | None) -> str:
    """Return a line for each folder of the documentation, and one for all of ``docs/``."""
    named = sorted(now | (before or now))
    rows = [(name, (before or now)[name], now[name]) for name in named]
    docs = [row for row in rows if row[0].startswith("docs")]
    rows.append(("docs/, all", sum(row[1] for row in docs), sum(row[2] for row in docs)))
    if before is None:
        return "".join(f"{name:28}{here:>9}\n" for name, _, here in rows)
    return "".join(f"{name:28}{was:>9}{here:>9}{here - was:>+8}\n" for name, was, here in rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Print lines by folder and words of docs/.")
    parser.add_argument("revision", nargs="?", help="print this one's beside them, such as HEAD~9")
    then = parser.parse_args().revision
    sys.stdout.write("lines\n\n")
    sys.stdout.write(table(counted(None), counted(then) if then else None))
    sys.stdout.write("\nwords\n\n")
    sys.stdout.write(words_table(words_by_folder(None), words_by_folder(then) if then else None))
