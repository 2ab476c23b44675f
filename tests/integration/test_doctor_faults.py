"""Tests of the checks of `relay doctor` on real servers: each planted fault is reported with its fix."""

import asyncio
import json
import re
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from redis.asyncio import Redis

from relay.config.settings import Settings
from relay.domain.errors import StateUnavailable
from relay.domain.identity import DeliveryId
from relay.history.sqlite import SqliteHistory
from relay.log.port import Coordinate, NewRecord
from relay.run.composition import open_log, redis_state
from relay.sink import Sink
from relay.state.port import FailedEntry, Lane, State
from relay.state.read_model import LaneHeartbeat
from relay.state.replies import answered, of
from relay.state.rows import TAGS, Parked, delivery_row
from relay.watch.readiness import inspect_state
from tests.fakes.certificates import Issued, authority, issued
from tests.integration.doctor_rig import NOWHERE, SECRET, DoctorRig, doctor_rig, formatted, named, only, silent
from tests.servers.http import started
from tests.servers.kafka import Broker, alter_topic
from tests.servers.valkey import ValkeyServer

OURS = authority("ours")


@pytest.fixture
async def rig(
    kafka_broker: Broker, redis_server: ValkeyServer, tmp_path: Path, unique_prefix: str
) -> AsyncIterator[DoctorRig]:
    async with doctor_rig(kafka_broker, redis_server, tmp_path, unique_prefix) as rig:
        rig.receivers["ci"] = {"post_endpoint": "http://127.0.0.1:9/", "secret": SECRET}
        yield rig


@pytest.fixture
def forgetful() -> Iterator[ValkeyServer]:
    """A Redis that stores nothing on disk and evicts keys."""
    with ValkeyServer(options=("--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")) as server:
        yield server


@asynccontextmanager
async def serving(certificate: Issued) -> AsyncIterator[str]:
    """The URL of a server with that certificate."""
    context: ssl.SSLContext = certificate.server_context()
    server = await asyncio.start_server(silent, "127.0.0.1", 0, ssl=context)
    async with server:
        yield f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/hooks"


# --- the log --------------------------------------------------------------------------------------------------------


async def test_kafka_is_away(rig: DoctorRig) -> None:
    rig.environ["RELAY_KAFKA_BOOTSTRAP_SERVERS"] = NOWHERE
    found = await rig.run()
    assert not found.ok
    line = only(found, "log", "error")
    assert NOWHERE in line.what
    assert "RELAY_KAFKA_BOOTSTRAP_SERVERS" in (line.todo or "")
    assert {each.severity for name in ("rights", "topics", "lag", "lanes") for each in named(found, name)} == {
        "skipped"
    }
    assert only(found, "state", "ok")
    assert "by the receivers file" in only(found, "entries", "ok").what


async def test_topics_are_missing(rig: DoctorRig) -> None:
    line = only(await rig.run("topics"), "topics", "error")
    assert "is missing" in line.what
    assert line.todo == "relay topics apply"
    assert rig.topics.prefix in (line.subject or "")


async def test_too_few_partitions(rig: DoctorRig) -> None:
    await rig.create(partitions={rig.topics.parked_messages: 3})
    line = only(await rig.run("topics"), "topics", "error")
    assert line.subject == rig.topics.parked_messages
    assert "it has 3 partitions and must have 10" in line.what


async def test_a_topic_deletes_what_is_unread(rig: DoctorRig) -> None:
    await rig.create()
    await alter_topic(rig.environ["RELAY_KAFKA_BOOTSTRAP_SERVERS"], rig.topics.to_sender, retention_bytes="1000000")
    line = only(await rig.run("topics"), "topics", "error")
    assert (line.subject, "retention.bytes is 1000000" in line.what) == (rig.topics.to_sender, True)
    assert f"--entity-name {rig.topics.to_sender} --add-config retention.bytes=-1" in (line.todo or "")


async def test_a_backlog_grows_and_stands_still(rig: DoctorRig) -> None:
    await rig.create()
    async with open_log(rig.settings) as log:
        await log.append([NewRecord(rig.topics.from_sender, b"shop", b"{}") for _ in range(3)])
        rig.clock.meanwhile = lambda: log.append([NewRecord(rig.topics.from_sender, b"shop", b"{}")])
        assert only(await rig.run("lag"), "lag", "ok").what.startswith("4 records are unread")
        rig.clock.ahead_s = 600
        line = only(await rig.run("lag"), "lag", "warning")
    assert line.subject == rig.topics.from_sender
    assert re.match("5 records are unread, the oldest for (10m|60[1-9]s|6[1-5][0-9]s|11m)", line.what), line.what
    assert "none was finished and 1 arrived" in line.what
    assert "relay worker from-sender" in (line.todo or "")


