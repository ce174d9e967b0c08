"""Entry point of ``python -m tidegate``; the same program as the ``tidegate`` command."""

from __future__ import annotations

from tidegate.cli.main import main

if __name__ == "__main__":
    main()
