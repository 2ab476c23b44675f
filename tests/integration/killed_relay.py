"""The `relay` command, killed after the state knows that an answer was returned, and before the record of its callback
is on the log."""

import os
import signal
from collections.abc import Sequence
from typing import Any

from relay.cli.main import main
from relay.state.redis.state import RedisState
from relay.state.replies import Refusal
from relay.state.rows import Mark, Stage
from relay.watch.attempt_log import AttemptLog
from workers.journal import RequestPurpose


def _plant() -> None:
    mark, record = RedisState.mark, AttemptLog.record

    async def kill(self: RedisState, marks: Sequence[Mark]) -> list[Refusal | None]:
        marked = await mark(self, marks)
        if any(each.stage is Stage.DONE and each.row.owner == "r:ci" for each in marks):
            os.kill(os.getpid(), signal.SIGKILL)
        return marked

    def record_no_callback(self: AttemptLog, about: RequestPurpose, *more: Any) -> None:
        if about.kind != "callback":  # else it may be on the log before the kill
            record(self, about, *more)

    RedisState.mark = kill  # type: ignore[assignment,method-assign]
    AttemptLog.record = record_no_callback  # type: ignore[assignment,method-assign]


if __name__ == "__main__":
    _plant()
    main()
