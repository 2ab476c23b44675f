"""A receiver moves to the shared lane and back, and leaves, in a real relay on Kafka and Redis."""

import json
from collections import Counter
from typing import Any

import pytest

from relay.domain.topics import Topics
from tests.integration.production import Rig, Sent
from tests.integration.test_production import assert_in_order
from tests.servers.process import RelayProcess

pytestmark = pytest.mark.kafka

NAME = "circleci"
QUICK = {"retry": {"base": "4s", "cap": "4s", "max_attempts": 1000}, "breaker": {"failures": 1000}}


def entry(rig: Rig, **fields: Any) -> dict[str, Any]:
    sink = rig.sinks[NAME]
    return {"post_endpoint": sink.url, "status_endpoint": sink.status_url_template, **QUICK, **fields}


def write(rig: Rig, receivers: dict[str, Any]) -> None:
    file = json.loads((rig.cwd / "receivers.yaml").read_text())
    (rig.cwd / "receivers.yaml").write_text(json.dumps({"sources": file["sources"], "receivers": receivers}))


def batch(start: int, count: int) -> list[Sent]:
    return [Sent(n, f"source-{n % 4}", NAME, b'{"n": %d}' % n) for n in range(start, start + count)]


async def apply(rig: Rig, *options: str) -> tuple[int | None, str]:
    async with RelayProcess("receivers", "apply", *options, cwd=rig.cwd, environ=rig.environ) as applying:
        output = await applying.finish()
    return applying.returncode, output


async def partitions(rig: Rig) -> list[int]:
    """How many the receiver's own topics have, as Kafka says."""
    topics = Topics(rig.environ["RELAY_TOPIC_PREFIX"]).lane_groups(NAME)
    return [len(await rig.producer.partitions_for(topic)) for topic in topics]


async def left_over(rig: Rig) -> dict[str, str]:
    """Output of `relay topics describe` about topics that are no longer in use."""
    async with RelayProcess("topics", "describe", "-o", "json", cwd=rig.cwd, environ=rig.environ) as describing:
        found = json.loads(await describing.finish())
    prefix = rig.environ["RELAY_TOPIC_PREFIX"]
    return {each["topic"].removeprefix(prefix): each["left_over"] for each in found if "left_over" in each}


async def test_it_moves_to_the_shared_lane_and_back_while_messages_are_parked(rig: Rig) -> None:
    rig.environ["RELAY_HOLD_MAX"] = "1s"
    sink = rig.sinks[NAME]
    write(rig, {NAME: entry(rig)})
    sent = batch(0, 160)
    async with rig.relay("run", "--processes", "1") as first, rig.relay("run", "--processes", "1") as second:
        await first.line_with('"started"')
        await second.line_with('"started"')
        await rig.produce(sent[:20])
        await rig.until(lambda: len(rig.answered()) == 20)
        for start, lane in ((20, "shared"), (90, "dedicated")):
            sink.become("fail", fail_status=501)  # counts anew
            await rig.produce(sent[start : start + 20])
            await rig.until(lambda: sink.posts >= 8)
            write(rig, {NAME: entry(rig, lane=lane)})
            code, output = await apply(rig)
            assert code == 0
            assert f"awaited  {NAME} moves from" in output
            await rig.produce(sent[start + 20 : start + 50])
            sink.become("answer")
            code, output = await apply(rig, "--wait")
            assert code == 0, output
            code, output = await apply(rig)
            assert (code, "awaited" in output) == (0, False), output
            await rig.produce(sent[start + 50 : start + 70])
            everything = {message.message_id for message in sent[: start + 70]}
            await rig.until(lambda: rig.answered() >= everything)  # noqa: B023 - awaited right here
        taken = [arrival for arrival in sink.received if arrival.status == 200]
        assert Counter(arrival.message_id for arrival in taken) == {message.message_id: 1 for message in sent}
        assert_in_order(taken)
        sequences: dict[str, list[int]] = {}
        for arrival in taken:
            sequences.setdefault(arrival.source_id, []).append(int(arrival.headers["relay-sequence"]))
        assert all(found == sorted(found) for found in sequences.values())


async def test_it_gets_more_partitions_while_messages_are_parked(rig: Rig) -> None:
    rig.environ["RELAY_HOLD_MAX"] = "1s"
    sink = rig.sinks[NAME]
    write(rig, {NAME: entry(rig)})
    sent = batch(0, 100)
    async with rig.relay("run", "--processes", "1") as first, rig.relay("run", "--processes", "1") as second:
        await first.line_with('"started"')
        await second.line_with('"started"')
        await rig.produce(sent[:20])
        await rig.until(lambda: len(rig.answered()) == 20)
        sink.become("fail", fail_status=501)  # counts anew
        await rig.produce(sent[20:40])
        await rig.until(lambda: sink.posts >= 8)
        write(rig, {NAME: entry(rig, partitions=3)})
        code, output = await apply(rig)
        assert code == 0, output
        assert f"awaited  {NAME} " in output
        assert "it returns with 3 partitions instead of 1" in output
        await rig.produce(sent[40:70])
        sink.become("answer")
        code, output = await apply(rig, "--wait")
        assert code == 0, output
        await rig.produce(sent[70:])
        await rig.until(lambda: len(rig.answered()) == len(sent))
        taken = [arrival for arrival in sink.received if arrival.status == 200]
        assert Counter(arrival.message_id for arrival in taken) == {message.message_id: 1 for message in sent}
        assert_in_order(taken)
        assert await partitions(rig) == [3, 3]
        write(rig, {NAME: entry(rig)})
        code, output = await apply(rig)
        assert (code, "has 3 partitions, the file says 1, and none can be removed" in output) == (2, True), output


async def test_a_removed_one_leaves_and_comes_again(rig: Rig) -> None:
    sink = rig.sinks[NAME]
    write(rig, {NAME: entry(rig)})
    sent = batch(0, 8)
    async with rig.relay("run", "--processes", "1") as running:
        await running.line_with('"started"')
        sink.become("fail", fail_status=501)
        await rig.produce(sent)
        await rig.until(lambda: sink.posts >= 4)
        write(rig, {})
        code, output = await apply(rig)
        assert (code, "relay receivers apply --prune" in output) == (2, True), output
        code, output = await apply(rig, "--prune", "--wait")
        assert code == 0, output
        await rig.until(lambda: len({a.headers["relay-message-id"] for a in rig.callback.received}) == len(sent))
        assert {a.headers["relay-reason"] for a in rig.callback.received} == {"unknown_receiver"}
        left = await left_over(rig)
        assert sorted(left) == [f"{prefix}{NAME}" for prefix in ("pending_from_receiver_", "to_receiver_")]
        assert all("was removed; unread: 0; it may be deleted" in note for note in left.values())
        sink.become("answer")
        write(rig, {NAME: entry(rig)})
        code, output = await apply(rig)
        assert code == 0, output
        assert await left_over(rig) == {}
        await rig.produce(batch(8, 8))
        await rig.until(lambda: len(rig.answered()) == 8)
