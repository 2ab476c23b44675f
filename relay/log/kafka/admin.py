"""Topics, committed offsets, lag, this user's rights (KIP-430) and the version of a Kafka cluster."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from operator import not_
from typing import Any, Final

from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import (
    ClusterAuthorizationFailedError,
    GroupAuthorizationFailedError,
    IncompatibleBrokerVersion,
    InvalidConfigurationError,
    InvalidPartitionsError,
    InvalidReplicationFactorError,
    InvalidRequestError,
    InvalidTopicError,
    KafkaError,
    NoError,
    PolicyViolationError,
    TopicAlreadyExistsError,
    TopicAuthorizationFailedError,
    for_code,
)
from aiokafka.protocol.admin import ApiVersionRequest
from tenacity import AsyncRetrying, retry_if_result, wait_fixed

from relay.domain.errors import LogUnavailable, SettingsHidden, UserError
from relay.domain.rights import Operation, Right
from relay.domain.sliced import sliced
from relay.domain.topics import TopicSpec
from relay.log.kafka.client import KafkaClient, Replicas, check, described, kafka_errors
from relay.log.kafka.cluster import KafkaCluster, ends_within
from relay.log.kafka.leader_epochs import UNKNOWN, EpochQuery, ReadHistory
from relay.log.kafka.metadata import is_same_topic, metadata_request
from relay.log.kafka.offsets import Committed, GroupOffsets
from relay.log.kafka.wire import group_rights_request
from relay.log.port import Backlog, TopicPartition, TopicState

_VISIBLE_S: Final = 15.0
_POLL_S: Final = 0.05
_TOPICS_A_REQUEST: Final = 100
"""One request must not grow with the number of receivers."""

_REFUSALS: Final = (
    ClusterAuthorizationFailedError,
    InvalidConfigurationError,
    InvalidPartitionsError,
    InvalidReplicationFactorError,
    InvalidRequestError,
    InvalidTopicError,
    PolicyViolationError,
    TopicAuthorizationFailedError,
)
"""Errors that a repeat does not fix: the settings, or the rights, have to change."""

_CONFIGS: Final = (
    "cleanup.policy",
    "retention.ms",
    "retention.bytes",
    "min.insync.replicas",
    "max.message.bytes",
    "message.timestamp.type",
)

_BROKERS_TIME: Final = "LogAppendTime"
"""Ages and retention depend on timestamps, and producers' clocks may be wrong by any amount."""

# Segments are small and closed each hour: only closed ones are compacted, and a recovery pass reads them all.
_COMPACTED: Final = {
    "segment.bytes": str(64 * 1024 * 1024),
    "segment.ms": "3600000",
    "min.cleanable.dirty.ratio": "0.2",
}

_BITS: Final[dict[Operation, int]] = {
    "Read": 3,
    "Write": 4,
    "Create": 5,
    "Alter": 7,
    "Describe": 8,
    "DescribeConfigs": 10,
}
PATIENCE_S: Final = 3.0
"""With the coordinator of a group."""
_NOT_REPORTED: Final = -(2**31)
_ALL: Final = sum(1 << bit for bit in _BITS.values())

_FETCH: Final = 1
_SINCE: Final = {8: "2.0", 10: "2.1", 11: "2.3", 12: "2.7", 13: "3.1", 15: "3.5", 16: "3.7", 17: "3.9", 18: "4.1"}
"""Newest supported version of Fetch -> the first release with it (Kafka's protocol guide)."""


