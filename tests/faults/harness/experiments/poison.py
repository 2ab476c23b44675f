"""E16: unreadable records among good ones, while processes are killed.

Each kind of poison (see POISON) is put on `from_sender` between good messages. Passes: each bad record becomes exactly
one dead letter of its reason (a kill may make a second one of the same record, at most one for each kill), the good
messages behind it are all answered in order, and no partition is blocked.
"""

import asyncio
from collections import Counter
from functools import partial
from typing import Final

from aiokafka import AIOKafkaProducer

from tests.faults.harness.killer import Killer
from tests.faults.harness.load import Load, Plan
from tests.faults.harness.receivers import ReceiverPlan
from tests.faults.harness.servers import Servers
from tests.faults.harness.stack import Stack
from tests.faults.harness.trial import Context, Experiment, Findings, Trials

ROUNDS: Final = 10
_GOOD: Final = {"ce_specversion": b"1.0", "ce_source": b"poison", "ce_receiver": b"asked"}
POISON: Final[dict[str, tuple[bytes | None, dict[str, bytes], str]]] = {
    "not JSON": (b"{nonsense", {}, "invalid"),
    "no object": (b"[1, 2]", {}, "invalid"),
    "no bytes": (b"", {}, "invalid"),
    "no value": (None, {**_GOOD, "ce_id": b"null"}, "invalid"),
    "no ids": (b'{"payload": 1}', {}, "invalid"),
    "no payload": (b'{"source_id": "poison", "message_id": "x", "receiver": "asked"}', {}, "invalid"),
    "an empty id": (b'{"source_id": "poison", "message_id": "", "payload": 1}', {}, "invalid"),
    "a number for an id": (b'{"source_id": "poison", "message_id": 7, "payload": 1}', {}, "invalid"),
    "no end": (b'{"payload": ' + b"[" * 100_000, {}, "invalid"),
    "half of an envelope": (b'{"source_id": "poison", "message_id": "half", "pay', {}, "invalid"),
    "not UTF-8": (b'{"source_id": "poison\xff", "message_id": "y", "payload": 1}', {}, "invalid"),
    "not UTF-8 in a header": (b"{}", {**_GOOD, "ce_id": b"\xff\xfe"}, "invalid"),
    "a line break in an id": (b"{}", {**_GOOD, "ce_id": b"a\r\nb"}, "invalid"),
    "an endless id": (b"{}", {**_GOOD, "ce_id": b"x" * 257}, "invalid"),
    "another version": (b"{}", {**_GOOD, "ce_id": b"v", "ce_specversion": b"0.3"}, "invalid"),
    "no such receiver": (b"{}", {**_GOOD, "ce_id": b"nobody", "ce_receiver": b"nobody"}, "unknown_receiver"),
    "no subscriber": (b"{}", {"ce_id": b"lonely", "ce_source": b"poison"}, "unknown_receiver"),
    "too large": (b"x" * (1024 * 1024 + 1), {**_GOOD, "ce_id": b"large"}, "too_large"),
}


async def poison(context: Context, findings: Findings) -> None:
    receivers = {"asked": ReceiverPlan(), "blind": ReceiverPlan(status=False)}
    async with Servers() as servers, Stack(servers, context.out, receivers, seed=context.seed) as stack:
        stack.poisoned = True
        await stack.start_members(2)
        killer = Killer(stack, context.seed)
        trials = Trials(stack, context, findings)
        kills, rounds = 0, context.times(ROUNDS)

        async def put(number: int, load: Load) -> None:
            nonlocal kills
            await asyncio.sleep(1.0)
            pouring = asyncio.create_task(_pour(servers.bootstrap, stack.topics.from_sender, number))
            if number % 2:
                await killer.kill_at_random(2, (0.5, 1.5))
                kills += 2
            await pouring
            await asyncio.sleep(1.0)

        for number in range(rounds):
            await trials.run(Plan(list(receivers)), partial(put, number))
        _judge(stack, findings, rounds, kills)


async def _pour(bootstrap: str, topic: str, number: int) -> None:
    """Every kind once, with ids of this round, spread over all partitions by their keys."""
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all", max_request_size=2**21)
    await producer.start()
    try:
        for place, (value, headers, _) in enumerate(POISON.values()):
            own = {name: _of_round(name, content, number) for name, content in headers.items()}
            await producer.send_and_wait(topic, value, key=b"source-%d" % place, headers=list(own.items()))
            await asyncio.sleep(0.05)
    finally:
        await producer.stop()


def _of_round(name: str, content: bytes, number: int) -> bytes:
    return b"%b-%d" % (content, number) if name == "ce_id" and content.isalpha() and len(content) < 200 else content


def _judge(stack: Stack, findings: Findings, rounds: int, kills: int) -> None:
    """Checks that each bad record has a dead letter, and not more than the kills can have repeated."""
    expected = Counter(reason for _, _, reason in POISON.values())
    found = Counter(died.reason for died in stack.log.died)
    for reason, count in expected.items():
        if not count * rounds <= found[reason] <= count * (rounds + kills):
            findings.problems.append(f"{found[reason]} dead letters {reason}, expected {count * rounds}")
    if not kills and sum(found.values()) != sum(expected.values()) * rounds:
        findings.problems.append(f"{sum(found.values())} dead letters, expected {sum(expected.values()) * rounds}")
    findings.notes.append(
        f"{rounds * len(POISON)} bad records of {len(POISON)} kinds: {sum(found.values())} dead letters"
    )


EXPERIMENTS: Final = (Experiment("E16", "poison among good messages, with kills", poison),)
