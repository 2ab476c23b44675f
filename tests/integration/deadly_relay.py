"""The `relay` command with a bug: reading the message with the id `deadly` kills the process, as a crash in C would."""

import os
import signal
from typing import Any

from relay.cli.main import main
from workers import from_sender

DEADLY = "deadly"


def _plant() -> None:
    module: Any = from_sender
    read = module.parse_message

    def kill(*arguments: Any) -> Any:
        message = read(*arguments)
        if message.message_id == DEADLY:
            os.kill(os.getpid(), signal.SIGKILL)
        return message

    module.parse_message = kill


if __name__ == "__main__":
    _plant()
    main()
