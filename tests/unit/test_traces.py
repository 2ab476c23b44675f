"""Traces: the headers of each request, and the exported spans."""

import asyncio
import io
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web
from msgspec import structs
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from relay.domain.exchange import NoResponse
from relay.domain.hop import Hop
from relay.domain.message import Message, message_headers
from relay.domain.receiver import Endpoint, Receiver, RetryPolicy, Source
from relay.domain.trace import Span, TraceContext, parse_traceparent
from relay.log.port import Coordinate
from relay.telemetry.logging import configure
from relay.telemetry.tracing import SpanWriter
from relay.watch import traces
from relay.watch.traces import Traces, are_wanted, writer_of
from tests.expecting import present
from tests.fakes.state import MemoryState
from tests.fakes.steps import DELIVERY, NOW, TOPICS, Rig, hop_record, record, stepped
from tests.servers.http import serving
from tests.unit.test_logging import restored_logging
from workers.from_receiver_async import FromReceiverAsync
from workers.from_sender import TracedFromSender
from workers.to_receiver import ToReceiver
from workers.to_sender import ToSender

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures(restored_logging.__name__)]

TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
THEIRS = "00f067aa0ba902b7"
SENT = f"00-{TRACE_ID}-{THEIRS}-01"
URL = "https://ci.example/jobs/m-1?token=t0p-secret"
CI = Receiver(
    "ci",
    Endpoint("https://ci.example:8443/hooks?token=t0p-secret", retry=RetryPolicy(base=10, factor=2, jitter=False)),
    status_endpoint="https://ci.example/jobs/{message_id}?token=t0p-secret",
)
CALLED = Source("github", Endpoint("https://sender.example/results", retry=RetryPolicy(base=10, factor=2)))
HOP = Hop(DELIVERY, accepted_ms=int((NOW - 60) * 1000), traceparent=SENT, tracestate="a=1")
PUSH = Message("github", "m-1", ("ci",), "push", payload=b"{}", traceparent=SENT, tracestate="a=1")


