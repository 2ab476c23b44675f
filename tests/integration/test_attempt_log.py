"""Test of a whole relay's attempt log: it has every POST, status GET and callback, and no secret."""

import asyncio
from collections import defaultdict
from pathlib import Path

from relay.domain.attempt import Attempt, decode_attempt
from relay.log.port import Log
from tests.integration.loss_rig import RECEIVERS, SECRET, TIMEOUT_S, TOPICS, relay_on
from tests.servers.valkey import ValkeyServer

COUNT = 2 * len(RECEIVERS)


async def logged(log: Log) -> list[Attempt]:
    records = [
        record
        for partition in range(10)
        async for batch in log.scan(TOPICS.delivery_attempts, partition)
        for record in batch
    ]
    assert SECRET not in str(records)
    return [decode_attempt(record.value) for record in records]


async def test_every_request_of_a_whole_relay_is_on_the_log(redis_server: ValkeyServer, tmp_path: Path) -> None:
    async with relay_on(redis_server.url, tmp_path) as rig, asyncio.timeout(TIMEOUT_S):
        await rig.send(COUNT)
        await rig.all_answered()
        attempts: list[Attempt] = []
        while sum(each.kind == "callback" for each in attempts) < COUNT:
            await asyncio.sleep(0.05)
            attempts = await logged(rig.log)
    by_kind = defaultdict(set)
    for each in attempts:
        by_kind[each.kind, each.outcome].add(each.message_id)
    assert by_kind["post", "done"] == by_kind["callback", "done"] == set(rig.sent)
    assert by_kind["status", "done"] == {message for message in rig.sent if RECEIVERS[int(message[2:]) % 4] == "later"}
    turned_away = [each for each in attempts if each.outcome == "retry"]
    assert {each.receiver for each in turned_away} == {"busy"}
    assert all(each.response is not None and each.response.status == 503 for each in turned_away)
    assert all(each.next_attempt_at is not None and each.next_attempt_at > each.started_at for each in turned_away)