async def test_the_clock_is_behind_what_is_on_the_log(rig: DoctorRig) -> None:
    await rig.create()
    async with open_log(rig.settings) as log:
        await log.append([NewRecord(rig.topics.from_sender, b"shop", b"{}")])
    rig.clock.ahead_s = -3_600
    lines = [each.what for each in named(await rig.run("clock"), "clock") if each.severity == "error"]
    assert sorted("Redis" in line for line in lines) == [False, True]


# --- the state ------------------------------------------------------------------------------------------------------


async def test_redis_is_away(rig: DoctorRig) -> None:
    await rig.create()
    rig.environ["RELAY_REDIS_URL"] = f"redis://:s3cr3t-pass@{NOWHERE}/0"
    found = await rig.run()
    line = only(found, "state", "error")
    assert NOWHERE in line.what
    assert line.todo == "start Redis, or correct RELAY_REDIS_URL"
    skipped = ("recovery", "lanes", "parked", "dead-letters")
    assert {each.severity for name in skipped for each in named(found, name)} == {"skipped"}
    assert only(found, "log", "ok")
    assert "s3cr3t-pass" not in formatted(found.checks)


async def test_redis_may_evict(rig: DoctorRig, forgetful: ValkeyServer) -> None:
    rig.environ["RELAY_REDIS_URL"] = forgetful.url
    line = only(await rig.run("state"), "state", "error")
    assert "maxmemory-policy is allkeys-lru" in line.what
    assert "redis-cli CONFIG SET maxmemory-policy noeviction" in (line.todo or "")


async def test_redis_has_no_memory_left(rig: DoctorRig) -> None:
    """Redis still serves reads, but no process can store its heartbeat."""
    with ValkeyServer(fsync="everysec", options=("--maxmemory-policy", "noeviction")) as server:
        rig.environ["RELAY_REDIS_URL"] = server.url
        await rig.create()
        await made_ready(rig)
        async with Redis.from_url(server.url) as client, open_state(rig.settings) as state:
            await inspect_state(state, "a process")
            await client.config_set("maxmemory", 1)
            with pytest.raises(StateUnavailable, match="has reached maxmemory and refuses writes"):
                await inspect_state(state, "a process")
        found = await rig.run("state", "lanes", "parked")
    [line] = named(found, "state")
    assert (line.severity, line.what) == ("error", "Redis: the server has reached maxmemory and refuses writes")
    assert line.todo == "raise maxmemory, or free memory: see RELAY_DEDUP_WINDOW"
    assert {each.severity for each in named(found, "lanes")} == {"skipped"}
    assert {each.severity for each in named(found, "parked")} == {"ok"}


async def test_redis_keeps_nothing(rig: DoctorRig) -> None:
    with ValkeyServer(options=("--maxmemory-policy", "noeviction")) as server:
        rig.environ["RELAY_REDIS_URL"] = server.url
        line = only(await rig.run("state"), "state", "warning")
    assert "stores nothing on disk" in line.what
    assert "redis-cli CONFIG SET appendonly yes" in (line.todo or "")


async def test_what_redis_knew_is_not_put_back(rig: DoctorRig) -> None:
    line = only(await rig.run("recovery"), "recovery", "warning")
    assert "64 of 64 hash tags" in line.what
    await made_ready(rig)
    assert only(await rig.run("recovery"), "recovery", "ok")


async def test_the_clock_is_off(rig: DoctorRig) -> None:
    assert only(await rig.run("clock"), "clock", "ok")
    rig.clock.ahead_s = 3_600
    line = only(await rig.run("clock"), "clock", "error")
    assert "3600 s ahead of that of Redis" in line.what
    assert "NTP" in (line.todo or "")


async def test_nobody_serves_a_lane(rig: DoctorRig) -> None:
    await rig.create()
    everything = await rig.run("lanes")
    assert "no relay runs" in only(everything, "lanes", "error").what
    assert only(everything, "lanes", "error").todo == "relay run"
    served = [lane for lane in rig.topics.fixed_groups() if lane != rig.topics.to_sender]
    partitions = {spec.name: spec.partitions for spec in rig.topics.fixed()}
    async with open_state(rig.settings) as state, open_log(rig.settings) as log:
        await state.keep_heartbeats(
            [LaneHeartbeat(topic, number) for topic in served for number in range(partitions[topic])]
        )
        await state.keep_heartbeats([LaneHeartbeat(rig.topics.pending("ci"), 0)])
        await log.append([NewRecord(rig.topics.to_receiver("ci"), b"shop", b"{}")])
        found = await rig.run("lanes")
    line = only(found, "lanes", "error")
    assert (line.subject, line.todo) == (rig.topics.to_receiver("ci"), "relay worker to-receiver --receiver ci")
    assert "unread in them: 1" in line.what
    other = only(found, "lanes", "warning")
    assert (other.subject, other.todo) == (rig.topics.to_sender, "relay worker to-sender")


