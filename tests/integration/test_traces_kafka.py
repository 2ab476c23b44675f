"""Test of two processes with different roles on real Kafka: their spans form one trace."""

import asyncio
import json
from contextlib import AsyncExitStack

import aiohttp
import pytest

from tests.integration.collector import Collector, collecting
from tests.integration.production import Rig
from tests.integration.test_traces import FIRST, SECOND, SENT, THEIRS, TRACE_ID, context, names
from tests.servers.process import RelayProcess

pytestmark = pytest.mark.kafka

MESSAGE = "traced-1"


def process(rig: Rig, collector: Collector, name: str, roles: frozenset[str]) -> RelayProcess:
    """A process that exports spans under this name."""
    traces = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
        "OTEL_BSP_SCHEDULE_DELAY": "50",
        "OTEL_SERVICE_NAME": name,
        "RELAY_LOG_FORMAT": "json",
    }
    arguments = ("run", "--processes", "1", "--roles", ",".join(sorted(roles)))
    return RelayProcess(*arguments, cwd=rig.cwd, environ=rig.environ | traces)


async def send(api: str) -> None:
    headers = {"ce-id": MESSAGE, "content-type": "application/json", "traceparent": SENT}
    async with (
        aiohttp.ClientSession(api) as session,
        session.post("/v1/sources/app/messages?receiver=later", data=b"{}", headers=headers) as response,
    ):
        assert response.status == 202, await response.text()


async def test_two_processes_on_kafka_tell_one_trace(rig: Rig) -> None:
    async with collecting() as collector, AsyncExitStack() as running:
        both = {"first": FIRST, "second": SECOND}
        first, second = [
            await running.enter_async_context(process(rig, collector, name, roles)) for name, roles in both.items()
        ]
        said, _ = await asyncio.gather(first.line_with('"started"'), second.line_with('"started"'))
        await send(json.loads(said)["api"])
        await rig.until(lambda: bool(rig.callback.received))
        await collector.until(lambda _: len(collector.of(MESSAGE)) >= 6)
        spans = collector.of(MESSAGE)

    sending, routing, post, *asked, callback = spans
    topic = rig.topic
    assert names(spans) == [
        f"send {topic}",
        f"process {topic}",
        "POST receiver",
        *["GET status"] * len(asked),
        "POST callback",
    ]
    assert {span.trace_id for span in spans} == {TRACE_ID}
    assert [span.parent for span in spans] == [THEIRS, sending.span_id, *[routing.span_id] * (len(asked) + 2)]
    assert [span.process for span in spans] == ["first", "first", "second", *["second"] * len(asked), "first"]
    assert {span.links for span in (*asked, callback)} == {(post.span_id,)}
    assert [span.facts["messaging.system"] for span in (sending, routing)] == ["kafka", "kafka"]
    assert not any(span.failed for span in spans)
    arrived = [arrival for arrival in rig.sinks["later"].received if arrival.message_id == MESSAGE]
    assert [context(arrival) for arrival in arrived] == [[TRACE_ID, post.span_id, "01"]]
    assert context(rig.callback.received[-1]) == [TRACE_ID, callback.span_id, "01"]