class KafkaAdmin:
    """The administrative part of the log. `replication_factor` None: the broker's default."""

    def __init__(self, cluster: KafkaCluster, replication_factor: int | None) -> None:
        self._cluster = cluster
        self._client = KafkaClient(cluster)
        self._replication_factor = replication_factor

    async def create(self, specs: Sequence[TopicSpec], groups: Mapping[str, str]) -> list[str]:
        """As the port says. Raises UserError if the cluster rejects a topic."""
        there = await self._client.topics([spec.name for spec in specs])
        missing = [spec for spec in specs if spec.name not in there]
        created: list[str] = []
        if missing:
            async with self._admin() as admin:
                for some in sliced(missing, _TOPICS_A_REQUEST):
                    created += await self._create_some(admin, some)
            await self._until_visible(missing)
        await self._begin_groups(groups)
        return created

    async def grow(self, topic: str, partitions: int) -> None:
        """As the port says. Raises UserError if the cluster rejects it."""
        if await self._count(topic) < partitions:
            async with self._admin() as admin:
                await self._grow(admin, topic, partitions)
        await self._until_visible([TopicSpec(topic, partitions)])

    async def describe(self, topics: Sequence[str]) -> dict[str, TopicState]:
        there = await self._client.topics(topics)
        if not there:
            return {}
        configs: dict[str, dict[str, str]] = {}
        async with self._admin() as admin:
            for some in sliced(list(there), _TOPICS_A_REQUEST):
                configs |= await _configs(admin, some)
        return {name: _state(name, partitions, configs[name]) for name, partitions in there.items()}

    async def backlogs(self, groups: Mapping[str, str]) -> list[Backlog]:
        found: list[Backlog] = []
        for some in sliced(list(groups), _TOPICS_A_REQUEST):
            topics = await self._client.topics(some)
            partitions = {name: [TopicPartition(name, each.partition) for each in topics[name]] for name in topics}
            flat = [partition for of_one in partitions.values() for partition in of_one]
            firsts = await self._client.offsets(flat, "earliest")
            committed: dict[TopicPartition, Committed] = {}
            for group in sorted({groups[name] for name in partitions}):
                of_group = [p for name, of_one in partitions.items() if groups[name] == group for p in of_one]
                committed |= await GroupOffsets(self._client, group).settled(of_group)
            ends = await self._client.offsets(flat, "end")  # after the commits, which are never beyond it
            stable = await self._client.offsets(flat, "latest")  # after the ends: a transaction was open if it is lower
            lost_from = await self._lost_from(committed)
            offsets = {partition: each.offset for partition, each in committed.items()}
            found += [
                Backlog(
                    groups[p.topic],
                    p,
                    firsts[p],
                    ends[p],
                    offsets.get(p),
                    stable[p] if stable[p] < ends[p] else None,
                    lost_from.get(p),
                )
                for p in flat
            ]
        return found

    async def _lost_from(self, committed: Mapping[TopicPartition, Committed]) -> dict[TopicPartition, int | None]:
        """Where the log diverges from what was read before these offsets; of those with a known epoch or topic."""
        present = (await self._client.layout(sorted({p.topic for p in committed}))).ids
        known = {partition: each for partition, each in committed.items() if each.leader_epoch != UNKNOWN}
        ends = await self._client.epoch_ends({p: EpochQuery(UNKNOWN, each.leader_epoch) for p, each in known.items()})
        for topic, number in known.keys() - ends.keys():
            raise LogUnavailable(f"Kafka: the leader of {topic}/{number} is changing")
        found = {
            p: ReadHistory(each.offset, each.leader_epoch).divergence(each.offset, ends[p], UNKNOWN)
            for p, each in known.items()
        }
        others = [p for p, each in committed.items() if not is_same_topic(each.topic_id, present.get(p.topic, ""))]
        return found | dict.fromkeys(others, 0)

    async def lacking(self, rights: Sequence[Right]) -> list[Right]:
        """As the port says. Also empty if the cluster is too old to report them."""
        probed = [(right, right.probe) for right in rights if right.probe is not None]
        topics = sorted({probe for right, probe in probed if right.kind == "topic"})
        groups = sorted({probe for right, probe in probed if right.kind == "group"})
        asked, doing = metadata_request(topics, rights=True), "asking what this user may do"
        try:
            allowed = await self._client.asked(doing, asked, _of_topics) if topics else {}
            of_groups = await asyncio.gather(*(_of_group(self._client, group) for group in groups))
            allowed |= dict(zip(groups, of_groups, strict=True))
        except (IncompatibleBrokerVersion, NotImplementedError):
            return []
        missing = [(right, _without(right, allowed.get(probe, _ALL))) for right, probe in probed]
        return [right.only(operations) for right, operations in missing if operations]

    async def about(self) -> str:
        """Release and size of the cluster, in words."""
        newest = await self._client.asked("asking for its versions", ApiVersionRequest(), _newest_fetch)
        brokers = len((await self._client.layout([])).brokers)
        return f"Kafka {release_of(newest)}, {brokers} broker{'' if brokers == 1 else 's'}"

    async def _create_some(self, admin: AIOKafkaAdminClient, specs: Sequence[TopicSpec]) -> list[str]:
        with kafka_errors("creating topics"):
            answer = await admin.create_topics([self._new_topic(spec) for spec in specs])
        created: list[str] = []
        for name, code, text in answer.topic_errors:
            error = for_code(code)
            if error is NoError:
                created.append(name)
            elif error in _REFUSALS:
                raise UserError(f"Kafka refuses to create topic {name}: {text or error.__name__}{_advice(error)}")
            elif error is not TopicAlreadyExistsError:  # another process was faster
                raise LogUnavailable(f"Kafka: creating topic {name}: {text or error.__name__}")
        return created

    async def _grow(self, admin: AIOKafkaAdminClient, topic: str, partitions: int) -> None:
        with kafka_errors(f"giving topic {topic} more partitions"):
            try:
                await admin.create_partitions({topic: NewPartitions(partitions)})
            except _REFUSALS as error:
                if await self._count(topic) < partitions:  # else another process was faster
                    raise UserError(f"Kafka refuses to give topic {topic} {partitions} partitions: {error}") from error

    def _new_topic(self, spec: TopicSpec) -> NewTopic:
        configs = {
            "cleanup.policy": spec.cleanup,
            "retention.bytes": "-1",
            "max.message.bytes": str(self._cluster.max_record_bytes),
            "message.timestamp.type": _BROKERS_TIME,
        }
        if spec.cleanup == "compact":
            configs |= _COMPACTED
        else:
            configs["retention.ms"] = "-1" if spec.retention_s is None else str(spec.retention_s * 1000)
        if self._replication_factor is None:  # -1 is the broker's default; the library wants an assignment with it
            return NewTopic(spec.name, spec.partitions, -1, replica_assignments={}, topic_configs=configs)
        return NewTopic(spec.name, spec.partitions, self._replication_factor, topic_configs=configs)

    async def _until_visible(self, specs: Sequence[TopicSpec]) -> None:
        """Wait until the brokers know the created topics, and lead all of their partitions."""
        wanted = {spec.name: spec.partitions for spec in specs}

        async def are_visible() -> bool:
            there = await self._client.topics(list(wanted))
            return all(
                len(there.get(name, ())) >= count and all(p.leader >= 0 for p in there[name])
                for name, count in wanted.items()
            )

        looking = AsyncRetrying(retry=retry_if_result(not_), wait=wait_fixed(_POLL_S))
        with kafka_errors("waiting for the topics just created"):
            async with asyncio.timeout(_VISIBLE_S):
                await looking(are_visible)

    async def _begin_groups(self, groups: Mapping[str, str]) -> None:
        by_group: dict[str, list[TopicPartition]] = {}
        for some in sliced(list(groups), _TOPICS_A_REQUEST):
            there = await self._client.existing(sorted(some))
            for topic in some:
                places = [TopicPartition(topic, each.partition) for each in there[topic]]
                by_group.setdefault(groups[topic], []).extend(places)
        for group, partitions in by_group.items():
            offsets = GroupOffsets(self._client, group)
            settled = await offsets.settled(partitions)
            if missing := [partition for partition in partitions if partition not in settled]:
                # 0 for a new topic; for an old one, the first record that retention has left.
                await offsets.begin(await self._client.offsets(missing, "earliest"))

    async def _count(self, topic: str) -> int:
        return len((await self._client.existing([topic]))[topic])

    @asynccontextmanager
    async def _admin(self) -> AsyncIterator[AIOKafkaAdminClient]:
        admin = AIOKafkaAdminClient(**self._cluster.arguments(), request_timeout_ms=self._cluster.request_timeout_ms)
        try:
            with kafka_errors(f"connecting to {self._cluster.servers}"):
                await admin.start()
            yield admin
        finally:
            await ends_within(admin.close())


