"""The `relay` command with a bug, which its first argument chooses.

`service`: the consumer of `to_sender` raises at the first record. `lane`: the message BUGGY leads to an illegal
transition when its outcome is to be stored. `secret`: for the message BUGGY, a step raises an error whose text has its
receiver's secrets.
"""

import sys
from typing import Any

from relay.cli.main import main
from relay.engine import settlement
from relay.engine.lane import Lane
from relay.engine.phases import Event, Phase, advance
from relay.engine.runner import Runner
from relay.log.port import TopicPartition
from workers.to_receiver import ToReceiver

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
    settle = settlement.settle

    def fail(lane: Lane[Any], work: Any, decision: Any, now: float) -> None:
        if "to_receiver_" in lane.partition.topic and ("ce_id", BUGGY.encode()) in work.record.headers:
            advance(work, Event.FIRST_LEFT, Phase.SETTLING)
        settle(lane, work, decision, now)

    settlement.settle = fail


def _with_a_secret() -> None:
    step = ToReceiver.step

    def fail(self: ToReceiver, work: Any) -> Any:
        post = work.receiver.post
        if work.hop.delivery.message_id == BUGGY:
            raise _Bug(f"{post.url} {post.headers} {post.secrets} {post.signing.secrets}")
        return step(self, work)

    ToReceiver.step = fail  # type: ignore[method-assign]


if __name__ == "__main__":
    {"service": _in_service, "lane": _in_lane, "secret": _with_a_secret}[sys.argv.pop(1)]()
    main()
