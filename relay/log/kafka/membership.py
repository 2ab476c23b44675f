"""Membership in a consumer group: the library's coordinator joins and sends heartbeats, with the relay's own assignor.

This module has all uses of private parts of the library's coordinator. Written for aiokafka 0.14.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final, Protocol

from aiokafka import ConsumerRebalanceListener
from aiokafka.client import AIOKafkaClient
from aiokafka.consumer.group_coordinator import GroupCoordinator
from aiokafka.consumer.subscription_state import SubscriptionState
from aiokafka.coordinator.assignors.abstract import AbstractPartitionAssignor
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata
from aiokafka.errors import (
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    InvalidSessionTimeoutError,
    KafkaError,
    RebalanceInProgressError,
)

from relay.clock import set_within
from relay.domain.errors import ConsumerBroken, LogUnavailable, PartitionLost
from relay.log.groups import assign
from relay.log.kafka.client import FORBIDDEN, described, kafka_errors
from relay.log.kafka.cluster import GroupTiming, KafkaCluster, ends_within
from relay.log.kafka.member_metadata import PROTOCOL, decode_subscription, encode_assignment
from relay.log.kafka.offsets import Committed, Generation, GroupOffsets
from relay.log.port import TopicPartition

_START_S: Final = 30.0
_LEAVE_S: Final = 5.0
_REPEAT_S: Final = 0.05
_SETTLING_S: Final = 10.0
"""Partitions that one member has to release are assigned to another in a further round, soon after the first."""
_SETTLING_BEAT_S: Final = 0.25
"""A member learns of a round by its heartbeat. Until then it reads none of its new partitions."""
_NEVER_MS: Final = 10**15
"""How long it may read no records: progress is checked elsewhere."""

_STALLED_S: Final = 50.0
"""A rebalance is over within 30 s: much longer without an end is a fault."""

_VERSION: Final = 0


class Holder(Protocol):
    """The consumer that a member belongs to. Calls are made directly, and have to be brief."""

    def metadata(self) -> bytes:
        """The member's metadata for the group: it is about to join, for the first time or again."""
        ...

    def assigned(self, generation: int, assigned: bytes) -> None:
        """The member's partitions from now on, in this generation of the group."""
        ...

    def lost(self) -> None:
        """The group has removed the member, or may have: it holds nothing any more."""
        ...


