"""`relay`: the command line. Slow imports are not made here: interrupting them would print a traceback."""

import io
import os
import signal
import sys
from typing import Final

INTERRUPTED: Final = 130
"""The exit code of a command that was interrupted."""


def main() -> None:
    """Entry point. Exit codes: 0 done, 1 failed, 2 usage or configuration."""
    try:
        # While modules are being loaded there is nothing to clean up, and a traceback does not help.
        signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
        if sys.argv[1:2] in (["run"], ["worker"]):  # SIGHUP reloads a file that they read at their start anyway
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
        for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
            # closed: else the next file or socket would get its number, and the event loop would abort at closing it
            if getattr(sys, name) is None:
                setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  open to the end
        if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.encoding.lower() != "utf-8":
            sys.stdout.reconfigure(errors="backslashreplace")  # ids and bodies have characters that it may lack
        import logging

        from relay.cli.group import run

        # each of its errors is raised, too, and printed then
        logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
        # without a log its events would be printed by their names alone; a command itself says what concerns its user
        logging.getLogger("relay.control").addHandler(logging.NullHandler())
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.exit(run())
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