async def _configs(admin: AIOKafkaAdminClient, topics: Sequence[str]) -> dict[str, dict[str, str]]:
    """The settings in _CONFIGS, of each topic."""
    wanted = [ConfigResource(ConfigResourceType.TOPIC, name, dict.fromkeys(_CONFIGS, "")) for name in topics]
    with kafka_errors("describing topics"):
        [answer] = await admin.describe_configs(wanted)
    found: dict[str, dict[str, str]] = {}
    for code, text, _, name, entries in answer.resources:
        error = for_code(code)
        if error is TopicAuthorizationFailedError:
            raise SettingsHidden(f"Kafka: describing topics: {described(error(name))}")
        if error is not NoError:
            raise LogUnavailable(f"Kafka: describing topic {name}: {text or error.__name__}")
        found[name] = {key: value for key, value, *_ in entries}
    return found


def _advice(error: type[KafkaError]) -> str:
    is_forbidden = error in (ClusterAuthorizationFailedError, TopicAuthorizationFailedError)
    return " `relay rights --role operator` prints the commands that allow it" if is_forbidden else ""


def _state(name: str, partitions: Sequence[Replicas], configs: Mapping[str, str]) -> TopicState:
    policies = {policy.strip() for policy in configs["cleanup.policy"].split(",")}
    compacted = policies == {"compact"}
    retention_ms, retention_bytes = int(configs["retention.ms"]), int(configs["retention.bytes"])
    return TopicState(
        TopicSpec(
            name,
            len(partitions),
            "compact" if compacted else "delete",
            None if compacted or retention_ms < 0 else retention_ms // 1000,
        ),
        replication=min(partition.replicas for partition in partitions),
        min_insync=int(configs["min.insync.replicas"]),
        max_message_bytes=int(configs["max.message.bytes"]),
        retention_bytes=None if retention_bytes < 0 else retention_bytes,
        mixed_cleanup=len(policies) > 1,
        sender_timed=configs["message.timestamp.type"] != _BROKERS_TIME,
        in_sync=tuple(partition.in_sync for partition in partitions),
    )


