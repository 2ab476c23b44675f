"""Tests of the Redis state on a real server: loss and restarts, memory, expiry, errors, and the same replies as the
fake."""

import asyncio
import errno
import re
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import msgpack, structs
from redis.asyncio import Redis

import relay.state.redis.calls as script_files
from relay.domain.errors import PartitionLost, StateRecovering, StateUnavailable, UserError
from relay.domain.hold import Hold
from relay.domain.identity import DeliveryId, MessageId, digest12
from relay.log.port import TopicPartition
from relay.state.attempts import Change, Go, Settlement, Wait
from relay.state.port import Gap, Restored
from relay.state.read_model import Heartbeat, LaneHeartbeat, LineHead, Served
from relay.state.redis.state import RedisState
from relay.state.replies import answered, of
from relay.state.rows import (
    TAGS,
    Arrival,
    Due,
    DueRequest,
    Mark,
    ParkedLife,
    Result,
    Row,
    RowKey,
    Stage,
    delivery_row,
    tag_of,
)
from tests.contract.state_contract import LANE, LIMITS, ask, begun, doubt_of, outcome, peeked, row, settled
from tests.contract.state_parking_contract import QUEUE, TAG, due, parked
from tests.contract.state_statistics_contract import tally
from tests.contract.test_state_urls import refuses_to_start
from tests.expecting import expect
from tests.servers.busy import busy
from tests.servers.valkey import Fsync, ValkeyServer

DAY_S = 86_400
Start = Callable[..., ValkeyServer]


@pytest.fixture
def start() -> Iterator[Start]:
    servers: list[ValkeyServer] = []

    def started(*, fsync: Fsync | None = None, options: tuple[str, ...] = ()) -> ValkeyServer:
        server = ValkeyServer(fsync=fsync, options=options)
        servers.append(server)
        server.start()
        return server

    yield started
    for server in servers:
        server.stop()


@pytest.fixture
def server(start: Start) -> ValkeyServer:
    return start()


@pytest.fixture
async def client(server: ValkeyServer) -> AsyncIterator[Redis]:
    async with Redis.from_url(server.url) as client:
        yield client


@pytest.fixture
async def state(server: ValkeyServer) -> AsyncIterator[RedisState]:
    """Of `server`, and ready."""
    async with connected(server) as state:
        await recover(state)
        yield state


@asynccontextmanager
async def connected(server: ValkeyServer, clock: Callable[[], float] | None = None) -> AsyncIterator[RedisState]:
    state = RedisState(server.url, clock=clock)
    try:
        await state.start()
        yield state
    finally:
        await state.close()


async def command(client: Redis, *words: str) -> None:
    await client.execute_command(*words)  # type: ignore[no-untyped-call]


async def life(client: Redis, key: str | bytes) -> tuple[bytes, dict[str, object]]:
    """The first line of a stored life, and the fields after it."""
    stored = expect(bytes, await client.get(key))
    first, _, about = stored.partition(b"\n")
    return first, msgpack.decode(about)


async def recover(state: RedisState) -> None:
    await state.ready(sorted(await state.lost()), in_doubt_s=7 * DAY_S)


async def evict(client: Redis) -> None:
    """The server evicts all keys that expire."""
    await client.set("volatile", "", ex=1000)
    await client.config_set("maxmemory-policy", "volatile-random")
    await client.config_set("maxmemory", 1)
    await client.config_set("maxmemory", 0)


