"""Stands for a test worker that a template forks: ``worker_client.py SOCKET OPTIONS``.

It passes its standard streams on, and ends with the worker's exit code. Where the template ends
before it forks the worker, this becomes a Python with these options, which is a worker too.
"""

from __future__ import annotations

import os
import signal
import socket
import sys


def main(path: str, *options: str) -> int:
    """Have a worker forked, and wait for its end; return its exit code."""
    signal.signal(signal.SIGINT, lambda *_: None)  # the worker gets it too, and says what it means
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as template:
        try:
            template.connect(path)
            socket.send_fds(template, [options[-1].encode()], [0, 1, 2])
            forked = template.recv(16)
        except OSError:
            forked = b""
        if not forked:
            os.execv(sys.executable, (sys.executable, *options))  # noqa: S606 - this Python
        code = int(template.recv(16) or 1)
    return 128 - code if code < 0 else code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