class Watchdog:
    """Notices that a membership of the Kafka library has stopped working, which the library does not report. Times are
    seconds on any monotonic clock."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._unassigned_since: float | None = None

    def unassigned(self, now: float) -> None:
        """The member joins: it has to get an assignment, maybe an empty one."""
        if self._unassigned_since is None:
            self._unassigned_since = now

    def assigned(self) -> None:
        self._unassigned_since = None

    @property
    def is_assigned(self) -> bool:
        """Whether partitions were assigned, be it none, since the member joined."""
        return self._unassigned_since is None

    def check(self, now: float, *, is_dead: bool, is_waiting: bool) -> None:
        """Raises ConsumerBroken if this member will never get partitions again. `is_waiting`: it may not take part
        yet, and reports that."""
        if is_dead:
            raise ConsumerBroken(f"Kafka: {self._group}: the client's coordination task is dead")
        if self._unassigned_since is None:
            return
        if is_waiting:
            self._unassigned_since = now
        elif now - self._unassigned_since > _STALLED_S:
            self._unassigned_since = now
            raise ConsumerBroken(f"Kafka: {self._group}: no assignment for {_STALLED_S:.0f} s")


@dataclass(eq=False, repr=False)
class GroupMember:
    """One membership. `offsets`: of its group, over connections on which no request waits for other members."""

    cluster: KafkaCluster
    timing: GroupTiming
    offsets: GroupOffsets
    group: str
    holder: Holder
    _client: AIOKafkaClient | None = None
    _coordinator: "_Coordinator | None" = None
    _vigil: asyncio.Task[None] | None = None
    _trouble: KafkaError | None = None

    async def join(self, topic: str) -> None:
        """Join the group, in the background. `topic`: one that exists, as the library needs at least one. Raises
        LogUnavailable."""
        timing = self.timing
        with kafka_errors(f"joining {self.group}"):
            async with asyncio.timeout(_START_S):
                self._client = client = await self.cluster.client(timing.request_timeout_ms)
        client.set_topics([topic])
        self._coordinator = _Coordinator(client, self.group, timing, self.holder)
        self._vigil = asyncio.create_task(self._watch(self._coordinator))

    @property
    def has_joined(self) -> bool:
        """Whether `join` was called."""
        return self._coordinator is not None

    @property
    def generation(self) -> Generation | None:
        """The generation that the member belongs to, and its id; None if it belongs to none."""
        coordinator = self._coordinator
        if coordinator is None or coordinator.generation < 0:
            return None
        return coordinator.generation, coordinator.member_id

    @property
    def has_coordinator(self) -> bool:
        """Whether the coordinator of the group has answered."""
        return self._coordinator is not None and self._coordinator.coordinator_id is not None

    @property
    def is_joining(self) -> bool:
        return self._coordinator is not None and self._coordinator.is_joining

    @property
    def waits_for(self) -> str | None:
        """Why it cannot join the group, for operators."""
        if isinstance(self._trouble, InconsistentGroupProtocolError):
            return f"Kafka: {self.group} has members of another release: this one joins when they have left"
        if isinstance(self._trouble, InvalidSessionTimeoutError):
            session_s = self.timing.session_timeout_ms / 1000
            return (
                f"Kafka: the broker refuses RELAY_KAFKA_SESSION_TIMEOUT, {session_s:g} s: set a value between its "
                "group.min.session.timeout.ms and group.max.session.timeout.ms"
            )
        return None

    def rejoin(self) -> None:
        """Have the group assign again: the member's subscription or its partitions have changed."""
        if self._coordinator is not None:
            self._coordinator.rejoin()

    @property
    def is_assigned(self) -> bool:
        """Whether the group has assigned partitions to the member, maybe none, since it joined."""
        return self._coordinator is not None and self._coordinator.watchdog.is_assigned

    def look(self, *, is_waiting: bool) -> None:
        """Whether the member may keep its partitions: if no heartbeat of it was accepted for a session, it is removed.
        Raises LogUnavailable when it cannot take part, and ConsumerBroken as `Watchdog.check` does."""
        coordinator = self._coordinator
        if coordinator is None:
            return
        now = monotonic()
        coordinator.watchdog.check(now, is_dead=coordinator._coordination_task.done(), is_waiting=is_waiting)
        if coordinator.generation >= 0 and now - coordinator.accepted_at > self.timing.session_timeout_ms / 1000:
            self.remove()
        trouble = self._trouble
        if trouble is not None and self.waits_for is None:
            self._trouble = None
            raise LogUnavailable(f"Kafka: {self.group} cannot go on (coordination): {described(trouble)}") from trouble

    def remove(self) -> None:
        """The group does not know this member, or not in this generation: join again."""
        if self._coordinator is not None:
            self._coordinator.reset_generation()

    async def confirm(self) -> str | None:
        """Ask the group why it does not know this member in its generation; None if it does. Raises LogUnavailable. A
        rebalance in progress takes no partition from any member."""
        asked, coordinator = self.generation, self._coordinator
        if asked is None or coordinator is None:
            return "not a member of the group"
        sent_at = monotonic()
        refusal = await self.offsets.heartbeat(asked)
        if refusal is None or refusal is RebalanceInProgressError:
            coordinator.accepted_at = max(coordinator.accepted_at, sent_at)
            if refusal is not None and not coordinator.is_joining:
                coordinator.request_rejoin()
            return None
        if not self._moves_on(refusal, asked):
            self._refused(refusal, asked)
        return refusal.__name__

    async def commit(self, offsets: Mapping[TopicPartition, Committed]) -> None:
        """Commit, in bounded time. During an assignment the group accepts no commits for a moment: they are repeated.
        Raises PartitionLost if the group does not know this member, and LogUnavailable, also where this user lacks a
        right on one of the topics."""
        try:
            async with asyncio.timeout(self.timing.commit_timeout_s):
                while (asked := self.generation) is not None:
                    refusal = await self.offsets.commit(offsets, asked)
                    if refusal is None:
                        return
                    if refusal in FORBIDDEN:
                        raise LogUnavailable(f"Kafka: committing for {self.group}: {described(refusal())}")
                    if refusal is not RebalanceInProgressError and not self._moves_on(refusal, asked):
                        raise self._refused(refusal, asked)
                    await asyncio.sleep(_REPEAT_S)
        except TimeoutError as error:
            raise LogUnavailable(f"Kafka: committing for {self.group}: no answer in time") from error
        raise PartitionLost(f"{self.group}: not a member of the group")

    def _moves_on(self, refusal: type[KafkaError], asked: Generation) -> bool:
        """During the request the group got a new generation with this member in it."""
        now = self.generation
        is_same = now is not None and now[1] == asked[1] and (now != asked or self.is_joining)
        return refusal is IllegalGenerationError and is_same

    def _refused(self, refusal: type[KafkaError], asked: Generation) -> PartitionLost:
        if self.generation == asked:
            self.remove()
        return PartitionLost(f"{self.group}: {refusal.__name__}")

    async def leave(self) -> None:
        """Leave the group, so that others take over at once. Never raises; bounded time."""
        coordinator, client, generation = self._coordinator, self._client, self.generation
        if self._vigil is not None:
            self._vigil.cancel()
            await asyncio.wait([self._vigil])
        if coordinator is not None:
            coordinator.is_leaving = True
            if coordinator.is_joining and generation is not None:  # the library would wait until it has joined
                await ends_within(self.offsets.leave(generation[1]), _LEAVE_S)
            await ends_within(coordinator.close(), _LEAVE_S)
        if client is not None:
            await ends_within(client.close())

    async def _watch(self, coordinator: "_Coordinator") -> None:
        """Send heartbeats and collect errors where the library does not: it sends none while it joins, late ones while
        the group settles, and its errors wait to be read."""
        beat_s = self.timing.heartbeat_interval_ms / 1000
        while True:
            await coordinator.until_beat(beat_s)
            try:
                coordinator.check_errors()
                if coordinator.watchdog.is_assigned:
                    self._trouble = None
            except KafkaError as error:
                self._trouble = error
                coordinator.beat_again()
            is_late = monotonic() - coordinator.accepted_at > 2 * beat_s
            if coordinator.generation >= 0 and (is_late or (coordinator.is_settling and not coordinator.is_joining)):
                with suppress(LogUnavailable):
                    await self.confirm()


