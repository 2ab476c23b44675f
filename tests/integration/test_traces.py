"""Tests of traces of whole relays, as a collector gets them over OTLP/HTTP: one for each message, across processes."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest

from relay.clock import SystemClock
from relay.config.plan import ProcessPlan
from relay.domain.message import Message, message_headers
from relay.log.port import NewRecord
from relay.log.streams.log import StreamsLog
from relay.run.process import RelayProcess
from relay.sink import ReceivedPost, Sink
from tests.integration.collector import CollectedSpan, Collector, collecting
from tests.integration.loss_rig import QUICKLY, SECRET, TIMEOUT_S, TOPICS, log_of_its_own, running
from tests.servers.http import started
from tests.servers.valkey import ValkeyServer

TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
THEIRS = "00f067aa0ba902b7"
SENT = f"00-{TRACE_ID}-{THEIRS}-01"
FIRST = frozenset({"api", "from-sender", "to-sender"})
SECOND = frozenset({"to-receiver", "from-receiver-async", "failed-messages"})


@dataclass
class Traced:
    """Two processes of one relay, with receivers, a callback and a collector around them."""

    collector: Collector
    relay: RelayProcess
    log: StreamsLog
    receivers: dict[str, Sink]
    callback: Sink
    _changed: asyncio.Event

    async def send(self, receiver: str, message: str, trace: dict[str, str]) -> str:
        """Send a message over HTTP. Returns its id."""
        url = f"{self.relay.api_url}/v1/sources/app/messages"
        headers = {"ce-id": message, "content-type": "application/json", **trace}
        async with (
            aiohttp.ClientSession() as session,
            session.post(url, params={"receiver": receiver}, data=b"{}", headers=headers) as response,
        ):
            assert response.status == 202, await response.text()
        return message

    async def append(self, receiver: str, **trace: str) -> str:
        """Append a message, as on Kafka. Returns its id."""
        message = Message("app", f"kafka-{receiver}", (receiver,), payload=b"{}", **trace)  # type: ignore[arg-type]
        await self.log.append([NewRecord(TOPICS.from_sender, b"app", message.payload, message_headers(message))])
        return message.message_id

    async def returned(self, message: str) -> ReceivedPost:
        """The request that the sender's callback got for it."""

        def found() -> list[ReceivedPost]:
            return [one for one in self.callback.received if one.headers["relay-message-id"] == message]

        async with asyncio.timeout(TIMEOUT_S):
            while not found():
                self._changed.clear()
                await self._changed.wait()
        return found()[-1]

    async def spans_of(self, message: str, count: int) -> list[CollectedSpan]:
        await self.returned(message)
        await self.collector.until(lambda _: len(self.collector.of(message)) >= count)
        return self.collector.of(message)


@asynccontextmanager
async def traced(redis_url: str, directory: Path, setenv: Callable[[str, str], None]) -> AsyncIterator[Traced]:
    changed = asyncio.Event()

    def notify(_: ReceivedPost) -> None:
        changed.set()

    receivers = {
        "ci": Sink("answer", on_arrival=notify),
        "later": Sink("later", later_polls=1, on_arrival=notify),
        "flaky": Sink("answer", fail_first=1, fail_status=500, on_arrival=notify),
        "strict": Sink("reject", on_arrival=notify),
    }
    callback = Sink("answer", fail_first=1, fail_status=503, retry_after=0, on_arrival=notify)
    async with (
        started(*receivers.values(), callback),
        log_of_its_own() as (log, log_url),
        collecting() as collector,
    ):
        entries: dict[str, dict[str, object]] = {
            name: {"post_endpoint": sink.url, "secret": SECRET, "poll": QUICKLY, "retry": QUICKLY}
            for name, sink in receivers.items()
        }
        entries["later"]["status_endpoint"] = receivers["later"].status_url_template
        back = {"url": callback.url, "secret": SECRET, "retry": QUICKLY}
        file = {"sources": {"*": {"callback": back}}, "receivers": entries}
        (directory / "receivers.yaml").write_text(json.dumps(file))
        environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "50"}
        for name, value in environ.items():
            setenv(name, value)

        def process(name: str, roles: frozenset[str]) -> AbstractAsyncContextManager[RelayProcess]:
            setenv("OTEL_SERVICE_NAME", name)
            plan = ProcessPlan(roles=roles)
            return running(redis_url, StreamsLog(log_url), directory, SystemClock(), plan=plan, environ=environ)

        async with process("first", FIRST) as relay, process("second", SECOND):
            yield Traced(collector, relay, log, receivers, callback, changed)
        # a thread that is left tries again with jitter, whose randomness fails a later test of this worker
        for thread in threading.enumerate():
            if thread.name in ("last spans", "OtelBatchSpanRecordProcessor"):
                await asyncio.to_thread(thread.join)


