"""`relay`: the command line. Nothing is imported here that takes its time: what is, is interrupted with a traceback."""

import os
import signal
import sys

from relay.cli.commands import INTERRUPTED


def main() -> None:
    """Entry point. Exit codes: 0 done, 1 failed, 2 usage or configuration."""
    try:
        # Interrupted while modules are loaded, there is nothing to clean up, and a traceback helps nobody.
        signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
        import logging

        from relay.cli.group import run

        # each error of it reaches us as an exception, too, and is told then
        logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.exit(run())
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