class _Coordinator(GroupCoordinator):  # type: ignore[misc]  # the library is untyped
    """The library's coordinator. `accepted_at`: when the last request was sent that the group accepted."""

    def __init__(self, client: AIOKafkaClient, group: str, timing: GroupTiming, holder: Holder) -> None:
        self.accepted_at = self._dealt_at = monotonic()
        self._was_dealt = asyncio.Event()
        self.is_joining = True
        self.watchdog = Watchdog(group)
        self.watchdog.unassigned(self.accepted_at)
        self.is_leaving = False
        self.news = self.applied_news = 0
        self._holder = holder
        subscription = SubscriptionState()
        subscription.register_fetch_waiters([])
        super().__init__(
            _WithoutTopics(client),
            subscription,
            group_id=group,
            session_timeout_ms=timing.session_timeout_ms,
            heartbeat_interval_ms=timing.heartbeat_interval_ms,
            rebalance_timeout_ms=timing.rebalance_timeout_ms,
            max_poll_interval_ms=_NEVER_MS,
            enable_auto_commit=False,
            assignors=(_Assignor(self, holder),),
        )
        subscription.subscribe({group}, listener=_Joining(self))

    @property
    def is_settling(self) -> bool:
        return monotonic() - self._dealt_at < _SETTLING_S

    async def until_beat(self, beat_s: float) -> None:
        """Wait for the time of the next heartbeat; after an assignment the next one is near."""
        if self.is_settling:
            await asyncio.sleep(min(beat_s, _SETTLING_BEAT_S))
            return
        self._was_dealt.clear()
        await set_within(self._was_dealt, beat_s)

    def notes_assignment(self) -> None:
        self.accepted_at = self._dealt_at = monotonic()
        self.is_joining = False
        self.watchdog.assigned()
        self._was_dealt.set()

    def rejoin(self) -> None:
        self.news += 1
        self.request_rejoin()

    def beat_again(self) -> None:
        """Restart heartbeats. The library ends them at an error that it considers final, such as a missing right: it
        would raise it for ever, and start them again only with the next rebalance."""
        if self._heartbeat_task is not None and self._heartbeat_task.done():
            self.request_rejoin()

    def reset_generation(self) -> None:
        super().reset_generation()
        self.watchdog.unassigned(monotonic())
        if not self.is_leaving:
            self._holder.lost()

    def start_commit_offsets_refresh_task(self, assignment: object) -> None:
        """Does nothing: committed offsets are never read from it."""

    async def _do_heartbeat(self) -> bool:
        sent_at = monotonic()
        is_accepted: bool = await super()._do_heartbeat()
        if is_accepted:
            self.accepted_at = max(self.accepted_at, sent_at)
        return is_accepted


