"""Images that a build or a deployment takes from elsewhere are named by digest in a release.

A tag may name another image tomorrow. ``python -m tools.release.images`` lists the images of
``FILES`` that are named by a tag alone, and fails if there is one. ``--pin`` asks the registries
for their digests with ``docker buildx imagetools inspect``, and writes them behind the tags.

Images named ``*:local`` are built from this repository.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

ROOT: Final = Path(__file__).resolve().parents[2]
FILES: Final = ("deploy/docker/Dockerfile", "docker-compose.yml", "deploy/compose/*.yaml")
_NAMED: Final = re.compile(
    r"^(?:ARG [A-Z_]+=|\s*image: |\s*image: &\w+ )([\w./-]+:[\w.-]+)(\S*)", re.MULTILINE
)
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
_PINNED: Final = re.compile(r"@sha256:[0-9a-f]{64}")
COMMAND: Final = ("docker", "buildx", "imagetools", "inspect", "--format", "{{.Manifest.Digest}}")


def unpinned(text: str) -> list[str]:
    """Return the images that a file names without a digest, each once."""
    found = {
        name: None
        for name, rest in _NAMED.findall(text)
        if not name.endswith(":local") and _PINNED.fullmatch(rest) is None
    }
    return list(found)


def pinned(text: str, digest_of: Callable[[str], str]) -> str:
    """Return a file's text with the digests of its images.

    Args:
        text: The text.
        digest_of: Returns the digest (``sha256:...``) of an image that is named by its tag.
    """
    for name in unpinned(text):
        text = re.sub(rf"{re.escape(name)}(?![\w.@-])", f"{name}@{digest_of(name)}", text)
    return text


def asked(name: str) -> str:
    """Return the digest that an image's registry tells.

    Raises:
        RuntimeError: It cannot be asked, or tells none.
    """
    command = (*COMMAND, name)
    try:
        ended = subprocess.run(  # noqa: S603 - a fixed program, and names of our own files
            command, capture_output=True, text=True, check=False, timeout=120
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RuntimeError(f"{' '.join(command)}: {error}") from error
    told = ended.stdout.strip().strip("'")
    if ended.returncode or _DIGEST.fullmatch(told) is None:
        raise RuntimeError(f"{' '.join(command)}: {ended.stderr.strip() or told}"[:400])
    return told


def _files() -> Iterator[Path]:
    for pattern in FILES:
        yield from sorted(ROOT.glob(pattern))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the check or ``--pin``; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.release.images", description=__doc__)
    parser.add_argument("--pin", action="store_true", help="write the digests of today")
    pin = parser.parse_args(argv).pin
    loose = []
    for path in _files():
        text = path.read_text("utf-8")
        if pin:
            try:
                text = pinned(text, asked)
            except RuntimeError as error:
                sys.stderr.write(f"{error}\n")
                return 1
            path.write_text(text, "utf-8")
        loose += [f"{path.relative_to(ROOT)}: {name}" for name in unpinned(text)]
    for each in loose:
        sys.stderr.write(f"{each} is named by a tag alone; run with --pin\n")
    return 1 if loose else 0


if __name__ == "__main__":
    sys.exit(main())
