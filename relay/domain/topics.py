"""Names of topics and consumer groups, and each topic's required settings."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from relay.domain.receiver import Receiver

SHARED: Final = "shared"
"""The lane of receivers without a topic of their own. No receiver may take this name."""

DAY_S: Final = 86_400
AUDIT_KEPT_S: Final = 90 * DAY_S
ATTEMPTS_KEPT_S: Final = 3 * DAY_S


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """Required settings of a topic. `retention_s` is None for compacted topics."""

    name: str
    partitions: int
    cleanup: Literal["delete", "compact"] = "delete"
    retention_s: int | None = 7 * DAY_S


class Topics:
    """Names of all topics and groups, with `prefix` before each."""

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix
        self.from_sender = f"{prefix}from_sender"
        self.to_sender = f"{prefix}to_sender"
        self.failed_messages = f"{prefix}failed_messages"
        self.parked_messages = f"{prefix}parked_messages"
        self.receiver_config = f"{prefix}receiver_config"
        self.delivery_attempts = f"{prefix}delivery_attempts"
        self.audit = f"{prefix}audit"
        self.informational = frozenset({self.delivery_attempts, self.audit})
        """Topics that no delivery depends on: they only inform operators."""

    def to_receiver(self, lane: str) -> str:
        """`lane`: a receiver's name, or SHARED."""
        return f"{self.prefix}to_receiver_{lane}"

    def pending(self, lane: str) -> str:
        """Topic of deliveries whose answer follows later."""
        return f"{self.prefix}pending_from_receiver_{lane}"

    def group(self, role: str) -> str:
        """Consumer group of a role, e.g. `relay.to-receiver`, for all topics that the role reads."""
        return f"{self.prefix}relay.{role}"

    def former_group(self, topic: str) -> str | None:
        """The group that read `topic` in releases with one group per lane, e.g. `relay.to-receiver.circleci`."""
        for role, topics_of_role in (("to-receiver", self.to_receiver("")), ("from-receiver-async", self.pending(""))):
            if topic.startswith(topics_of_role):
                return f"{self.group(role)}.{topic.removeprefix(topics_of_role)}"
        return None

    def lane_of(self, topic: str) -> str:
        """The lane of a `to_receiver` or `pending` topic: a receiver's name, or SHARED."""
        return topic.removeprefix(self.to_receiver("")).removeprefix(self.pending(""))

    def fixed(self) -> tuple[TopicSpec, ...]:
        """The topics that exist independently of receivers."""
        return (
            TopicSpec(self.from_sender, 10),
            TopicSpec(self.to_receiver(SHARED), 32),
            TopicSpec(self.pending(SHARED), 32),
            TopicSpec(self.to_sender, 10),
            TopicSpec(self.failed_messages, 10, retention_s=30 * DAY_S),
            self.parked(),
            TopicSpec(self.receiver_config, 1, "compact", None),
            TopicSpec(self.delivery_attempts, 10, retention_s=ATTEMPTS_KEPT_S),
            TopicSpec(self.audit, 1, retention_s=AUDIT_KEPT_S),
        )

    def read_partitions(self) -> dict[str, int]:
        """The topics of which no more partitions are read than they are created with, and their number."""
        read = (self.parked_messages, self.receiver_config, self.audit)
        return {spec.name: spec.partitions for spec in self.fixed() if spec.name in read}

    def parked(self) -> TopicSpec:
        """The topic of parked records, which a recovery pass reads completely."""
        return TopicSpec(self.parked_messages, 10, "compact", None)

    def fixed_groups(self) -> dict[str, str]:
        """Topic -> consumer group, for the fixed topics whose records must be processed: records that such a group does
        not read before they expire are lost."""
        return {
            self.from_sender: self.group("from-sender"),
            self.to_sender: self.group("to-sender"),
            self.failed_messages: self.group("failed-messages"),
            **self.lane_groups(SHARED),
        }

    def informational_groups(self) -> dict[str, str]:
        """Topic -> consumer group, for informational topics, which may be read later. The group's offsets are committed
        at the beginning, so that it starts with the oldest record. Its lag is not a loss."""
        return {self.delivery_attempts: self.group("history")}

    def lane_groups(self, lane: str) -> dict[str, str]:
        """Topic -> consumer group of a receiver's own lane, or of the shared one."""
        return {
            self.to_receiver(lane): self.group("to-receiver"),
            self.pending(lane): self.group("from-receiver-async"),
        }

    def groups(self, lanes: Iterable[str]) -> dict[str, str]:
        """Topic -> consumer group of all topics that are read, with receivers in `lanes` (their own, or the shared
        one)."""
        found = self.fixed_groups()
        for lane in lanes:
            found |= self.lane_groups(lane)
        return found

    def lane_specs(self, lane: str, partitions: int) -> tuple[TopicSpec, ...]:
        """The topics of a receiver's own lane."""
        return tuple(TopicSpec(topic, partitions) for topic in self.lane_groups(lane))


def lane_of(receiver: Receiver) -> str:
    """The lane that carries `receiver`: its own name, or SHARED."""
    return SHARED if receiver.lane == SHARED else receiver.name
