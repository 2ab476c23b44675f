"""Tests of the state behind Sentinel: each connection looks the master up, and a fail-over counts as a loss."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from redis.asyncio import Redis

from relay.domain.errors import StateRecovering, StateUnavailable, UserError
from relay.state.attempts import Go
from relay.state.redis.state import RedisState
from relay.state.replies import answered, of
from relay.state.rows import TAGS, Stage
from tests.contract.state_contract import LANE, LIMITS, ask, begun, doubt_of, peeked, row
from tests.contract.test_state_urls import refuses_to_start
from tests.contract.turned_clock import TurnedClock
from tests.servers.asking import said, until
from tests.servers.sentinel import NAME, SentinelGroup

DAY_S = 86_400


@pytest.fixture
def group() -> Iterator[SentinelGroup]:
    group = SentinelGroup(fsync="always")
    try:
        asyncio.run(group.start())
        yield group
    finally:
        group.stop()


@asynccontextmanager
async def ready_on(group: SentinelGroup, clock: TurnedClock | None = None) -> AsyncIterator[RedisState]:
    state = RedisState(group.url, clock=clock)
    try:
        await state.start()
        await state.ready(sorted(await state.lost()), in_doubt_s=0)
        yield state
    finally:
        await state.close()


async def recover(state: RedisState) -> None:
    """Recover the state as soon as a master is available."""

    async def look() -> bool:
        try:
            await state.ready(sorted(await state.lost()), in_doubt_s=7 * DAY_S)
        except StateUnavailable:
            return False
        return True

    await until(look)


async def test_a_fail_over_counts_as_a_loss_even_where_nothing_was_lost(group: SentinelGroup) -> None:
    clock = TurnedClock()
    async with ready_on(group, clock) as state:
        assert await begun(state, row(1)) == Go(1, 0.0)
        await group.in_sync()
        group.servers[0].kill()
        await group.failed_over()
        with pytest.raises(StateRecovering):
            await answered(state.peek([row(1)]))
        await recover(state)
        assert state.forgotten() == frozenset(range(TAGS))
        assert (await peeked(state, row(1))).stage is Stage.SENDING
        clock.now += LIMITS.settle_s
        assert await doubt_of(state, row(2), ask_first=True)


async def test_a_promoted_server_that_restarts_before_anybody_looks_is_not_taken_for_the_old_one(
    group: SentinelGroup,
) -> None:
    """After its restart nothing about it says that it was promoted; both fsync every write."""
    clock = TurnedClock()
    async with ready_on(group, clock) as state:
        async with group.cut_off():
            assert await begun(state, row(1)) == Go(1, 0.0)
            group.servers[0].kill()
        await group.failed_over()
        await asyncio.to_thread(group.servers[1].restart)
        await recover(state)
        assert (await peeked(state, row(1))).stage is Stage.NONE
        clock.now += LIMITS.settle_s
        assert await doubt_of(state, row(1), ask_first=True)


async def test_a_master_that_was_demoted_is_left(group: SentinelGroup) -> None:
    """The connection to it stays open."""
    async with ready_on(group) as state, group.sentinel() as sentinel:
        await said(sentinel, "SENTINEL", "FAILOVER", NAME)
        await group.failed_over()
        await group.demote()
        with pytest.raises(StateUnavailable):
            await begun(state, row(1))
        with pytest.raises(StateRecovering):
            await begun(state, row(1))
        await recover(state)
        assert await begun(state, row(1)) == Go(1, 0.0)
        async with Redis.from_url(group.servers[1].url) as second:
            assert [key async for key in second.scan_iter("relay:*:ep:*")]


async def test_a_sentinel_that_names_a_replica_is_not_believed(group: SentinelGroup) -> None:
    """As a sentinel does that does not know of the fail-over yet."""
    async with Redis.from_url(group.servers[0].url) as first:
        await said(first, "REPLICAOF", "127.0.0.1", "1")
        state = RedisState(group.url)
        with pytest.raises(StateUnavailable, match="replica"):
            await answered(state.begin(of(LANE, [ask(row())])))
        await state.close()


class TestUrl:
    async def test_a_sentinel_that_is_away_is_passed_over(self, group: SentinelGroup) -> None:
        state = RedisState(group.url.replace("://", "://127.0.0.1:9,"))
        for _ in range(2):
            await state.start()
        assert await state.lost() == frozenset(range(TAGS))
        await state.close()

    async def test_a_master_that_nobody_knows_is_said_so(self, group: SentinelGroup) -> None:
        why = "no sentinel knows a master called another"
        await refuses_to_start(group.url.replace(NAME, "another"), StateUnavailable, why)

    async def test_the_number_of_the_database_counts(self, group: SentinelGroup) -> None:
        state = RedisState(f"{group.url}/3")
        await state.start()
        await state.lost()
        async with Redis.from_url(f"{group.servers[0].url}?db=3") as third:
            assert await third.dbsize() == 2 * TAGS  # life and clock of each
        await state.close()

    async def test_a_login_is_the_masters_and_that_of_the_sentinels_is_its_own(self, group: SentinelGroup) -> None:
        async with Redis.from_url(group.servers[0].url) as first, group.sentinel() as sentinel:
            await said(first, "ACL", "SETUSER", "relay", "on", ">for-the-master", "~*", "+@all")
            await said(sentinel, "ACL", "SETUSER", "watcher", "on", ">for-sentinels", "+@all")
        login = group.url.replace("://", "://relay:for-the-master@")
        state = RedisState(f"{login}?sentinel_username=watcher&sentinel_password=for-sentinels")
        await state.start()
        await state.close()
        await refuses_to_start(f"{login}?sentinel_username=watcher&sentinel_password=wrong", UserError, "password")

    async def test_the_url_of_a_sentinel_itself_is_refused(self, group: SentinelGroup) -> None:
        await refuses_to_start(group.sentinel_url, UserError, r"redis\+sentinel://")