class Process:
    """A process with traced steps, and the spans that it has exported."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.writer = SpanWriter(SimpleSpanProcessor(self._exporter), "1.2.3")
        self.rig = rig = Rig()
        rig.know(CI)
        rig.known.sources["github"] = CALLED
        self._made = 0
        self.traces = Traces(self.writer, TOPICS, rig.clock, self._random, system="kafka")
        self.outside = replace(rig.outside, journals=(rig.journal, self.traces), tracing=self.traces)

    def _random(self, size: int) -> bytes:
        self._made += 1
        return self._made.to_bytes(size, "big")

    @property
    def spans(self) -> list[ReadableSpan]:
        return list(self._exporter.get_finished_spans())

    def route(self, message: Message = PUSH) -> ReadableSpan:
        """The span of a message that the log took two seconds ago."""
        rig, known = self.rig, self.rig.known
        step = TracedFromSender(
            TOPICS, known, MemoryState(), rig.letters, self.outside, max_payload_bytes=10, moves=known
        )
        step.step(step.admit(record(TOPICS.from_sender, message_headers(message), message.payload, age_s=2)))
        return self.spans[-1]

    async def post(self, status: int, hop: Hop = HOP, attempt: int = 1) -> ReadableSpan:
        self.rig.reply(status, b"answer")
        return await self.posted(hop, attempt)

    async def posted(self, hop: Hop = HOP, attempt: int = 1) -> ReadableSpan:
        rig, told = self.rig, len(self.spans)
        step = ToReceiver(TOPICS, rig.known, MemoryState(), rig.letters, self.outside, rig.known)
        await stepped(step, step.admit(hop_record(TOPICS.to_receiver("ci"), hop)), attempt)
        assert len(self.spans) == told + 1
        return self.spans[-1]

    async def ask(self, status: int, body: bytes = b"", polls: int = 1) -> ReadableSpan:
        rig = self.rig
        rig.reply(status, body)
        step = FromReceiverAsync(TOPICS, rig.known, MemoryState(), rig.letters, self.outside)
        hop = structs.replace(HOP, attempt=2, status_url=URL)
        work = step.admit(hop_record(TOPICS.pending("ci"), hop))
        work.polls = polls
        await stepped(step, work)
        return self.spans[-1]

    async def call_back(self, status: int, attempt: int = 1) -> ReadableSpan:
        rig = self.rig
        rig.reply(status)
        step = ToSender(rig.known, MemoryState(), rig.letters, self.outside)
        hop = structs.replace(HOP, attempt=2, outcome="answered", answer_status=200)
        work = present(step.admit(hop_record(TOPICS.to_sender, hop, b"built")))
        await stepped(step, work, attempt)
        return self.spans[-1]

    @property
    def sent(self) -> str | None:
        """The context that the last request carried."""
        return dict(self.rig.http.requests[-1].headers).get("traceparent")


@pytest.fixture
def process() -> Process:
    return Process()


def own(span: ReadableSpan) -> str:
    context = present(span.context)
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def parent(span: ReadableSpan) -> str | None:
    return None if span.parent is None else f"{span.parent.span_id:016x}"


def linked(span: ReadableSpan) -> list[int]:
    return [link.context.span_id for link in span.links]


def facts(span: ReadableSpan) -> dict[str, object]:
    return dict(span.attributes or {})


def id_of(span: ReadableSpan) -> int:
    return int(present(span.context).span_id)


async def test_a_post_carries_the_context_of_its_own_span(process: Process) -> None:
    process.rig.http.seconds = 0.25
    span = await process.post(200)
    assert process.sent == own(span)
    assert own(span).split("-")[1] == TRACE_ID
    assert dict(process.rig.http.requests[-1].headers)["tracestate"] == "a=1"
    assert present(span.context).trace_state.get("a") == "1"
    assert (span.name, span.kind, span.status.status_code) == ("POST receiver", SpanKind.CLIENT, StatusCode.UNSET)
    assert (span.start_time, span.end_time) == (NOW * 1e9, (NOW + 0.25) * 1e9)
    told = facts(span)
    assert "t0p-secret" not in str(told)
    assert told.pop("url.full") == "https://ci.example:8443/hooks?token=********"
    assert told == {
        "http.request.method": "POST",
        "http.response.status_code": 200,
        "server.address": "ci.example",
        "server.port": 8443,
        "messaging.message.id": "m-1",
        "relay.source_id": "github",
        "relay.receiver": "ci",
        "relay.generation": 0,
        "relay.attempt": 1,
        "relay.outcome": "done",
    }
    assert not span.links
    assert not span.events


async def test_all_of_a_message_is_under_the_span_of_its_routing(process: Process) -> None:
    routed = process.route()
    other = Process()  # another process of the same relay
    done = [await other.post(202), await other.ask(200, b"built"), await other.call_back(204)]
    assert {own(span).split("-")[1] for span in (routed, *done)} == {TRACE_ID}
    assert {parent(span) for span in done} == {f"{id_of(routed):016x}"}
    assert len({id_of(span) for span in (routed, *done)}) == 4
    assert parent(routed) == THEIRS


@pytest.mark.parametrize("theirs", [None, "00-1", "ff" + SENT[2:]])
async def test_a_message_that_came_without_a_trace_gets_the_same_one_everywhere(theirs: str | None) -> None:
    first, second = Process(), Process()
    routed = first.route(structs.replace(PUSH, traceparent=theirs))
    hop = structs.replace(HOP, traceparent=theirs)
    posted = await second.post(200, hop)
    assert (routed.parent, parent(posted)) == (None, f"{id_of(routed):016x}")
    assert own(posted).split("-")[1] == own(routed).split("-")[1] != TRACE_ID
    assert "tracestate" not in dict(second.rig.http.requests[-1].headers)
    another = first.route(structs.replace(PUSH, message_id="m-2", traceparent=theirs))
    assert own(another).split("-")[1] != own(routed).split("-")[1]


def test_routing_is_told_from_the_moment_the_log_had_it(process: Process) -> None:
    span = process.route()
    assert (span.name, span.kind) == ("process from_sender", SpanKind.CONSUMER)
    assert (span.start_time, span.end_time) == ((NOW - 2) * 1e9, NOW * 1e9)
    assert facts(span) == {
        "messaging.system": "kafka",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "from_sender",
        "messaging.consumer.group.name": "relay.from-sender",
        "messaging.message.id": "m-1",
        "relay.source_id": "github",
        "relay.records": 1,
    }


def test_what_nobody_may_get_is_an_error(process: Process) -> None:
    span = process.route(structs.replace(PUSH, receivers=None))
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "unknown_receiver")
    assert facts(span)["error.type"] == "unknown_receiver"


async def test_a_retry_says_what_it_repeats_and_the_first_one_what_follows(process: Process) -> None:
    first = await process.post(500)
    process.rig.http.replies.clear()
    second = await process.post(200, attempt=2)
    assert (linked(first), linked(second)) == ([], [id_of(first)])
    assert (first.status.status_code, facts(first)["error.type"]) == (StatusCode.ERROR, "500")
    assert facts(first)["relay.outcome"] == "doubt"  # a 500 may have come from a gateway
    [wait] = first.events
    assert (wait.name, dict(wait.attributes or {})["relay.wait.seconds"]) == ("relay.wait", 10.0)
    assert facts(second)["http.request.resend_count"] == 1


async def test_without_a_response_the_kind_of_failure_is_told(process: Process) -> None:
    process.rig.http.replies = [NoResponse("refused", "no such luck", sent=False)]
    span = await process.posted()
    assert facts(span)["error.type"] == "refused"
    assert "http.response.status_code" not in facts(span)


async def test_a_status_get_is_in_the_trace_and_says_of_which_post(process: Process) -> None:
    posted = await process.post(202, attempt=2)
    process.rig.http.replies.clear()
    working, done = await process.ask(202), await process.ask(200, b"built", polls=2)
    assert (linked(working), linked(done)) == ([id_of(posted)], [id_of(posted)])
    assert process.sent == own(done) != own(working)
    assert (done.name, facts(done)["http.request.method"]) == ("GET status", "GET")
    assert working.status.status_code is StatusCode.UNSET
    assert "t0p-secret" not in str(facts(done))


async def test_a_callback_says_which_post_brought_the_answer_and_what_it_repeats(process: Process) -> None:
    posted = await process.post(200, attempt=2)
    process.rig.http.replies.clear()
    first = await process.call_back(503)
    process.rig.http.replies.clear()
    second = await process.call_back(204, attempt=2)
    assert linked(first) == [id_of(posted)]
    assert linked(second) == [id_of(first), id_of(posted)]
    assert process.sent == own(second)
    assert second.name == "POST callback"


async def test_a_replay_has_spans_of_its_own(process: Process) -> None:
    first = await process.post(200)
    again = await process.post(200, structs.replace(HOP, generation=1))
    assert id_of(first) != id_of(again)
    assert facts(again)["relay.generation"] == 1


async def test_what_the_sender_does_not_sample_is_passed_on_so(process: Process) -> None:
    unsampled = structs.replace(HOP, traceparent=SENT[:-2] + "00")
    process.rig.reply(200)
    step = ToReceiver(TOPICS, process.rig.known, MemoryState(), process.rig.letters, process.outside, process.rig.known)
    await stepped(step, step.admit(hop_record(TOPICS.to_receiver("ci"), unsampled)), 1)
    sent = present(parse_traceparent(process.sent))
    assert (sent.trace_id, sent.sampled) == (TRACE_ID, False)
    assert sent.span_id != THEIRS
    assert process.spans == []


@pytest.mark.parametrize(("argument", "told"), [("0", 0), ("1", 1)])
def test_the_standard_sampler_is_asked(monkeypatch: pytest.MonkeyPatch, argument: str, told: int) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", argument)
    process = Process()
    bare = structs.replace(PUSH, traceparent=None)
    message, sent = process.traces.sending(bare)
    sent(Coordinate("from_sender", 3, 7))
    assert len(process.spans) == told
    assert (message.traceparent or "").endswith(f"-0{argument}")


def test_a_message_goes_to_the_log_in_the_context_of_its_being_sent(process: Process) -> None:
    message, sent = process.traces.sending(PUSH)
    process.rig.clock.now += 0.5
    sent(Coordinate("from_sender", 3, 7))
    [span] = process.spans
    assert (span.name, span.kind) == ("send from_sender", SpanKind.PRODUCER)
    assert (message.traceparent, message.tracestate, parent(span)) == (own(span), "a=1", THEIRS)
    assert (span.start_time, span.end_time) == (NOW * 1e9, (NOW + 0.5) * 1e9)
    assert facts(span)["messaging.destination.partition.id"] == "3"
    assert parent(process.route(message)) == f"{id_of(span):016x}"


def test_a_message_that_the_log_did_not_take_is_an_error(process: Process) -> None:
    _, sent = process.traces.sending(PUSH)
    sent(None)
    assert process.spans[-1].status.status_code is StatusCode.ERROR


async def test_a_bug_in_telling_costs_nobody_a_delivery(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(process.writer, "write", wrong)
    process.rig.reply(200, b"answer")
    step = ToReceiver(TOPICS, process.rig.known, MemoryState(), process.rig.letters, process.outside, process.rig.known)
    decision = await stepped(step, step.admit(hop_record(TOPICS.to_receiver("ci"), HOP)), 1)
    assert decision.result is not None  # type: ignore[union-attr]
    assert len(process.rig.journal.attempts) == 1


# on and off


@pytest.mark.parametrize(
    ("environ", "wanted"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://collector:4318/v1/traces"}, True),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({"OTEL_TRACES_EXPORTER": "console, otlp"}, True),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}, False),
        ({"OTEL_TRACES_EXPORTER": "otlp", "OTEL_SDK_DISABLED": "True"}, False),
        ({"OTEL_SERVICE_NAME": "relay"}, False),
    ],
)
def test_the_standard_variables_say_whether_there_are_traces(environ: dict[str, str], wanted: bool) -> None:
    assert are_wanted(environ) is wanted
    if not wanted:
        assert writer_of(environ, "1") is None


@pytest.mark.parametrize(
    ("environ", "missing", "problem"),
    [
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, False, "the protocol 'grpc' is not supported"),
        ({}, True, "it needs the extra otel: pip install 'webhook-relay[otel]'"),
        ({"OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "9999"}, False, "a variable OTEL_... cannot be used"),
    ],
)
def test_traces_that_cannot_be_had_are_one_line_of_the_log(
    environ: dict[str, str], missing: bool, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    monkeypatch.setattr(
        traces._log, "warning", lambda event, problem: lines.append(f"{event} {problem}"), raising=False
    )
    if missing:
        monkeypatch.setitem(sys.modules, "relay.telemetry.tracing", None)
    environ = environ | {"OTEL_TRACES_EXPORTER": "otlp"}
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert writer_of(environ, "1") is None
    [line] = lines
    assert line.startswith(f"traces_off {problem}")


async def test_the_credentials_of_the_collector_are_not_in_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(request: web.Request) -> web.Response:
        return web.Response(status=400, reason=f"no {request.rel_url} with {request.headers['x-key']}")

    app, log = web.Application(), io.StringIO()
    app.router.add_post("/{rest:.*}", refuse)
    configure("json", "debug", log)
    async with serving(app) as url:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"{url}/v1/traces?token=t0p-secret")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-key=Bearer%20k3y-secret,Authorization: Basic b4d-secret")
        writer = present(writer_of(os.environ, "1"))
        writer.write(Span("push", "client", TraceContext(TRACE_ID, THEIRS, sampled=True), NOW, NOW, {}))
        await asyncio.to_thread(writer.close)
    lines = [json.loads(line)["event"] for line in log.getvalue().splitlines()]
    assert any(line.startswith("Header format invalid!") for line in lines)
    assert any(line.endswith("no /v1/traces?token=******** with ********") for line in lines)
    assert "-secret" not in log.getvalue()


OFF = """
import asyncio, sys
sys.modules["opentelemetry"] = None  # whoever imports it fails, as where the extra is not installed
import relay.run.process, relay.cli.main, relay.embedded.relay
from relay.watch.traces import writer_of
from tests.speed.hot_path import HotPath, TOPICS, hop_records, messages, passed