@pytest.fixture
async def rig(redis_server: ValkeyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Traced]:
    async with traced(redis_server.url, tmp_path, monkeypatch.setenv) as rig:
        yield rig


def names(spans: list[CollectedSpan]) -> list[str]:
    return [span.name for span in spans]


def context(arrival: ReceivedPost) -> list[str]:
    """The trace, span and flags of a request."""
    return arrival.headers["traceparent"].split("-")[1:]


async def test_one_trace_from_the_senders_post_to_its_callback_over_two_processes(rig: Traced) -> None:
    message = await rig.send("ci", "m-1", {"traceparent": SENT, "tracestate": "a=1"})
    spans = await rig.spans_of(message, 5)
    send, process, post, first, second = spans
    assert names(spans) == [
        "send from_sender",
        "process from_sender",
        "POST receiver",
        "POST callback",
        "POST callback",
    ]
    assert {span.trace_id for span in spans} == {TRACE_ID}
    assert [span.parent for span in spans] == [THEIRS, send.span_id, *[process.span_id] * 3]
    assert [span.links for span in spans] == [(), (), (), (post.span_id,), (first.span_id, post.span_id)]
    assert [span.failed for span in spans] == [False, False, False, True, False]
    assert [span.process for span in spans] == ["first", "first", "second", "first", "first"]
    assert all(span.start <= span.end for span in spans)
    [arrived] = rig.receivers["ci"].received
    assert context(arrived) == [TRACE_ID, post.span_id, "01"]
    assert context(await rig.returned(message)) == [TRACE_ID, second.span_id, "01"]
    assert arrived.headers["tracestate"] == "a=1"


async def test_a_202_and_its_status_gets_are_in_the_trace(rig: Traced) -> None:
    spans = await rig.spans_of(await rig.append("later", traceparent=SENT), 6)
    process, post, *asked = spans[:4]
    assert names(spans[:4]) == ["process from_sender", "POST receiver", "GET status", "GET status"]
    assert [span.facts["relay.outcome"] for span in (post, *asked)] == ["done", "working", "done"]
    assert {span.links for span in asked} == {(post.span_id,)}
    assert {span.parent for span in spans[1:]} == {process.span_id}
    assert {span.trace_id for span in spans} == {TRACE_ID}
    assert len({span.span_id for span in spans}) == len(spans)


async def test_a_retry_after_a_500_says_what_it_repeats(rig: Traced) -> None:
    message = await rig.append("flaky")
    spans = await rig.spans_of(message, 5)
    process, first, second = spans[:3]
    assert names(spans[:3]) == ["process from_sender", "POST receiver", "POST receiver"]
    assert (first.failed, first.facts["http.response.status_code"], first.facts["error.type"]) == (True, 500, "500")
    assert (second.failed, second.links) == (False, (first.span_id,))
    assert process.parent == ""
    assert len({span.trace_id for span in spans}) == 1
    assert [context(one)[1] for one in rig.receivers["flaky"].received] == [first.span_id, second.span_id]


async def test_a_failure_comes_back_in_the_same_trace(rig: Traced) -> None:
    spans = await rig.spans_of(await rig.append("strict", traceparent=SENT), 4)
    assert names(spans) == ["process from_sender", "POST receiver", "POST callback", "POST callback"]
    assert {span.trace_id for span in spans} == {TRACE_ID}
    assert (spans[1].failed, spans[1].facts["relay.outcome"]) == (True, "dead")


async def test_without_a_collector_messages_go_their_way(rig: Traced) -> None:
    rig.collector.status = 503
    message = await rig.send("ci", "m-2", {"traceparent": SENT})
    assert context(await rig.returned(message))[0] == TRACE_ID
    assert rig.collector.of(message) == []
