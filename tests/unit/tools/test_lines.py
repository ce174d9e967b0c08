"""Lines by folder."""

from __future__ import annotations

from collections import Counter

import pytest

from tools.lines import MAX_WORDS, folder_of, table, words, words_by_folder, words_table


@pytest.mark.parametrize(
    ("path", "folder"),
    [
        ("xds_server/app.py", "xds_server"),
        ("xds_server/fleet/model/fleet.py", "xds_server/fleet"),
        ("ext_proc/routing/router.py", "ext_proc/routing"),
        ("gateway/streams/reflection.py", "gateway"),
        ("tests/unit/tools/test_lines.py", "tests/unit"),
        ("README.md", "docs"),
        ("docs/how-to/discovery.md", "docs"),
        ("hatch_build.py", None),
        ("tidegate_api/admin/v1/admin_pb2.py", None),
        ("docs/explanation/one-change.svg", None),
    ],
)
def test_a_file_counts_for_its_folder(path: str, folder: str | None) -> None:
    """Generated code, pictures and build scripts count for none."""
    assert folder_of(path) == folder


def test_the_product_is_summed_below_the_folders() -> None:
    """With a revision, each line has the lines of then, of now, and the difference."""
    now = Counter({"gateway": 5, "xds_server/fleet": 7, "docs": 3})
    text = table(now, Counter({"gateway": 6, "xds_server/fleet": 9, "docs": 3}))
    *_, blank, docs, product = text.splitlines()
    assert not blank
    assert docs.split() == ["docs", "3", "3", "+0"]
    assert product.split() == ["product", "15", "12", "-3"]
    assert table(now, None).splitlines()[-1].split() == ["product", "12"]


def test_words_are_what_was_written_by_hand() -> None:
    """Marks of tables and generated parts do not count."""
    made = "<!-- generated: cli drain -->\n\nmade by code\n\n<!-- generated: end -->"
    assert words(f"# A title\n\n| `one` | -- | 2 |\n\n{made}\n\nthe end\n") == 6


def test_the_documentation_has_a_bound() -> None:
    """All pages together have at most ``MAX_WORDS``: a new fact takes the place of another."""
    found = words_by_folder(None)
    docs = sum(count for name, count in found.items() if name.startswith("docs"))
    assert 0 < docs <= MAX_WORDS
    assert found["README.md"] > 0
    assert words_table(found, None).splitlines()[-1].split() == ["docs/,", "all", str(docs)]