def release_of(newest_fetch: int) -> str:
    """The release, derived from the newest version of Fetch."""
    known = [version for version in _SINCE if version <= newest_fetch]
    return f"{_SINCE[max(known)]} or newer" if known else f"older than {_SINCE[min(_SINCE)]}"


def _newest_fetch(answer: Any) -> int:
    return next((newest for key, _, newest in answer.api_versions if key == _FETCH), 0)


# rights


def _without(right: Right, allowed: int) -> tuple[Operation, ...]:
    return tuple(each for each in right.operations if not allowed & 1 << _BITS[each])


def _of_topics(answer: Any) -> dict[str, int]:
    """The operations by topic, without topics that do not exist."""
    found: dict[str, int] = {}
    for error, topic, _, _, operations in answer.topics:
        if for_code(error) is TopicAuthorizationFailedError:
            found[topic] = 1 << _BITS["DescribeConfigs"]  # not probed, so it may be granted
        elif error == 0 and operations != _NOT_REPORTED:
            found[topic] = operations
    return found


async def _of_group(client: KafkaClient, group: str) -> int:
    """All operations if the group's coordinator does not answer soon: not all callers need it, and joining fails."""
    doing = f"asking what this user may do with {group}"
    try:
        async with asyncio.timeout(PATIENCE_S):
            return await client.coordinated(group, doing, group_rights_request(group), _of_group_answer)
    except TimeoutError:
        return _ALL
    except LogUnavailable as error:
        return 0 if isinstance(error.__cause__, GroupAuthorizationFailedError) else _ALL


def _of_group_answer(answer: Any) -> int:
    [(error, *_, operations)] = answer.groups
    check(error)
    return _ALL if operations == _NOT_REPORTED else int(operations)
