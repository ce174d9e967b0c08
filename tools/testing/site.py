"""Check the built documentation: ``python -m tools.testing.site build/docs``.

Each internal link must lead to a page and an anchor that exist, and each task of ``TASKS`` must be
reached from the landing page by at most ``MAX_CLICKS`` links in the text of pages: neither the
sidebar nor the search counts.
"""

from __future__ import annotations

import sys
from collections import deque
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LANDING: Final = "index.html"
MAX_CLICKS: Final = 3
TASKS: Final = {
    "first request": "quickstart.html#send-a-request",
    "canary": "how-to/canary-and-rollback.html",
    "drain": "how-to/drain-and-replace.html",
    "TLS": "how-to/tls.html",
    "debug a decision": "how-to/debug-a-decision.html",
}
"""Where each task is done: a page of the site, with or without an anchor."""


@dataclass
class BuiltPage:
    """Links and anchors of a page of the site."""

    name: str
    ids: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    text_links: list[str] = field(default_factory=list)
    """Those in the page's own text, without the theme's navigation."""


class _PageReader(HTMLParser):
    def __init__(self, page: BuiltPage) -> None:
        super().__init__()
        self._page = page
        self._in_text = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value for name, value in attrs if value is not None}
        self._in_text = self._in_text or tag == "article"
        if "id" in values:
            self._page.ids.add(values["id"])
        if tag == "a" and "href" in values:
            self._page.links.append(values["href"])
            if self._in_text:
                self._page.text_links.append(values["href"])

    def handle_endtag(self, tag: str) -> None:
        self._in_text = self._in_text and tag != "article"


def read(folder: Path) -> dict[str, BuiltPage]:
    """Return the pages of a built site by their path in it."""
    pages = {}
    for path in sorted(folder.rglob("*.html")):
        page = BuiltPage(path.relative_to(folder).as_posix())
        _PageReader(page).feed(path.read_text("utf-8"))
        pages[page.name] = page
    return pages


def target(page: str, link: str) -> tuple[str, str] | None:
    """Return path and anchor within the site to which a link of a page leads.

    Args:
        page: The path of the page in the site.
        link: The value of ``href``.

    Returns:
        The anchor is empty where the link has none. ``None``: the link leaves the site.

    Raises:
        ValueError: The link leads above the site's folder.
    """
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return None
    steps = page.split("/")[:-1] if parts.path else page.split("/")
    for step in filter(None, parts.path.split("/")):
        if step == "..":
            if not steps:
                raise ValueError(f"{page}: {link} leads out of the site")
            steps.pop()
        elif step != ".":
            steps.append(unquote(step))
    return "/".join(steps), unquote(parts.fragment)


def broken(pages: Mapping[str, BuiltPage], folder: Path) -> list[str]:
    """Return a line for each internal link that leads nowhere."""
    found = []
    for page in pages.values():
        for link in dict.fromkeys(page.links):
            to = target(page.name, link)
            if to is None:
                continue
            path, anchor = to
            if path not in pages:
                if not (folder / path).is_file():
                    found.append(f"{page.name}: {link}: there is no {path}")
            elif anchor and anchor not in pages[path].ids:
                found.append(f"{page.name}: {link}: {path} has no anchor {anchor!r}")
    return found


def clicks(pages: Mapping[str, BuiltPage]) -> dict[str, int]:
    """Return for each page that can be reached the least number of links from the landing page."""
    distance = {LANDING: 0}
    waiting = deque([LANDING])
    while waiting:
        name = waiting.popleft()
        for link in pages[name].text_links:
            to = target(name, link)
            if to is not None and to[0] in pages and to[0] not in distance:
                distance[to[0]] = distance[name] + 1
                waiting.append(to[0])
    return distance


def far(pages: Mapping[str, BuiltPage]) -> list[str]:
    """Return a line for each task that does not exist or is too far from the landing page."""
    distance = clicks(pages)
    found = []
    for task, place in TASKS.items():
        path, _, anchor = place.partition("#")
        if path not in pages or (anchor and anchor not in pages[path].ids):
            found.append(f"{task}: there is no {place}")
        elif distance.get(path, MAX_CLICKS + 1) > MAX_CLICKS:
            found.append(f"{task}: {place} is more than {MAX_CLICKS} clicks from {LANDING}")
    return found


def main(words: Sequence[str]) -> int:
    """Check the site in the folder that is the only argument; return the exit code."""
    if len(words) != 1:
        sys.stderr.write(f"{__doc__}\n")
        return 2
    folder = Path(words[0])
    pages = read(folder)
    if LANDING not in pages:
        sys.stderr.write(f"{folder}: there is no {LANDING}; build it with `make docs`\n")
        return 2
    if wrong := [*broken(pages, folder), *far(pages)]:
        sys.stderr.writelines(f"{line}\n" for line in wrong)
        return 1
    distance = clicks(pages)
    most = max(distance[place.partition("#")[0]] for place in TASKS.values())
    links = sum(len(page.links) for page in pages.values())
    sys.stdout.write(f"{len(pages)} pages, {links} links; each task within {most} clicks\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
