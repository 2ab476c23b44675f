"""What is off about a topic, for start-up checks and for people."""

from relay.domain.topics import TopicSpec
from relay.log.port import TopicState

SAFE_REPLICATION = 3


def problem_of(spec: TopicSpec, state: TopicState) -> str | None:
    """What is off, in a few words; None when nothing is."""
    there = state.spec
    if there.partitions != spec.partitions:
        return f"it has {there.partitions} partitions, expected {spec.partitions}"
    if there.cleanup != spec.cleanup:
        return f"cleanup.policy is {there.cleanup}, expected {spec.cleanup}"
    if spec.retention_s is not None and there.retention_s is not None and there.retention_s < spec.retention_s:
        return f"retention is {there.retention_s} s, expected at least {spec.retention_s} s"
    if state.replication is not None and state.replication < SAFE_REPLICATION:
        return f"replication is {state.replication}: losing a broker may lose messages"
    if state.min_insync is not None and state.min_insync < SAFE_REPLICATION - 1:
        return f"min.insync.replicas is {state.min_insync}: an acknowledged record may be on one broker only"
    return None
