"""Generated text inside a page that people write."""

from __future__ import annotations

from typing import Final

BEGIN: Final = "<!-- results: made by bench/routing.py, do not edit -->"
END: Final = "<!-- end of results -->"


class MarkersError(ValueError):
    """A page does not have each marker once, in their order."""


def replaced(page: str, text: str) -> str:
    """Return a page with the text between its markers.

    Raises:
        MarkersError: The markers are not there.
    """
    if page.count(BEGIN) != 1 or page.count(END) != 1 or page.index(BEGIN) > page.index(END):
        raise MarkersError(f"the page must have the lines {BEGIN!r} and {END!r}, each once")
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n\n{text}\n\n{END}{tail}"
