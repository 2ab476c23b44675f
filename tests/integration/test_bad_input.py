"""Rubbish on `from_sender`: each bad record is one dead letter with a reason, and the stream behind it goes on."""

import json

import pytest

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