class TestStart:
    async def test_nothing_is_read_later_that_calls_need(self, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
        """A process that has no descriptor left cannot open a script at its first use."""

        def out_of_descriptors(name: str) -> str:
            raise OSError(errno.EMFILE, "Too many open files", name)

        async with connected(start()) as state:
            monkeypatch.setattr(script_files, "_read", out_of_descriptors)
            script_files.script.cache_clear()
            await recover(state)
            assert await begun(state, row(1)) == Go(1, 0.0)
            assert (await settled(state, row(1), Change.RETRY)).stage is Stage.ENQUEUED
            assert await state.failed_receivers() == []

    async def test_a_server_that_may_evict_is_refused(self, start: Start) -> None:
        server = start(options=("--maxmemory-policy", "allkeys-lru"))
        await refuses_to_start(server.url, UserError, "noeviction")

    async def test_a_wrong_password_is_the_users_mistake(self, start: Start) -> None:
        server = start(options=("--requirepass", "right"))
        await refuses_to_start(server.url.replace("unix://", "unix://:wrong@"), UserError, "password")

    async def test_a_database_that_the_server_lacks_is_the_users_mistake(self, server: ValkeyServer) -> None:
        await refuses_to_start(f"{server.url}?db=99", UserError, "has no database of the number in the URL")

    async def test_a_user_who_may_not_read_the_clock_is_refused(self, server: ValkeyServer, client: Redis) -> None:
        await command(client, "ACL", "SETUSER", "default", "-time")
        await refuses_to_start(server.url, UserError, "this user may not run TIME; `relay rights` prints")

    async def test_no_server_is_unavailable(self, server: ValkeyServer) -> None:
        server.kill()
        why = r"^Redis: no server answers at /tmp/\S+: connection refused$"
        await refuses_to_start(server.url, StateUnavailable, why)

    async def test_a_host_without_an_address_is_named(self) -> None:
        why = r"^Redis: no server answers at relay\.invalid:6399: [a-z -]+$"
        await refuses_to_start("redis://relay.invalid:6399", StateUnavailable, why)

    async def test_a_user_without_config_is_enough(self, server: ValkeyServer, client: Redis) -> None:
        await command(client, "ACL", "SETUSER", "relay", "on", ">pw", "~*", "+@all", "-config")
        state = RedisState(server.url.replace("unix://", "unix://relay:pw@"))
        await state.start()
        await recover(state)
        assert await begun(state, row()) == Go(1, 0.0)
        await state.close()


class TestNewerRelease:
    async def test_what_it_wrote_in_another_form_is_waited_for_and_left_as_it_is(
        self, client: Redis, state: RedisState
    ) -> None:
        await begun(state, row())
        lives = sorted(await client.keys("relay:{*}:life"))
        assert len(lives) == TAGS
        for key in lives:
            first, about = await life(client, key)
            newer = msgpack.encode(about | {"form": 2})
            await client.set(key, first + b" 2\n" + newer)
        before = await client.mget(lives)
        rows = {key: await client.hgetall(key) for key in await client.keys("relay:{*}:u:*")}

        with pytest.raises(StateRecovering):
            await answered(state.peek([row()]))
        with pytest.raises(StateUnavailable, match="a newer release wrote what Redis holds"):
            await state.lost()
        with pytest.raises(StateRecovering):
            await state.ready(range(TAGS), in_doubt_s=0)
        assert await client.mget(lives) == before
        assert {key: await client.hgetall(key) for key in await client.keys("relay:{*}:u:*")} == rows

    async def test_the_form_is_told_from_the_first_day_and_a_life_without_one_has_the_first(
        self, client: Redis, state: RedisState
    ) -> None:
        [key, *_] = sorted(await client.keys("relay:{*}:life"))
        first, about = await life(client, key)
        assert about.pop("form") == 1
        await client.set(key, first + b"\n" + msgpack.encode(about))
        assert await state.lost() == frozenset()


class TestKeys:
    """Of tables: a process of release 0.1 cannot find rows there, so there are none while it may be there."""

    @staticmethod
    async def keyed(client: Redis) -> set[bool]:
        return {(await client.get(key) or b"")[:1] == b"\2" for key in await client.keys("relay:{*}:tables")}

    @pytest.mark.parametrize(("in_doubt_s", "keyed"), [(0, True), (DAY_S, False)])
    async def test_a_new_installation_has_them_and_a_lost_memory_has_not(
        self, server: ValkeyServer, client: Redis, in_doubt_s: float, keyed: bool
    ) -> None:
        async with connected(server) as state:
            await state.ready(sorted(await state.lost()), in_doubt_s=in_doubt_s)
            await answered(state.mark([Mark(row(1), 0, Stage.DONE)]))
            assert await self.keyed(client) == {keyed}

    async def test_they_come_a_day_after_the_last_process_of_release_0_1(self, start: Start) -> None:
        server, now = start(), [1e9]
        before, after = [row(number) for number in range(300)], [row(number) for number in range(300, 600)]
        async with connected(server, lambda: now[0]) as state, Redis.from_url(server.url) as client:
            await recover(state)
            await answered(state.mark([Mark(key, 0, Stage.DONE) for key in before]))
            await state.attend(range(TAGS))
            now[0] += DAY_S
            for key in await client.keys("relay:{*}:there"):
                stored = expect(bytes, await client.get(key))
                await client.set(key, msgpack.encode(msgpack.decode(stored)[:2]))  # as such a process writes it
            await state.attend(range(TAGS))
            now[0] += DAY_S - 1
            await state.attend(range(TAGS))
            assert await self.keyed(client) == {False}
            now[0] += 1
            await state.attend(range(TAGS))
            assert await self.keyed(client) == {True}
            await answered(state.mark([Mark(key, 0, Stage.DONE) for key in after]))
            assert {found.stage for found in await answered(state.peek([*before, *after]))} == {Stage.DONE}


class TestSigns:
    async def test_releases_that_know_only_heads_read_them_and_are_read(self, start: Start) -> None:
        server, lane = start(), TopicPartition("to_receiver_ci", 0)
        head = LineHead(b"q" * 12, b"r" * 12, "github", "m-1", "r:ci", 3)
        async with connected(server, lambda: 1e9) as state, Redis.from_url(server.url) as client:
            await state.keep_heartbeats([LaneHeartbeat(*lane, Heartbeat((head,), "one", 2))])
            assert await state.heartbeats([lane]) == [Served((head,), "one", 2, ago_s=0.0)]
            [key] = await client.keys("relay:{*}:sign:*")
            kept = expect(bytes, await client.get(key))
            assert msgpack.decode(kept[6:], type=tuple[tuple[bytes, bytes, str, str], ...]) == (head[:4],)
        async with connected(server, lambda: 1e9 + 5) as later, Redis.from_url(server.url) as client:
            await client.set(key, int(1e12 + 2000).to_bytes(6, "big") + kept[6:])
            assert await later.heartbeats([lane]) == [Served((LineHead(*head[:4]),), ago_s=3.0)]


class TestLoss:
    """Each test begins with a delivery in flight, in a state that was made ready."""

    @asynccontextmanager
    async def in_flight(self, server: ValkeyServer, clock: Callable[[], float]) -> AsyncIterator[RedisState]:
        async with connected(server, clock) as state:
            await state.ready(sorted(await state.lost()), in_doubt_s=0)
            await begun(state, row())
            yield state

    async def test_a_snapshot_that_was_put_back_is_a_loss(self, start: Start, tmp_path: Path) -> None:
        server, now = start(fsync="always"), [1e9]
        files = server.directory / "appendonlydir"
        async with self.in_flight(server, lambda: now[0]) as state:
            await state.set_edition(1)
            shutil.copytree(files, tmp_path / "snapshot")
            await state.set_edition(2)
            server.kill()
            shutil.rmtree(files)
            shutil.copytree(tmp_path / "snapshot", files)
            server.start()
            assert await state.lost(2) == state.forgotten() == frozenset(range(TAGS))
            assert state.outdated()

    async def test_a_file_that_was_cut_is_a_loss_to_a_process_that_has_seen_more(
        self, start: Start, tmp_path: Path
    ) -> None:
        server, now = start(fsync="always"), [1e9]
        files = server.directory / "appendonlydir"
        async with self.in_flight(server, lambda: now[0]) as state, connected(server, lambda: now[0]) as other:
            shutil.copytree(files, tmp_path / "cut")
            for each in (state, other):
                now[0] += 60
                assert await each.lost() == frozenset()
            server.kill()
            shutil.rmtree(files)
            shutil.copytree(tmp_path / "cut", files)
            server.start()
            assert await state.lost() == state.forgotten() == frozenset(range(TAGS))
            assert not state.outdated()
            await recover(state)
            assert await state.lost() == await other.lost() == frozenset()

    async def test_keys_that_the_server_has_evicted_are_a_loss(self, start: Start) -> None:
        """An operator has changed its policy since the start."""
        server, now = start(fsync="always"), [1e9]
        async with self.in_flight(server, lambda: now[0]) as state, Redis.from_url(server.url) as client:
            now[0] += 60
            assert await state.lost() == frozenset()
            await evict(client)
            assert await state.lost() == state.forgotten() == frozenset(range(TAGS))
            await recover(state)
            assert await state.gaps([TAG]) == {TAG: Gap(now[0], 0.0)}
            now[0] += 60
            assert await state.lost() == frozenset()
            await client.config_resetstat()
            now[0] += 60
            assert await state.lost() == frozenset()
            await evict(client)
            assert await state.lost() == frozenset(range(TAGS))

    async def test_a_server_that_goes_on_evicting_does_not_begin_one_pass_after_the_other(self, start: Start) -> None:
        server, now = start(), [1e9]
        async with self.in_flight(server, lambda: now[0]) as state, Redis.from_url(server.url) as client:
            now[0] += 60
            await evict(client)
            await recover(state)
            await evict(client)
            now[0] += 9
            assert await state.lost() == frozenset()
            now[0] += 1
            assert await state.lost() == frozenset(range(TAGS))

    async def test_a_restart_that_lost_nothing_brings_no_doubt(self, start: Start) -> None:
        server, now = start(fsync="always"), [1e9]
        async with self.in_flight(server, lambda: now[0]) as state:
            server.restart()
            with pytest.raises(StateRecovering):
                await answered(state.peek([row()]))
            assert await state.lost() == frozenset(range(TAGS))
            assert state.forgotten() == frozenset()
            await recover(state)
            assert (await peeked(state, row())).stage is Stage.SENDING
            assert await begun(state, row(2), ask_first=True) == Go(1, 0.0)

    async def test_what_ended_before_the_memory_was_last_seen_need_not_be_rebuilt(self, start: Start) -> None:
        """The memory returned without its last writes; only an empty one has to be rebuilt completely."""
        server, now = start(fsync="everysec"), [1e9]
        async with self.in_flight(server, lambda: now[0]) as state:
            now[0] += 3_600
            await state.lost()  # as every process asks, twice a minute
            async with Redis.from_url(server.url, single_connection_client=True, socket_timeout=None) as client:
                await client.set("written", "last")  # WAITAOF waits for the writes of its own connection
                assert await client.waitaof(1, 0, 60_000) == [1, 0]
            now[0] += 60
            server.restart()
            await state.lost()
            await recover(state)
            assert await state.gaps([0]) == {0: Gap(since=1e9 + 3_660, kept_until=1e9 + 3_600)}
            await state.close_gaps(await state.gaps([0]))
            assert await state.gaps([0, 1]) == {1: Gap(since=1e9 + 3_660, kept_until=1e9 + 3_600)}
            await self.emptied(server)
            now[0] += 60
            await state.lost()
            await recover(state)
            assert await state.gaps([0, 1]) == dict.fromkeys([0, 1], Gap(since=1e9 + 3_720, kept_until=0.0))

    @pytest.mark.parametrize("index", ["due", "ref", "q", "hand", "i"])
    async def test_the_check_makes_parked_ones_due_whose_index_is_lost(
        self, client: Redis, state: RedisState, index: str
    ) -> None:
        """A single key is lost, as after an operator's DEL."""
        entries = [parked(number, queue=None if number == 4 else QUEUE) for number in (1, 2, 3, 4)]
        await answered(state.park(of(LANE, entries)))
        await answered(state.take_due(of(LANE, [DueRequest(TAG, 1)]), lease_s=0))
        found = [key async for key in client.scan_iter(f"*}}:{index}:*" if index != "i" else "*}:i")]
        assert not found or await client.delete(*found)
        await state.restore(LANE, entries)
        sent: list[Due] = []
        while some := (await answered(state.take_due(of(LANE, [DueRequest(TAG, 9)]), lease_s=30)))[0]:
            await answered(state.mark([Mark(one.row, 0, Stage.DONE) for one in some]))
            await answered(state.unpark(of(LANE, [ParkedLife(one.row, 0) for one in some])))
            sent += some
        assert [one for one in sent if one.row != row(4)] == list(map(due, entries[:3]))
        assert len(sent) == len(entries)

    @staticmethod
    async def emptied(server: ValkeyServer) -> None:
        async with Redis.from_url(server.url) as client:
            await client.flushall()

    @pytest.mark.parametrize("fsync", ["no", "everysec"])
    async def test_a_restart_that_may_have_lost_something_does(self, start: Start, fsync: Fsync) -> None:
        server, now = start(fsync=fsync), [1e9]
        async with self.in_flight(server, lambda: now[0]) as state:
            server.restart()
            await state.lost()
            assert state.forgotten() == frozenset(range(TAGS))
            await recover(state)
            assert isinstance(await begun(state, row(2), ask_first=True), Wait)
            now[0] += LIMITS.settle_s
            assert await doubt_of(state, row(2), ask_first=True)

    async def test_an_empty_server_in_its_place_is_noticed(self, start: Start) -> None:
        server, now = start(fsync="always"), [1e9]
        async with self.in_flight(server, lambda: now[0]) as state:
            await answered(state.park(of(LANE, [parked(1)])))
            server.wipe()
            with pytest.raises(StateRecovering):
                await answered(state.begin(of(LANE, [ask(row())])))
            assert await state.lost() == frozenset(range(TAGS))
            assert await state.restore(LANE, [parked(1)]) == [Restored.PUT_BACK]
            await recover(state)
            now[0] += LIMITS.settle_s
            assert await doubt_of(state, row(2), ask_first=True)

    async def test_a_former_server_that_takes_over_again_is_looked_at_before_it_is_used(self, start: Start) -> None:
        """As a master that was cut off while its successor led: no command has made it a replica."""
        former, successor = start(), start()
        address = former.directory / "address"
        address.symlink_to(former.directory / "s")
        state, other = RedisState(f"unix://{address}"), RedisState(f"unix://{address}")

        async def taken_over(by: ValkeyServer, before: ValkeyServer) -> None:
            address.unlink()
            address.symlink_to(by.directory / "s")
            async with Redis.from_url(before.url) as client:
                await command(client, "CLIENT", "KILL", "TYPE", "normal")

        await recover(state)
        assert await other.lost() == frozenset()
        await taken_over(successor, former)
        await recover(state)
        assert await begun(state, row(1)) == Go(1, 0.0)
        with pytest.raises(StateRecovering):
            await peeked(other, row(1))
        assert await other.lost() == frozenset()
        assert (await peeked(other, row(1))).attempts == 1

        await taken_over(former, successor)
        for each in (state, other):
            with pytest.raises(StateRecovering):
                await peeked(each, row(1))
        assert await state.lost() == state.forgotten() == frozenset(range(TAGS))
        for each in (state, other):
            await each.close()

    @pytest.mark.parametrize("rubbish", [b"", b"rubbish", b"ready x\n\xc1", b"ready x\n\x01"])
    async def test_a_life_that_cannot_be_read_is_a_loss(self, client: Redis, state: RedisState, rubbish: bytes) -> None:
        await client.set("relay:{00}:life", rubbish)
        await client.delete("relay:{01}:life")
        await client.sadd("relay:{01}:life", "rubbish")
        assert await state.lost() == state.forgotten() == {0, 1}
        await recover(state)
        assert await state.lost() == frozenset()

    async def test_doubt_outlives_a_restart_that_lost_nothing(self, start: Start) -> None:
        server, now = start(fsync="always"), [1e9]
        async with connected(server, lambda: now[0]) as state:
            await recover(state)
            server.restart()
            await recover(state)
            now[0] += LIMITS.settle_s
            assert await doubt_of(state, row(2), ask_first=True)

    async def test_a_pass_that_a_restart_cut_off_makes_nothing_ready(self, start: Start) -> None:
        server, now = start(fsync="no"), [1e9]
        async with self.in_flight(server, lambda: now[0]) as state:
            server.wipe()
            tags = sorted(await state.lost())
            server.wipe()
            with pytest.raises(StateRecovering):
                await state.restore(LANE, [parked(1)])
            with pytest.raises(StateRecovering):
                await state.ready(tags, in_doubt_s=0)

    async def test_a_second_process_sees_the_pass_and_its_end(self, start: Start) -> None:
        server, now = start(), [1e9]
        async with connected(server, lambda: now[0]) as one, connected(server, lambda: now[0]) as other:
            tags = sorted(await one.lost())
            assert await other.lost() == frozenset(tags)
            await one.ready(tags, in_doubt_s=0)
            assert await other.lost() == frozenset()
            assert await begun(other, row()) == Go(1, 0.0)

    async def test_a_new_replication_id_is_noticed_by_open_connections(self, start: Start) -> None:
        server, now = start(options=("--enable-debug-command", "local")), [1e9]
        client = Redis.from_url(server.url)
        async with self.in_flight(server, lambda: now[0]) as one, connected(server, lambda: now[0]) as other:
            await command(client, "DEBUG", "CHANGE-REPL-ID")
            async with connected(server, lambda: now[0]) as fresh:
                with pytest.raises(StateRecovering):
                    await answered(fresh.peek([row()]))
                await recover(fresh)
            for state in (one, other):
                assert (await peeked(state, row())).stage is Stage.SENDING
        await client.aclose()


class TestFaults:
    async def test_that_the_server_is_away_is_told_of_each_item(self, server: ValkeyServer, state: RedisState) -> None:
        server.kill()
        asks = [(LANE, ask(row(1))), (LANE._replace(partition=1), ask(row(1, "other")))]
        assert [type(each) for each in await state.begin(asks)] == [StateUnavailable] * 2
        assert [type(each) for each in await state.settle([outcome(row(), Change.RETRY)])] == [StateUnavailable]

    async def test_out_of_memory_is_unavailable_until_there_is_room(self, client: Redis, state: RedisState) -> None:
        await begun(state, row(1))
        await client.config_set("maxmemory", "1")
        with pytest.raises(StateUnavailable, match="maxmemory"):
            await begun(state, row(2))
        assert (await peeked(state, row(1))).attempts == 1
        await client.config_set("maxmemory", "0")
        assert await begun(state, row(2)) == Go(1, 0.0)

    async def test_a_key_of_another_type_is_named(self, client: Redis, state: RedisState) -> None:
        await begun(state, row(1))
        [key] = await client.keys("relay:*:u:*")
        await client.set(key, "of another program")
        name = re.escape(expect(bytes, key).decode())
        with pytest.raises(StateUnavailable, match=f"WRONGTYPE.*: {name}; .* delete it"):
            await begun(state, row(2))
        await client.delete(key)
        assert await begun(state, row(2)) == Go(1, 0.0)

    async def test_a_server_that_is_busy_with_a_script_is_unavailable(
        self, server: ValkeyServer, state: RedisState
    ) -> None:
        async with busy(server.url):
            with pytest.raises(StateUnavailable, match="BUSY"):
                await begun(state, row(1))
            with pytest.raises(StateUnavailable, match="BUSY"):
                await state.start()
        assert await begun(state, row(1)) == Go(1, 0.0)

    async def test_forgotten_scripts_are_loaded_again(self, client: Redis, state: RedisState) -> None:
        await begun(state, row())
        await client.script_flush()
        assert isinstance(await begun(state, row(), b"t2"), Wait)

    async def test_cut_connections_are_replaced(self, client: Redis, state: RedisState) -> None:
        for number in range(3):
            await command(client, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            assert await begun(state, row(number)) == Go(1, 0.0)

    async def test_a_replica_is_unavailable(self, client: Redis, state: RedisState) -> None:
        await command(client, "REPLICAOF", "127.0.0.1", "1")
        with pytest.raises(StateUnavailable):
            await begun(state, row())


class TestHints:
    async def test_another_process_is_told(self, server: ValkeyServer, state: RedisState) -> None:
        async with connected(server) as other, other.hints() as heard, asyncio.timeout(20):
            await answered(state.mark([Mark(row(1), 0, Stage.DONE, (0, 1), awaited=True)]))
            assert await anext(heard) == row(1).digest

    async def test_whoever_listens_is_told_that_the_server_has_gone(
        self, server: ValkeyServer, state: RedisState
    ) -> None:
        async with state.hints() as heard, asyncio.timeout(20):
            server.kill()
            with pytest.raises(StateUnavailable):
                await anext(heard)
        with pytest.raises(StateUnavailable):
            async with state.hints():
                pass

    async def test_a_login_without_channels_hears_nothing_and_marks_all_the_same(
        self, server: ValkeyServer, client: Redis
    ) -> None:
        await command(client, "ACL", "SETUSER", "relay", "on", ">pw", "~*", "resetchannels", "+@all")
        state = RedisState(server.url.replace("unix://", "unix://relay:pw@"))
        await state.start()
        await recover(state)
        with pytest.raises(StateUnavailable, match="channel"):
            async with state.hints():
                pass
        await answered(state.mark([Mark(row(1), 0, Stage.DONE, (0, 1), awaited=True)]))
        assert (await peeked(state, row(1))).stage is Stage.DONE
        await state.close()

    async def test_nothing_is_published_where_nobody_waits(self, client: Redis, state: RedisState) -> None:
        await answered(state.mark([Mark(row(1), 0, Stage.DONE, (0, 1))]))
        assert "cmdstat_publish" not in await client.info("commandstats")
        await answered(state.mark([Mark(row(2), 0, Stage.DONE, (0, 1), awaited=True)]))
        assert (await client.info("commandstats"))["cmdstat_publish"]["calls"] == 1


class TestManyTags:
    """Rows of many receivers, so of many tags, in one script call."""

    KEYS: Final = tuple(row(number, f"receiver-{number}") for number in range(100))

    async def test_a_tag_that_is_not_ready_does_not_hinder_the_others(self, client: Redis, state: RedisState) -> None:
        lost = tag_of(self.KEYS[0].owner)
        await client.delete(f"relay:{{{lost:02d}}}:life")
        with pytest.raises(StateRecovering) as refused:
            await answered(state.mark([Mark(key, 0, Stage.DONE) for key in self.KEYS]))
        assert refused.value.tags == {lost}
        others = [key for key in self.KEYS if tag_of(key.owner) != lost]
        assert {found.stage for found in await answered(state.peek(others))} == {Stage.DONE}
        await state.lost()
        await state.ready([lost], in_doubt_s=0)
        assert (await peeked(state, self.KEYS[0])).stage is Stage.NONE

    async def test_a_tag_that_is_fenced_does_not_hinder_the_others(self, state: RedisState) -> None:
        await answered(state.begin(of(LANE._replace(epoch=LANE.epoch + 1), [ask(self.KEYS[0])])))
        with pytest.raises(PartitionLost):
            await answered(state.begin(of(LANE, [ask(key) for key in self.KEYS])))
        fenced = tag_of(self.KEYS[0].owner)
        begun_ones = [key for key in self.KEYS if tag_of(key.owner) != fenced]
        assert {found.stage for found in await answered(state.peek(begun_ones))} == {Stage.SENDING}

    async def test_nothing_of_one_tag_shows_in_another(self, state: RedisState) -> None:
        """Endpoints, intents and rows are looked up separately for each tag."""
        await state.hold(self.KEYS[0].owner, Hold("paused", await state.time()))
        await answered(state.intend_to_park(of(LANE, [self.KEYS[1]])))
        verdicts = await answered(state.begin(of(LANE, [ask(key) for key in self.KEYS])))
        assert [isinstance(verdict, Go) for verdict in verdicts] == [number > 0 for number in range(100)]
        told = await answered(state.settle([outcome(key, Change.RESULT) for key in self.KEYS[1:]]))
        assert [found is None for found in told] == [number > 0 for number in range(99)]


class TestRowForms:
    """Rows have several forms in the server; each says the same, whatever the next step."""

    @pytest.mark.parametrize("token", [b"t", b"\xff\x00" * 4, b"x" * 255, b"x" * 256, b"x" * 3000])
    @pytest.mark.parametrize("generation", [0, 3, 65_535, 65_536])
    async def test_the_usual_way_with_any_token_generation_and_body(
        self, state: RedisState, token: bytes, generation: int
    ) -> None:
        answer = Result("answered", 200, "text/plain", bytes(range(256)) * 80)
        for key in (row(0), row(1)):  # the first begin makes the table, the second finds it
            assert await begun(state, key, token, generation=generation) == Go(1, 0.0)
            assert await begun(state, key, token, generation=generation) == Go(1, 0.0)
            told = Settlement(key, generation, token, Change.RESULT, last_status=200, result=answer)
            assert await answered(state.settle([told])) == [None]
            now = Row(Stage.RESULT, generation, attempts=1, last_status=200, result=answer)
            assert await answered(state.settle([told])) == [now]
            assert await peeked(state, key) == now
            await answered(state.mark([Mark(key, generation, Stage.PUBLISHED, (299, 2**40))]))
            assert await peeked(state, key) == replace(now, stage=Stage.PUBLISHED, at=(299, 2**40), result=None)
            await answered(state.mark([Mark(key, generation, Stage.DONE, None, 7)]))
            assert (await peeked(state, key)).at == (299, 2**40)

    async def test_many_rows_of_a_tag_in_one_batch(self, state: RedisState) -> None:
        keys = [row(number) for number in range(2500)]
        for epoch in (1, 2):
            lane = LANE._replace(epoch=epoch)
            token = b"t%d" % epoch
            verdicts = await answered(state.begin(of(lane, [ask(key, token, generation=epoch) for key in keys])))
            assert verdicts == [Go(1, 0.0)] * len(keys)
            told = await answered(
                state.settle([structs.replace(outcome(key, Change.RESULT, token), generation=epoch) for key in keys])
            )
            assert told == [None] * len(keys)
            await answered(state.mark([Mark(key, epoch, Stage.DONE, (0, 9)) for key in keys]))
        assert {found.generation for found in await answered(state.peek(keys))} == {2}


class TestServerClock:
    async def test_starts_are_paced_by_the_servers_own_clock(self, server: ValkeyServer) -> None:
        limits = replace(LIMITS, interval_s=0.25)
        async with connected(server) as state:
            await state.ready(sorted(await state.lost()), in_doubt_s=0)
            verdicts = await answered(state.begin(of(LANE, [ask(row(number), limits=limits) for number in range(8)])))
        starts = [verdict.start_in_s for verdict in verdicts if isinstance(verdict, Go)]
        assert starts == pytest.approx([0, 0.25, 0.5, 0.75, 1.0])
        assert all(isinstance(verdict, Wait) and verdict.why == "rate" for verdict in verdicts[5:])

    async def test_the_time_is_the_servers(self, server: ValkeyServer, client: Redis) -> None:
        async with connected(server) as state:  # not ready: it was not recovered
            before = await client.time()
            now = await state.time()
            after = await client.time()
        assert before[0] + before[1] / 1e6 <= now <= after[0] + after[1] / 1e6

    async def test_the_time_of_a_server_that_is_away(self, server: ValkeyServer, state: RedisState) -> None:
        await state.time()
        server.stop()
        with pytest.raises(StateUnavailable):
            await state.time()


def finished(number: int) -> tuple[Arrival, Mark]:
    source, message = f"source-{number % 500}", f"message-{number}"
    arrival = Arrival(MessageId(source, message), digest12(message)[:6], number % 10, 3_000_000_000 + number)
    key = delivery_row(DeliveryId(f"receiver-{number % 300}", source, message))
    return arrival, Mark(key, 0, Stage.DONE, (number % 10, 3_000_000_000 + number), 1)


class TestMemory:
    async def test_a_finished_message_with_its_delivery_takes_64_bytes(self, client: Redis, state: RedisState) -> None:
        messages, batch = 40_000, 1000
        for first in range(messages, messages + 10 * batch, batch):  # so that scripts, keys and buffers are there
            await self.finish(state, range(first, first + batch))
        before = (await client.info("memory"))["used_memory"]
        for first in range(0, messages, batch):
            await self.finish(state, range(first, first + batch))
        used = (await client.info("memory"))["used_memory"] - before
        assert used / messages <= 64

    async def finish(self, state: RedisState, numbers: range) -> None:
        arrivals, marks = zip(*map(finished, numbers), strict=True)
        await answered(state.arrive(arrivals))
        await answered(state.enqueued(arrivals))
        await answered(state.begin(of(LANE, [ask(mark.row) for mark in marks])))
        answer = Result("answered", 200, "text/plain", b"ok")
        await answered(
            state.settle([outcome(mark.row, Change.RESULT, result=answer, last_status=200) for mark in marks])
        )
        await answered(state.mark(marks))

    async def test_every_key_but_a_fixed_few_expires(self, client: Redis, state: RedisState) -> None:
        await self.finish(state, range(2000))
        await begun(state, row())
        await state.tally("one", 1, [tally(1)])
        lasting = {key async for key in client.scan_iter(count=1000) if await client.pttl(key) < 0}
        kinds = {key.split(b"}:")[1].split(b":")[0] for key in lasting}
        assert kinds == {b"life", b"tables", b"clock", b"ep"}


class TestLinearHashing:
    WINDOW_S = 600.0

    @settings(max_examples=15)
    @given(
        steps=st.lists(
            st.tuples(st.integers(1, 700), st.integers(0, 50), st.sampled_from([0, 100, 299, 301])), max_size=6
        )
    )
    async def test_no_row_is_ever_lost(self, start: Start, steps: list[tuple[int, int, int]]) -> None:
        """Rows of one tag against a dict: of each step so many new ones, so many of before in a new generation, and
        seconds that pass after it."""
        server, now = start(), [1e9]
        expected: dict[RowKey, tuple[int, float]] = {}
        state = RedisState(server.url, dedup_window_s=self.WINDOW_S, clock=lambda: now[0])
        try:
            await recover(state)
            for new, again, seconds in steps:
                keys = [*list(expected)[::7][:again], *(row(len(expected) + number) for number in range(new))]
                for key in keys:
                    generation, _ = expected.get(key, (-1, 0.0))
                    expected[key] = (generation + 1, now[0])
                await answered(state.mark([Mark(key, expected[key][0], Stage.DONE) for key in keys]))
                now[0] += seconds
                await self.compare(state, expected, now[0])
        finally:
            await state.close()
        await self.check_buckets(server)
        server.stop()

    async def compare(self, state: RedisState, expected: dict[RowKey, tuple[int, float]], now: float) -> None:
        found = await answered(state.peek(list(expected)))
        for (generation, at), known in zip(expected.values(), found, strict=True):
            if now - at < self.WINDOW_S:
                assert (known.stage, known.generation) == (Stage.DONE, generation)
            elif now - at > 1.5 * self.WINDOW_S:
                assert known.stage is Stage.NONE

    async def check_buckets(self, server: ValkeyServer) -> None:
        async with Redis.from_url(server.url) as client:
            async for bucket in client.scan_iter("relay:*:f:*", count=1000):
                assert 0 < await client.pttl(bucket) <= 1.5 * self.WINDOW_S * 1000
                assert await client.object("ENCODING", bucket) == b"listpack"
                assert await client.hlen(bucket) <= 200
