"""Generated text between markers of a hand-written page."""

from __future__ import annotations

from typing import Final

BEGIN: Final = "<!-- results: made by bench/routing.py, do not edit -->"
END: Final = "<!-- end of results -->"


class MarkersError(ValueError):
    """A page lacks the markers, repeats one, or has them in the wrong order."""


def replaced(page: str, text: str) -> str:
    """Return a page with the text between its markers replaced.

    Raises:
        MarkersError: The page does not contain each marker once, in order.
    """
    if page.count(BEGIN) != 1 or page.count(END) != 1 or page.index(BEGIN) > page.index(END):
        raise MarkersError(f"the page must have the lines {BEGIN!r} and {END!r}, each once")
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n\n{text}\n\n{END}{tail}"
