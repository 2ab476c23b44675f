"""The `relay` command with a bug, which its first argument chooses.

`service`: what reads `to_sender` raises at the first record. `lane`: the message BUGGY leads to an illegal transition
when its outcome is to be stored.
"""

import sys
from typing import Any

from relay.cli.main import main
from relay.engine.core import Lane
from relay.engine.phases import Event, Phase, advance
from relay.engine.runner import Runner
from relay.log.port import TopicPartition

BUG = "a bug"
BUGGY = "buggy"


class _Bug(Exception):
    pass


def _in_service() -> None:
    offer = Runner._offer

    def fail(self: Runner, partition: TopicPartition, records: Any) -> None:
        if partition.topic.endswith("to_sender"):
            raise _Bug(BUG)
        offer(self, partition, records)

    Runner._offer = fail  # type: ignore[method-assign]


def _in_lane() -> None:
    settle = Lane._settle

    def fail(self: Lane[Any], work: Any, decision: Any) -> None:
        if "to_receiver_" in self.partition.topic and ("ce_id", BUGGY.encode()) in work.record.headers:
            advance(work, Event.TWIN_LEFT, Phase.SETTLING)
        settle(self, work, decision)

    Lane._settle = fail  # type: ignore[method-assign, assignment]


if __name__ == "__main__":
    {"service": _in_service, "lane": _in_lane}[sys.argv.pop(1)]()
    main()