async def test_what_is_parked_nears_its_bound(rig: DoctorRig) -> None:
    await made_ready(rig)
    rig.environ |= {"RELAY_PARKED_PER_RECEIVER": "10", "RELAY_PARKED_TOTAL": "16"}
    row = [delivery_row(DeliveryId("ci", "shop", f"m-{number}")) for number in range(10)]
    at = Coordinate(rig.topics.parked_messages, 0, 0)
    parked = [Parked(each, 0, at, 3_600, None, number) for number, each in enumerate(row)]
    async with open_state(rig.settings) as state:
        await answered(state.park(of(Lane(rig.topics.to_receiver("ci"), 0, 1), parked)))
        found = await rig.run("parked")
    assert "10 of 16 records that may be parked in all" in only(found, "parked", "warning").what
    line = only(found, "parked", "error")
    assert (line.subject, "10 of 10" in line.what) == ("ci", True)
    assert "relay receivers health ci" in (line.todo or "")


async def test_there_are_dead_letters_of_the_last_hour(rig: DoctorRig) -> None:
    await made_ready(rig)
    async with open_state(rig.settings) as state:
        now = await state.time()
        at = [Coordinate(rig.topics.failed_messages, 0, number) for number in range(3)]
        ages = (10.0, 20.0, 7_200.0)
        letters = [FailedEntry("ci", at[n], now - age, "expired", "shop", f"m-{n}") for n, age in enumerate(ages)]
        await state.index_failed(letters)
    line = only(await rig.run("dead-letters"), "dead-letters", "warning")
    assert (line.subject, line.what) == ("ci", "2 within the last hour: 2 expired")
    assert line.todo == "relay failed list --receiver ci"


# --- receivers ------------------------------------------------------------------------------------------------------


async def test_a_secret_cannot_be_resolved(rig: DoctorRig) -> None:
    rig.receivers["ci"]["secret"] = "${CI_SECRET}"
    line = only(await rig.run("entries"), "entries", "error")
    assert "receivers.ci.secret: the environment variable CI_SECRET is not set" in line.what
    assert "RELAY_SECRETS_FROM" in (line.todo or "")
    rig.environ["CI_SECRET"] = SECRET
    assert only(await rig.run("entries"), "entries", "ok")


async def test_a_name_does_not_exist(rig: DoctorRig) -> None:
    rig.receivers["ci"]["post_endpoint"] = "https://nobody.invalid/hooks"
    [line] = named(await rig.run("dns"), "dns")
    assert line.severity in ("error", "warning")  # without a network, no name server says that there is none
    assert line.subject == "ci"
    assert "nobody.invalid" in line.what


async def test_a_certificate_has_expired(rig: DoctorRig) -> None:
    async with serving(issued(OURS, days=-1)) as url:
        rig.receivers["ci"] |= {"post_endpoint": url, "tls": {"ca": OURS.pem}}
        line = only(await rig.run("tls"), "tls", "error")
    assert line.subject == "ci"
    assert "certificate has expired" in line.what


async def test_a_certificate_expires_soon(rig: DoctorRig) -> None:
    async with serving(issued(OURS, days=3)) as url:
        rig.receivers["ci"] |= {"post_endpoint": url, "tls": {"ca": OURS.pem}}
        line = only(await rig.run("tls"), "tls", "warning")
        assert "expires in 3 days" in line.what
        async with serving(issued(OURS, days=30)) as renewed:
            rig.receivers["ci"]["post_endpoint"] = renewed
            assert only(await rig.run("tls"), "tls", "ok")


async def test_a_chain_is_self_signed(rig: DoctorRig) -> None:
    async with serving(issued(OURS)) as url:
        rig.sources["shop"] = {"callback": {"url": url, "secret": SECRET}}
        line = only(await rig.run("tls"), "tls", "error")
    assert line.subject == "callback of shop"
    assert "certificate verify failed" in line.what
    assert "RELAY_CA_FILE" in (line.todo or "")


async def test_an_address_is_private(rig: DoctorRig) -> None:
    rig.receivers["ci"]["post_endpoint"] = "https://10.1.2.3/hooks"
    line = only(await rig.run("address"), "address", "error")
    assert line.subject == "ci"
    assert line.todo == "if that is intended: RELAY_ALLOW_PRIVATE_NETWORKS=10.1.2.3/32"


async def test_nothing_accepts_a_connection(rig: DoctorRig) -> None:
    found = await rig.run("connection")
    assert only(found, "connection", "warning").subject == "ci"
    assert named(found, "tls") == []


