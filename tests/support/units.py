"""The systemd units of ``deploy/systemd``, read and run as processes in place of systemd.

What systemd does with an ``Exec`` line is done here: specifiers, variables of ``Environment`` and
``EnvironmentFile``, words. Then paths and loopback addresses become the test's own. Limits, users
and sandboxes are systemd's, and not put in force.
"""

from __future__ import annotations

import grp
import os
import re
import shlex
import socket
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy/systemd"
UNITS = sorted(path.name for path in FOLDER.glob("*.service"))
PROGRAM = "/opt/tidegate/bin/tidegate"
ENVOY = "/usr/local/bin/envoy"
PLACES = ("/etc/tidegate", "/var/lib/tidegate", "/run/tidegate-envoy", "/run/tidegate")
OPERATORS = "tidegate-operators"


class Unit:
    """A unit file.

    Args:
        name: Its file, of which an instance is ``instance``.
        instance: What ``%i`` stands for.
    """

    def __init__(self, name: str, instance: str = "1") -> None:
        text = (FOLDER / name).read_text().replace("\\\n", " ")
        self.settings: defaultdict[str, list[str]] = defaultdict(list)
        for line in text.splitlines():
            if line and not line.startswith(("#", "[")):
                key, _, value = line.partition("=")
                value = value.replace("%i", instance).replace("%H", socket.gethostname())
                self.settings[key].append(value)

    def one(self, key: str) -> str:
        """Return the only value of a setting."""
        (found,) = self.settings[key]
        return found

    def seconds(self, key: str) -> float:
        """Return a duration in seconds, such as ``15s``."""
        return float(self.one(key).removesuffix("s"))

    def environment(self, root: Path) -> dict[str, str]:
        """Return its variables; its files are below a folder."""
        words = [word for line in self.settings["Environment"] for word in shlex.split(line)]
        for line in self.settings["EnvironmentFile"]:
            file = Path(f"{root}{line.removeprefix('-')}")
            if file.exists() or not line.startswith("-"):
                words += [
                    word for each in file.read_text().splitlines() for word in shlex.split(each)
                ]
        return dict(word.split("=", 1) for word in words)

    def words(self, key: str, variables: dict[str, str]) -> list[str]:
        """Return a command line's words, with the values of variables."""
        found: list[str] = []
        for word in shlex.split(self.one(key)):
            if re.fullmatch(r"\$[A-Z_]+", word):
                found += shlex.split(variables.get(word[1:], ""))
            else:
                found.append(re.sub(r"\$\{(\w+)\}", lambda m: variables.get(m[1], ""), word))
        return found


def placed(text: str, root: Path, host: str) -> str:
    """Return a text with the test's places, its loopback address and a group that is there."""
    for place in PLACES:
        text = re.sub(rf"(?<![\w/.-]){place}(?![\w-])", f"{root}{place}", text)
    text = text.replace("127.0.0.1", host)
    return text.replace(OPERATORS, grp.getgrgid(os.getgid()).gr_name)