class _Assignor(AbstractPartitionAssignor):  # type: ignore[misc]
    """Our assignor. Metadata and assignments are in the user data: the library's lists of topics would be too long."""

    name = PROTOCOL

    def __init__(self, coordinator: _Coordinator, holder: Holder) -> None:
        self._coordinator = coordinator
        self._holder = holder

    def metadata(self, topics: object) -> ConsumerProtocolMemberMetadata:
        self._coordinator.applied_news = self._coordinator.news
        return ConsumerProtocolMemberMetadata(_VERSION, [], self._holder.metadata())

    def assign(self, cluster: object, members: Mapping[str, Any]) -> dict[str, ConsumerProtocolMemberAssignment]:
        assigned = assign({member: decode_subscription(each.user_data) for member, each in sorted(members.items())})
        return {
            m: ConsumerProtocolMemberAssignment(_VERSION, [], encode_assignment(each)) for m, each in assigned.items()
        }

    def on_assignment(self, assignment: ConsumerProtocolMemberAssignment) -> None:
        coordinator = self._coordinator
        coordinator.notes_assignment()
        self._holder.assigned(coordinator.generation, assignment.user_data)
        if coordinator.news != coordinator.applied_news:  # the library drops requests to rejoin while it joins
            coordinator.request_rejoin()


class _Joining(ConsumerRebalanceListener):  # type: ignore[misc]
    """Listener of the coordinator. A rebalance as such revokes nothing."""

    def __init__(self, coordinator: _Coordinator) -> None:
        self._coordinator = coordinator

    def on_partitions_revoked(self, revoked: object) -> None:
        self._coordinator.is_joining = True

    def on_partitions_assigned(self, assigned: object) -> None:
        return


class _WithoutTopics:
    """The client of a coordinator, without topics: the leader of a group would follow all topics of all members, with
    metadata requests that create missing ones."""

    def __init__(self, client: AIOKafkaClient) -> None:
        self.cluster = client.cluster
        self.coordinator_lookup = client.coordinator_lookup
        self.force_metadata_update = client.force_metadata_update
        self.ready = client.ready
        self.send = client.send

    def set_topics(self, topics: object) -> None:
        return

    async def _maybe_wait_metadata(self) -> None:
        return
