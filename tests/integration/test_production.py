"""Tests of `relay run` on real Kafka and Redis with a plain Kafka producer: every message arrives once, in order and
unchanged, and every answer is returned."""

import json
import signal
from collections import Counter, defaultdict
from collections.abc import Sequence

import pytest
from standardwebhooks import Webhook

from bench.kafka_parts import free_ports
from relay import __version__
from relay.sink import ReceivedPost
from tests.integration.planted_defects import plant
from tests.integration.production import CALLBACK_SECRET, SECRETS, SOURCES, Rig, Sent, messages
from tests.servers.process import RelayProcess

pytestmark = pytest.mark.kafka


def check_once_in_order_unchanged(rig: Rig, sent: Sequence[Sent]) -> None:
    assert rig.arrivals() == Counter({message.message_id: 1 for message in sent})
    payloads = {message.message_id: message.payload for message in sent}
    for name, sink in rig.sinks.items():
        for arrival in sink.received:
            assert arrival.body == payloads[arrival.message_id]
            Webhook(SECRETS[name]).verify(arrival.body, dict(arrival.headers))
        assert_in_order(sink.received)


def assert_in_order(arrivals: Sequence[ReceivedPost]) -> None:
    """Assert that the first arrivals are in order, per source."""
    numbers: dict[str, list[int]] = defaultdict(list)
    for arrival in arrivals:
        number = int(arrival.message_id.rsplit("-", 1)[1])
        if number not in numbers[arrival.source_id]:
            numbers[arrival.source_id].append(number)
    for source, found in numbers.items():
        assert found == sorted(found), f"{source}: out of order"


async def says_where_it_runs(running: RelayProcess, rig: Rig) -> None:
    started = json.loads(await running.line_with('"started"'))
    assert (started["version"], started["brokers"]) == (__version__, rig.environ["RELAY_KAFKA_BOOTSTRAP_SERVERS"])
    assert started["pid"] == running.pid
    assert any(started["api"].endswith(each) for each in started["listens"]), started


@pytest.mark.parametrize("defect", ["no address in `started`", "no version in `started`"])
async def test_a_start_that_does_not_say_where_it_runs_is_found(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, defect: str
) -> None:
    plant(monkeypatch, defect)
    async with rig.relay("run", "--processes", "1") as running:
        with pytest.raises(AssertionError):
            await says_where_it_runs(running, rig)


async def test_a_thousand_messages_go_round_once_and_again_changes_nothing(rig: Rig) -> None:
    sent = messages(1000)
    async with rig.relay("run", "--processes", "1") as running:
        await says_where_it_runs(running, rig)
        await rig.produce(sent)
        everything = {message.message_id for message in sent}
        await rig.until(lambda: rig.answered() >= everything)
        check_once_in_order_unchanged(rig, sent)
        for arrival in rig.callback.received:
            Webhook(CALLBACK_SECRET).verify(arrival.body, dict(arrival.headers))
        assert len(rig.callback.received) == 1000

        await rig.produce(sent)
        last = messages(SOURCES * 3, start=1000)  # behind every repeated one, of each source to each receiver
        await rig.produce(last)
        await rig.until(lambda: rig.answered() >= everything | {message.message_id for message in last})
        check_once_in_order_unchanged(rig, [*sent, *last])
        running.signal(signal.SIGTERM)
        assert "stopped" in await running.finish()
        assert running.returncode == 0


async def test_two_processes_share_the_work_and_a_kill_loses_nothing(rig: Rig) -> None:
    sent = messages(1000)
    everything = {message.message_id for message in sent}
    rig.environ["RELAY_API_PORT"] = str(free_ports(1)[0])  # the same for both: they share it
    async with rig.relay("run", "--processes", "1") as first, rig.relay("run", "--processes", "1") as second:
        await first.line_with('"started"')
        await second.line_with('"started"')
        await rig.produce(sent[:300])
        await rig.until(lambda: len(rig.arrivals()) >= 300)
        await rig.produce(sent[300:])
        await rig.until(lambda: len(rig.arrivals()) >= 400)
        first.signal(signal.SIGKILL)
        await rig.until(lambda: rig.answered() >= everything)
        extra = {message_id: count for message_id, count in rig.arrivals().items() if count > 1}
        can_be_asked = {a.message_id for name in ("circleci", "later") for a in rig.sinks[name].received}
        assert not extra.keys() & can_be_asked, "a receiver with a status endpoint was sent a message twice"
        assert len(extra) <= 32, f"more copies than were in flight at the kill: {extra}"
        for sink in rig.sinks.values():
            assert_in_order(sink.received)
        assert second.returncode is None


async def test_one_worker_alone_serves_its_receiver(rig: Rig) -> None:
    sent = [message for message in messages(60) if message.receiver == "circleci"]
    others = "api,from-sender,from-receiver-async,to-sender,failed-messages"
    async with rig.relay("run", "--processes", "1", "--roles", others) as rest:
        await rest.line_with('"started"')
        await rig.produce(sent)
        named = ("--receiver", "circleci", "--receiver", "cirlceci")
        async with rig.relay("worker", "to-receiver", *named) as worker:
            assert json.loads(await worker.line_with('"receivers_unknown"'))["names"] == ["cirlceci"]
            await rig.until(lambda: rig.answered() >= {message.message_id for message in sent})
    check_once_in_order_unchanged(rig, sent)
