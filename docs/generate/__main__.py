"""Write the generated parts of the documentation: `python docs/generate [--check]`.

A page holds generated text between two comment lines, `generated: KIND WORDS` and `generated: end`;
the rest of the page is written by hand. With `--check` nothing is written: the exit code is 1, and
the stale files are named, where the committed text differs from what the code says now.
"""

from __future__ import annotations

import sys
from pathlib import Path

import accepted_differences
import allowed_paths
import blame_tables
import channel_table
import cli_verbs
import fleet_fields
import metric_tables
import openapi_document
import sequence
import wire_names
from pages import Page, read_pages

DOCS = Path(__file__).resolve().parents[1]


def fresh() -> dict[Path, str]:
    """Return the text that each generated file must have.

    Raises:
        ValueError: A page asks for what does not exist, or no page asks for what does.
    """
    pages = read_pages(DOCS)
    sources = {
        "fleet": fleet_fields.tables(pages),
        "cli": cli_verbs.tables(),
        "metrics": metric_tables.tables(),
        "names": wire_names.tables(),
        "blame": blame_tables.tables(),
        "paths": allowed_paths.tables(),
        "channels": channel_table.tables(),
        "differences": accepted_differences.tables(),
    }
    asked = [part for page in pages for part in page.parts]
    missing = [
        f"{kind} {words}"
        for kind, texts in sources.items()
        for words in texts
        if (kind, words) not in asked
    ]
    if missing or len(set(asked)) != len(asked):
        raise ValueError(f"each part belongs on one page; missing: {missing}, of {sorted(asked)}")
    written = {page.path: filled(page, sources) for page in pages if page.parts}
    for source in sorted(DOCS.rglob("*.sequence")):
        written[source.with_suffix(".svg")] = sequence.svg(source.read_text("utf-8"))
    written[DOCS / "reference" / "openapi.json"] = openapi_document.text()
    return written


def filled(page: Page, sources: dict[str, dict[str, str]]) -> str:
    """Return a page with its generated parts."""
    try:
        return page.filled(lambda kind, words: sources[kind][words])
    except KeyError as error:
        raise ValueError(f"{page.path.relative_to(DOCS)}: there is nothing for {error}") from None


def main() -> int:
    """Write the files, or with `--check` compare them; return the exit code."""
    files = fresh()
    stale = [
        path for path, text in files.items() if not path.exists() or path.read_text("utf-8") != text
    ]
    if "--check" not in sys.argv[1:]:
        for path in stale:
            path.write_text(files[path], "utf-8")
            print(f"written: {path.relative_to(DOCS.parent)}")
        return 0
    if stale:
        print("Generated documentation is stale; run `python docs/generate`:", file=sys.stderr)
        for path in stale:
            print(f"  {path.relative_to(DOCS.parent)}", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