# --- the API --------------------------------------------------------------------------------------------------------


async def test_the_public_url_leads_elsewhere(rig: DoctorRig) -> None:
    rig.environ["RELAY_PUBLIC_URL"] = f"http://{NOWHERE}"
    assert "does not answer from here" in only(await rig.run("public-url"), "public-url", "error").what
    sink = Sink("answer")
    async with started(sink):
        rig.environ["RELAY_PUBLIC_URL"] = sink.url.rpartition("/")[0]
        line = only(await rig.run("public-url"), "public-url", "error")
    assert "is not a relay" in line.what


async def test_strangers_may_use_the_api(rig: DoctorRig) -> None:
    await rig.create()
    rig.environ["RELAY_API_HOST"] = "0.0.0.0"  # noqa: S104
    line = only(await rig.run("api-key"), "api-key", "error")
    assert "can be reached from outside" in line.what
    assert "RELAY_API_KEY" in (line.todo or "")
    rig.environ["RELAY_API_INSECURE"] = "true"
    assert "RELAY_API_INSECURE" in only(await rig.run("api-key"), "api-key", "warning").what
    rig.environ["RELAY_API_KEY"] = "a key that nobody guesses"
    assert only(await rig.run("api-key"), "api-key", "ok")


async def test_no_key_of_the_api_is_valid(rig: DoctorRig) -> None:
    await rig.create()
    assert only(await rig.run("api-key"), "api-key", "ok")
    async with open_log(rig.settings) as log:
        await log.append([NewRecord(rig.topics.receiver_config, b"key:k5unreadable", b"{}")])
    line = only(await rig.run("api-key"), "api-key", "error")
    assert "none that was created is valid" in line.what
    assert "RELAY_API_KEY" in (line.todo or "")
    assert "keys create" not in (line.todo or ""), "that needs a key"
    rig.environ["RELAY_API_KEY"] = "a key that nobody guesses"
    assert only(await rig.run("api-key"), "api-key", "ok")


async def test_the_history_is_behind(rig: DoctorRig) -> None:
    async def behind() -> float:
        return 300.0

    line = only(await rig.run("history", history_behind=behind), "history", "warning")
    assert (line.what, line.todo) == ("5m behind the log", "relay worker history")


async def test_the_history_is_looked_at_by_the_command_itself(rig: DoctorRig) -> None:
    await rig.create()
    file = rig.directory / "kept" / "history.db"
    rig.environ["RELAY_HISTORY_URL"] = f"sqlite://{file}"
    found = await rig.run("history", "data", "log")
    assert f"{file.parent} does not exist" in only(found, "data", "error").what
    assert "no worker has created it" in only(found, "history", "error").what
    file.parent.mkdir()
    assert "no worker has created it" in only(await rig.run("history"), "history", "error").what
    assert not file.exists()  # looking makes nothing
    store = SqliteHistory(file)
    await store.start()
    await store.close()
    found = await rig.run("history", "data", "log")
    assert only(found, "history", "ok").what == "has all of the log"
    assert str(file.parent) in named(found, "data")[0].what
    rig.environ["RELAY_KAFKA_BOOTSTRAP_SERVERS"] = NOWHERE
    assert "the log cannot be reached" in only(await rig.run("history"), "history", "skipped").what


async def test_the_data_directory_cannot_be_used(rig: DoctorRig) -> None:
    missing = rig.directory / "gone"
    assert str(missing) in only(await rig.run("data", data_dir=missing), "data", "error").what
    assert "free on its disk" in named(await rig.run("data", data_dir=rig.directory), "data")[0].what


async def test_one_receiver_is_looked_at_alone(rig: DoctorRig) -> None:
    await rig.create()
    rig.receivers["cd"] = {"post_endpoint": "https://10.1.2.3/hooks", "secret": SECRET}
    found = await rig.run(receiver="ci")
    assert {each.subject for each in named(found, "connection")} == {"ci"}
    assert named(found, "address")[0].severity == "ok"
    assert {each.name for each in found.checks}.isdisjoint({"settings", "api-key", "recovery"})
    assert rig.topics.to_sender not in json.dumps([each.subject for each in named(found, "lanes")])
    assert "there is no receiver typo" in only(await rig.run(receiver="typo"), "entries", "error").what


@asynccontextmanager
async def open_state(settings: Settings) -> AsyncIterator[State]:
    state = redis_state(settings)
    await state.start()
    try:
        yield state
    finally:
        await state.close()


async def made_ready(rig: DoctorRig) -> None:
    """The state of a relay that has put back what there was."""
    async with open_state(rig.settings) as state:
        await state.lost()
        await state.ready(range(TAGS), in_doubt_s=0)
