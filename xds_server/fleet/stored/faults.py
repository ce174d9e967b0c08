"""Errors of the revision database in words: what cannot be done, and the remedy."""

from __future__ import annotations

import contextlib
import sqlite3
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextlib.contextmanager
def explained(name: str, fault: Callable[[str], Exception]) -> Iterator[None]:
    """Convert errors of the database.

    Args:
        name: Name of the database, for messages.
        fault: Makes the error that is raised instead.
    """
    try:
        yield
    except sqlite3.OperationalError as error:
        if "locked" in str(error):
            raise fault(
                f"{name} is in use by another control server; stop that one, "
                "or use another --state folder"
            ) from None
        raise fault(
            f"{name} cannot be used: {error}; check the folder's permissions and free space"
        ) from None
    except (sqlite3.DatabaseError, KeyError, ValueError) as error:
        raise fault(
            f"{name} is damaged ({error}); move it away and start again: "
            "the fleet file becomes revision 1"
        ) from None
    except OSError as error:
        raise fault(f"{name} cannot be created: {error.strerror}") from None
