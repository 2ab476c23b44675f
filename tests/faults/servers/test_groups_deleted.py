"""Consumer groups are deleted on a real broker, while Redis remembers their epochs: `relay run` recovers without
help."""

import json
from collections.abc import Sequence

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import NoError, for_code
from aiokafka.protocol.admin import DeleteGroupsRequest

from relay.config.setting_layers import load_settings
from relay.domain.topics import Topics
from tests.integration.production import SECRETS, Rig, messages
from tests.integration.test_production import assert_in_order

pytestmark = pytest.mark.kafka

LIVES = 3
"""Each raises the generations of all groups."""


async def delete_groups(rig: Rig, groups: Sequence[str]) -> None:
    """With their generations and offsets. Kafka refuses it while one of them has members."""
    admin = AIOKafkaAdminClient(bootstrap_servers=rig.environ["RELAY_KAFKA_BOOTSTRAP_SERVERS"])
    await admin.start()
    try:
        for group in groups:
            node = await admin.find_coordinator(group)
            answer = await admin._send_request(DeleteGroupsRequest([group]), node)
            assert [for_code(code) for _, code in answer.results] == [NoError], group
    finally:
        await admin.close()


async def test_lanes_of_deleted_groups_go_on_in_the_running_process_and_nothing_comes_twice(rig: Rig) -> None:
    topics = Topics(load_settings({}, rig.environ).topic_prefix)
    groups = topics.groups(SECRETS)
    first = messages(24)
    for life in range(LIVES):
        async with rig.relay("run", "--processes", "1") as running:
            await rig.produce(first[8 * life : 8 * (life + 1)])
            await rig.until(lambda life=life: len(rig.answered()) >= 8 * (life + 1))  # type: ignore[misc]

    await delete_groups(rig, sorted(set(groups.values())))

    later = messages(48, start=100)
    async with rig.relay("run", "--processes", "1") as running:
        await rig.produce(later)
        await rig.until(lambda: len(rig.answered()) >= len(first) + len(later))
        told = [json.loads(line) for line in running.lines if line.startswith("{")]
        assert running.returncode is None
    assert {each["event"] for each in told} >= {"offset_missing", "fenced", "lane_anew"}
    assert set(rig.arrivals().values()) == {1}
    for sink in rig.sinks.values():
        assert_in_order(sink.received)