assert writer_of({}, "1") is None
called = set()
sys.setprofile(lambda frame, event, _: called.add(frame.f_code.co_filename) if event == "call" else None)

async def go():
    path = HotPath()
    pump = asyncio.ensure_future(path.pump.run())
    await asyncio.sleep(0)
    await passed(path.from_sender, messages(64), batch=48)
    hops = hop_records(path.log.appended)
    path.log.appended.clear()
    for name, lane in path.to_receiver.items():
        await passed(lane, hops.get(TOPICS.to_receiver(name), []), batch=16)
    assert len(path.log.appended) == 64
    pump.cancel()
    await asyncio.gather(pump, return_exceptions=True)

asyncio.run(go())
sys.setprofile(None)
ours = ("trace.py", "traces.py", "tracing.py")
files = sorted("/".join(name.split("/")[-2:]) for name in called if name.endswith(ours))
loaded = sorted(name for name, module in sys.modules.items() if "opentelemetry" in name and module is not None)
step = any(name.endswith("workers/to_receiver.py") for name in called)
print("called", files, "loaded", loaded, "relay.telemetry.tracing" in sys.modules, "steps", step)
"""


def test_off_nothing_of_it_is_imported_and_the_hot_path_does_not_know() -> None:
    """A message without a trace of its sender's costs nothing."""
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", OFF], cwd=root, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "called [] loaded [] False steps True"
