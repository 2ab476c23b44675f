"""Tests of invalid records on `from_sender`: each becomes one dead letter with a reason, and later records continue."""

import json

import aiohttp
import pytest

from relay.log.kafka.cluster import KafkaCluster
from relay.log.kafka.log import KafkaLog
from relay.log.partitioner import partition_of
from tests.fakes.raw_batches import RawBatch, RawRecord, produce_raw
from tests.integration.production import Rig, Sent

pytestmark = pytest.mark.kafka

GOOD = {"ce_specversion": b"1.0", "ce_source": b"source-0", "ce_receiver": b"circleci"}

BAD: dict[str, tuple[bytes | None, dict[str, bytes], str]] = {
    "not JSON": (b"{nonsense", {}, "invalid"),
    "JSON, but no object": (b"[1, 2]", {}, "invalid"),
    "envelope without ids": (b'{"payload": 1}', {}, "invalid"),
    "envelope with an empty id": (b'{"source_id": "source-0", "message_id": "", "payload": 1}', {}, "invalid"),
    "nested without end": (b'{"payload": ' + b"[" * 100_000, {}, "invalid"),
    "header form without an id": (b"{}", GOOD, "invalid"),
    "wrong UTF-8 in a header": (b"{}", GOOD | {"ce_id": b"\xff\xfe"}, "invalid"),
    "a control character in the id": (b"{}", GOOD | {"ce_id": b"a\nb"}, "invalid"),
    "null value": (None, GOOD | {"ce_id": b"null"}, "invalid"),
    "unknown receiver": (b"{}", GOOD | {"ce_id": b"unknown", "ce_receiver": b"nobody"}, "unknown_receiver"),
    "nobody subscribes": (b"{}", {"ce_id": b"lost", "ce_source": b"source-0"}, "unknown_receiver"),
    "an id that names another path": (b"{}", GOOD | {"ce_id": b"../admin"}, "invalid"),
    "an id that does once it is decoded": (b"{}", GOOD | {"ce_id": b"%2e%2E"}, "invalid"),
    "too large": (b"x" * (1024 * 1024 + 1), GOOD | {"ce_id": b"large"}, "too_large"),
}


async def test_each_bad_record_is_one_dead_letter_and_good_ones_pass(rig: Rig) -> None:
    good = [Sent(number, "source-0", "circleci", b'{"n": %d}' % number) for number in range(len(BAD) + 1)]
    await rig.produce(good[:1])
    for (value, headers, _), behind in zip(BAD.values(), good[1:], strict=True):
        await rig.producer.send_and_wait(rig.topic, value, key=b"source-0", headers=list(headers.items()))
        await rig.produce([behind])
    async with rig.relay("run", "--processes", "1") as running:
        started = json.loads(await running.line_with('"started"'))
        await rig.until(lambda: rig.answered() >= {message.message_id for message in good})
        expected = sorted(reason for _, _, reason in BAD.values())
        letters = await rig.dead_letters(started["api"], len(BAD))
        assert sorted(letter["reason"] for letter in letters) == expected
        assert [a.message_id for a in rig.sinks["circleci"].received] == [m.message_id for m in good]
        notices = {
            a.headers["relay-message-id"]: a.headers["relay-reason"]
            for a in rig.callback.received
            if a.headers["relay-outcome"] == "failed"
        }
        assert notices["unknown"] == "unknown_receiver"
        assert notices["large"] == "too_large"
        text = "\n".join(running.lines)
        assert "Traceback" not in text


def raw(message_id: str, value: bytes = b"{}", *, name: bytes | None = None) -> RawRecord:
    headers = {**GOOD, "ce_id": message_id.encode()}
    more = [] if name is None else [(name, b"caf\xe9")]
    return RawRecord(b"source-0", value, [*((key.encode(), text) for key, text in headers.items()), *more])


BOMBS = {1: 62_914_560, 2: 8_388_608, 3: 33_554_432, 4: 62_914_560}
"""Bytes of a record under each codec; on the wire they are between 2 kB and 400 kB."""


async def test_what_clients_of_another_make_can_write_costs_its_own_offset_only(rig: Rig) -> None:
    """Records that explode, names that are not UTF-8, and offsets that were made up; all of them pass the broker."""
    log = KafkaLog(KafkaCluster(rig.environ["RELAY_KAFKA_BOOTSTRAP_SERVERS"]))
    await log.start()
    partition = partition_of(b"source-0", 10)
    try:
        await produce_raw(log, rig.topic, RawBatch([raw("first")]), partition=partition)
        for codec, size in BOMBS.items():
            batch = RawBatch([raw(f"bomb-{codec}", bytes(size)), raw(f"behind-{codec}")], codec=codec)
            await produce_raw(log, rig.topic, batch, partition=partition)
        named = RawBatch([raw("before"), raw("odd", name=b"na\xefve"), raw("after")], codec=2)
        await produce_raw(log, rig.topic, named, partition=partition)
        made_up = RawBatch([raw("zero"), raw("one"), raw("two")], deltas=(0, 5, 2))
        await produce_raw(log, rig.topic, made_up, partition=partition)
    finally:
        await log.close()
    good = ["first", *(f"behind-{codec}" for codec in BOMBS), "before", "after", "zero", "one", "two"]

    async with rig.relay("run", "--processes", "1") as running:
        started = json.loads(await running.line_with('"started"'))
        await rig.until(lambda: rig.answered() >= set(good))
        letters = {letter["message_id"]: letter for letter in await rig.dead_letters(started["api"], len(BOMBS) + 1)}
        reasons = {name: letter["reason"] for name, letter in letters.items()}
        assert reasons == {f"bomb-{codec}": "too_large" for codec in BOMBS} | {"odd": "invalid"}
        assert [arrival.message_id for arrival in rig.sinks["circleci"].received] == good
        headers = {name: await _headers(started["api"], letter) for name, letter in letters.items()}
        for codec, size in BOMBS.items():
            assert headers[f"bomb-{codec}"]["relay-omitted"] == f"value={size}"
        assert headers["odd"]["relay-raw-na%EFve"] == "caf\ufffd"
        assert headers["odd"]["relay-origin"].startswith(f"{rig.topic}/{partition}/")
        await rig.until(
            lambda: {a.headers["relay-message-id"] for a in rig.callback.received} >= {"bomb-1", "bomb-4", "odd"}
        )
        text = "\n".join(running.lines)
        assert "Traceback" not in text
        assert '"event": "waiting"' not in text


async def _headers(api: str, letter: dict[str, object]) -> dict[str, str]:
    async with (
        aiohttp.ClientSession(api) as session,
        session.get(f"/v1/failed/{letter['partition']}/{letter['offset']}") as response,
    ):
        return dict((await response.json())["headers"])
