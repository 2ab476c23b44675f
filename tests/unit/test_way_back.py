"""The way back in the sender's own form: what a source keeps of a message, and the callback that is made of it."""

import json
from dataclasses import replace

import pytest
from msgspec import structs

from relay.api.tail.event import readers
from relay.config.receivers_file import parse_receivers_file
from relay.domain.dead_letter import DeadLetter, dead_letter_headers
from relay.domain.exchange import NoResponse
from relay.domain.hop import NO_RECEIVER, Hop, encode_hop
from relay.domain.identity import callback_id
from relay.domain.message import Message, message_headers
from relay.domain.receiver import Endpoint, Receiver, Source
from relay.domain.result_delivery import Handover
from relay.engine.decision import Dead, Decision, Done, Later
from relay.engine.work import LookupResult, Outcome, row_of
from relay.log.port import NewRecord, Record
from relay.replay.letter import read_dead_letter
from relay.replay.plan import Original, Planner
from relay.state.attempts import BeginRequest, Change, Go
from relay.state.port import Lane
from relay.state.replies import answered, of
from relay.state.rows import Mark, Result, Row, Stage, delivery_row
from tests.expecting import expect, present
from tests.fakes.state import MemoryState
from tests.fakes.steps import DELIVERY, NOW, TOPICS, Rig, headers_of, hop_of, hop_record, record, stepped
from workers import row_reconstruction
from workers.failed_messages import FailedMessages
from workers.from_sender import UNREADABLE_KEEP, FromSender
from workers.history_facts import FactReader
from workers.records import has_arrived, progress_records
from workers.to_sender import Callback, ToSender

SOURCES = """
sources:
  github:
    keep: {url: "payload.repository.statuses_url", sha: "payload.after"}
    callback:
      url: "${{ keep.url.replace('{sha}', keep.sha) }}"
      allow_origins: [https://api.github.com]
      bearer_token: "${TOKEN}"
      request:
        json:
          state: "${{ delivery.outcome == 'failed' ? 'error' : answer.body.passed ? 'success' : 'failure' }}"
          description: "${{ delivery.outcome == 'failed' ? delivery.detail : answer.body.text }}"
          context: relay
"""
STATUSES = "https://api.github.com/repos/acme/app/statuses/{sha}"
SHA = "6dcb09b5b57875f334f61aebed695e2e4193db5e"
PUSH = {"ref": "refs/heads/main", "after": SHA, "repository": {"statuses_url": STATUSES}}
KEPT = json.dumps({"url": STATUSES, "sha": SHA}, separators=(",", ":"))
ANSWER = Hop(DELIVERY, "push", content_type="application/json", attempt=1, outcome="answered", answer_status=200)
CI = Receiver("ci", Endpoint("https://ci.example/"))


def source(text: str = SOURCES) -> Source:
    _, sources = parse_receivers_file(text).resolve({"TOKEN": "hunter2"})
    return sources["github"]


@pytest.fixture
def rig() -> Rig:
    rig = Rig()
    rig.know(CI)
    rig.known.sources = {"github": source()}
    return rig


def pushed(payload: bytes, receivers: tuple[str, ...] = ("ci",)) -> Message:
    return Message("github", "m-1", receivers, "push", "2024-01-01T00:00:00Z", "application/json", payload)


def routed(rig: Rig, payload: object = PUSH, receivers: tuple[str, ...] = ("ci",), **headers: bytes) -> Decision:
    body = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    step = FromSender(
        TOPICS, rig.known, MemoryState(), rig.letters, rig.outside, max_payload_bytes=100_000, moves=rig.known
    )
    sent = message_headers(pushed(body, receivers)) + tuple((name.replace("_", "-"), v) for name, v in headers.items())
    return step.step(step.admit(record(TOPICS.from_sender, sent, body)))


def worker(rig: Rig, source: Source | None = None, state: MemoryState | None = None) -> ToSender:
    if source is not None:
        rig.known.sources = {"github": source}
    return ToSender(rig.known, state or MemoryState(), rig.letters, rig.outside)


async def called(
    rig: Rig, keep: str | None = KEPT, hop: Hop = ANSWER, value: bytes = b'{"passed":true,"text":"ok"}'
) -> Decision:
    step = worker(rig)
    work = present(step.admit(hop_record(TOPICS.to_sender, structs.replace(hop, keep=keep), value)))
    return await stepped(step, work, 1)


# kept


def test_what_a_source_keeps_travels_with_every_hop(rig: Rig) -> None:
    decision = expect(Done, routed(rig))
    assert [hop_of(one).keep for one in decision.records] == [KEPT]


def test_nothing_travels_for_a_source_that_keeps_nothing(rig: Rig) -> None:
    rig.known.sources = {}
    decision = expect(Done, routed(rig, b"no JSON"))
    assert "relay-keep" not in headers_of(decision.records[0])


def test_a_sender_cannot_say_what_is_kept(rig: Rig) -> None:
    rig.known.sources = {}
    decision = expect(Done, routed(rig, PUSH, ("ci", "no-such"), relay_keep=b'{"url":"https://evil.example/"}'))
    assert all("relay-keep" not in headers_of(one) for one in decision.records)


def test_a_dead_letter_for_an_unknown_receiver_has_it_too(rig: Rig) -> None:
    decision = expect(Done, routed(rig, PUSH, ("ci", "no-such")))
    hop, letter = decision.records
    assert (hop_of(hop).keep, headers_of(letter)["relay-keep"]) == (KEPT, KEPT.encode())


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        (b"ref=main", "keep.url: `payload.repository.statuses_url`: the payload is not JSON"),
        (b"", "keep.url: `payload.repository.statuses_url`: the payload is not JSON"),
        (PUSH | {"repository": {}}, "keep.url: `payload.repository.statuses_url`: there is no field 'statuses_url'"),
        (PUSH | {"after": "a" * 5_000}, "keep.sha: `payload.after`: all that is kept has 5"),
    ],
)
def test_what_cannot_be_kept_ends_the_message_before_anything_is_sent(rig: Rig, payload: object, why: str) -> None:
    [made] = expect(Done, routed(rig, payload)).records
    dead = read_dead_letter(record(TOPICS.failed_messages, made.headers, made.value), TOPICS)
    assert (dead.delivery, dead.reason, dead.dead.detail[: len(why)]) == (DELIVERY, "invalid", why)


def test_a_message_waits_while_it_is_not_known_here_what_its_source_keeps(rig: Rig) -> None:
    rig.known.sources = {"github": Source("github", unusable="a newer release wrote it", keep=None)}
    assert routed(rig) is UNREADABLE_KEEP
    assert isinstance(routed(rig), Later)


# replays


def letter(payload: object, stage: str = TOPICS.from_sender) -> Record:
    value = json.dumps(payload).encode()
    dead = DeadLetter("unknown_receiver", "", stage, None, 0, int(NOW * 1000), None)
    headers = (*message_headers(pushed(value)), ("relay-receiver", b"ci"), ("relay-keep", b"{}"))
    return record(TOPICS.failed_messages, dead_letter_headers(headers, dead), value)


def test_a_replay_works_it_out_again(rig: Rig) -> None:
    planner = Planner(TOPICS, rig.known, max_payload_bytes=100_000)
    plan = planner.replay(read_dead_letter(letter(PUSH), TOPICS), {DELIVERY: Row()}, same_life=False)
    assert [hop_of(out.record).keep for out in plan.out] == [KEPT]
    plan = planner.replay(read_dead_letter(letter({}), TOPICS), {DELIVERY: Row()}, same_life=False)
    assert (plan.out, plan.skip) == ((), "invalid")
    once_more = planner.once_more(
        Original(pushed(json.dumps(PUSH).encode()), None, 0), DELIVERY, Row(), same_life=False
    )
    assert [hop_of(out.record).keep for out in once_more.out] == [KEPT]
    assert planner.once_more(Original(pushed(b"{}"), None, 0), DELIVERY, Row(), same_life=False).skip == "invalid"


# the callback


@pytest.mark.parametrize(("passed", "state"), [(True, "success"), (False, "failure")])
async def test_an_answer_becomes_the_status_of_the_commit(rig: Rig, passed: bool, state: str) -> None:
    rig.reply(201)
    await called(rig, value=json.dumps({"passed": passed, "text": "done"}).encode())
    (request,) = rig.http.requests
    assert (request.method, request.url) == ("POST", STATUSES.replace("{sha}", SHA))
    assert json.loads(request.body) == {"state": state, "description": "done", "context": "relay"}
    headers = dict(request.headers)
    assert headers["authorization"] == "Bearer hunter2"
    assert headers["content-type"] == "application/json"
    assert headers["webhook-id"] == callback_id(DELIVERY, 0, failed=False)


def notice(letter: Record) -> NewRecord:
    step = FailedMessages(TOPICS, MemoryState(), Rig().letters, SilentReports())
    (found,) = step.step(step.admit(letter)).records
    return found


class SilentReports:
    def report_failure(self, *_: object) -> None: ...


async def test_a_failure_notice_becomes_an_error(rig: Rig) -> None:
    hop = Hop(DELIVERY, "push", "2024-01-01T00:00:00Z", keep=KEPT)
    dead = DeadLetter("rejected", "it said no", TOPICS.to_receiver("ci"), None, 2, int(NOW * 1000), 422)
    found = notice(record(TOPICS.failed_messages, dead_letter_headers(encode_hop(hop), dead)))
    assert (hop_of(found).keep, hop_of(found).event_type, hop_of(found).time) == (KEPT, "push", hop.time)
    rig.reply(201)
    await called(rig, hop_of(found).keep, hop_of(found), found.value or b"")
    (request,) = rig.http.requests
    assert request.url == STATUSES.replace("{sha}", SHA)
    assert json.loads(request.body) == {"state": "error", "description": "it said no", "context": "relay"}


@pytest.mark.parametrize("kept", [b"no JSON", b"[1]", b"\xff"])
def test_a_notice_of_a_letter_whose_kept_values_are_damaged_has_none(kept: bytes) -> None:
    dead = DeadLetter("rejected", "it said no", TOPICS.to_receiver("ci"), None, 2, int(NOW * 1000), 422)
    headers = (*encode_hop(Hop(DELIVERY)), ("relay-keep", kept))
    assert hop_of(notice(record(TOPICS.failed_messages, dead_letter_headers(headers, dead)))).keep is None


@pytest.mark.parametrize(
    "url",
    [
        "https://evil.example/repos/{sha}",
        "https://api.github.com@evil.example/{sha}",
        "https://evil.example#@api.github.com/{sha}",
        "https://api.github.com.evil.example/{sha}",
        "https://api.github.com:8443/{sha}",
        "http://api.github.com/{sha}",
        "http://169.254.169.254/latest/meta-data/{sha}",
        "//evil.example/{sha}",
        "file:///etc/passwd",
        "javascript:alert(1)",
        "https://api.github.com\\@evil.example/{sha}",
    ],
)
async def test_a_url_of_an_attacker_gets_no_request(rig: Rig, url: str) -> None:
    decision = expect(Dead, await called(rig, json.dumps({"url": url, "sha": SHA})))
    assert decision.reason == "invalid"
    assert decision.detail.startswith("callback: url: ")
    assert "hunter2" not in decision.detail
    assert rig.http.requests == []


@pytest.mark.parametrize("hop", [ANSWER, structs.replace(ANSWER, outcome="failed", reason="rejected")])
async def test_an_empty_url_means_no_call(rig: Rig, hop: Hop) -> None:
    hop = structs.replace(hop, keep=json.dumps({"url": "", "sha": SHA}))
    step = worker(rig)
    work = present(step.admit(hop_record(TOPICS.to_sender, hop, b'{"passed":true,"text":""}')))
    ended = await stepped(step, work, 1)
    assert ended == Done(result=Result("delivered")), "stored, which frees its place among the requests in flight"
    assert rig.http.requests == []
    assert work.how is Handover.UNWANTED, "it is shown as a result that the source does not want"
    again = present(step.admit(hop_record(TOPICS.to_sender, hop, b"")))
    assert step.resume(again, Result("delivered")) == ended
    assert again.how is Handover.UNWANTED, "also after a crash"


async def test_a_redirect_is_not_followed(rig: Rig) -> None:
    rig.reply(307, location="https://evil.example/")
    assert isinstance(await called(rig), Later)
    assert len(rig.http.requests) == 1


@pytest.mark.parametrize(
    ("keep", "value", "why"),
    [
        (None, b'{"passed":true,"text":""}', "callback: url: `keep.url.replace('{sha}', keep.sha)`: there is no field"),
        (KEPT, b"built", "callback: request.json.state: `"),
        (KEPT, b"", "callback: request.json.state: `"),
    ],
)
async def test_what_the_callback_lacks_is_named_before_any_request(
    rig: Rig, keep: str | None, value: bytes, why: str
) -> None:
    decision = expect(Dead, await called(rig, keep, value=value))
    assert (decision.reason, decision.detail[: len(why)]) == ("invalid", why)
    assert rig.http.requests == []


async def test_no_request_goes_to_an_origin_that_is_not_allowed_even_if_the_entry_names_it(rig: Rig) -> None:
    text = """
sources:
  github:
    callback: {url: "https://sender.example/", bearer_token: "${TOKEN}", request: {url: "https://other.example/x"}}
"""
    rig.known.sources = {"github": source(text)}
    decision = expect(Dead, await called(rig, None))
    assert decision.reason == "invalid"
    assert rig.http.requests == []


@pytest.mark.parametrize("method", ["PUT", "PATCH"])
async def test_another_method_and_a_body_that_is_the_answers_own(rig: Rig, method: str) -> None:
    text = f"""
sources:
  github:
    callback:
      url: "https://sender.example/builds/${{{{ message.id }}}}"
      request:
        method: {method}
        query: {{state: "${{{{ delivery.outcome }}}}"}}
        headers: {{x-a: "${{{{ answer.status }}}}"}}
"""
    rig.known.sources = {"github": source(text)}
    rig.reply(204)
    await called(rig, None, value=b"built")
    (request,) = rig.http.requests
    assert (request.method, request.url) == (method, "https://sender.example/builds/m-1?state=answered")
    assert (request.body, dict(request.headers)["x-a"]) == (b"built", "200")


def test_a_notice_about_no_receiver_names_none() -> None:
    dead = DeadLetter("invalid", "keep.url: no", TOPICS.from_sender, None, 0, int(NOW * 1000), None)
    found = notice(record(TOPICS.failed_messages, dead_letter_headers(message_headers(pushed(b"", ("a", "b"))), dead)))
    assert (hop_of(found).delivery.receiver, hop_of(found).keep) == (NO_RECEIVER, None)


# progress

PROGRESS = replace(source(), progress=frozenset({"accepted", "running"}))
PLAIN_PROGRESS = replace(PROGRESS, callback=Endpoint("https://sender.example/"))
ACCEPTED = Hop(DELIVERY, "push", attempt=1, outcome="accepted", keep=KEPT)


def report(hop: Hop = ACCEPTED) -> Record:
    (new,) = progress_records(TOPICS, PROGRESS, hop, hop.progress or "accepted", 1)
    return record(TOPICS.to_sender, new.headers, new.value)


async def known(state: MemoryState, step: ToSender, stage: Stage, generation: int = 0) -> tuple[Callback, LookupResult]:
    """Progress as the table sees it, while its delivery is at `stage`."""
    await answered(state.mark([Mark(delivery_row(DELIVERY), generation, stage, (0, 1))]))
    work = present(step.admit(report()))
    return work, (await step.table.intake(Lane(TOPICS.to_sender, 3, 1), [work]))[0]


def test_a_report_of_progress_is_for_the_callback_alone(rig: Rig) -> None:
    """A release that knows none skips it; the history, the tail and a rebuild take it for no result."""
    found = report()
    assert has_arrived(found)
    assert row_reconstruction.returned(found) is None
    assert FactReader(TOPICS, 0).of(found) is None
    assert readers(TOPICS, rig.known)[TOPICS.to_sender](found) is None
    headers = dict(found.headers)
    assert headers["webhook-id"].decode() == callback_id(DELIVERY, 0, progress="accepted")
    assert len({callback_id(DELIVERY, 0, failed=failed) for failed in (True, False)} | {headers["webhook-id"]}) == 3
    assert progress_records(TOPICS, source(), ACCEPTED, "running", 1) == ()


async def test_progress_is_sent_in_the_form_of_the_callback(rig: Rig) -> None:
    step = worker(rig, PROGRESS)
    work = present(step.admit(report()))
    rig.reply(201)
    # `answer.body.passed` is not there yet: it is dropped, and no dead letter
    assert await stepped(step, work, 1) == Done(result=Result("delivered"))
    rig.known.sources = {"github": PLAIN_PROGRESS}
    work = present(step.admit(report()))
    assert await stepped(step, work, 1) == Done(result=Result("delivered", 201), healthy=True)
    headers = dict(rig.http.requests[0].headers)
    assert (headers["relay-outcome"], headers["relay-receiver"]) == ("accepted", "ci")
    assert [attempt.kind for attempt in rig.journal.attempts] == ["progress"]
    assert rig.meter.told == [("called back", "github", 0.0)]


@pytest.mark.parametrize(
    ("stage", "seen"),
    [
        (Stage.AWAITING, LookupResult.READY),
        (Stage.PUBLISHED, LookupResult.FINISHED),
        (Stage.DONE, LookupResult.FINISHED),
        (Stage.FAILED, LookupResult.FINISHED),
    ],
)
async def test_progress_of_an_ended_delivery_is_dropped(rig: Rig, stage: Stage, seen: LookupResult) -> None:
    state = MemoryState()
    step = worker(rig, PROGRESS, state)
    _, found = await known(state, step, stage)
    assert found is seen
    work = present(step.admit(report(structs.replace(ACCEPTED, generation=1))))
    assert await step.table.intake(Lane(TOPICS.to_sender, 3, 1), [work]) == [LookupResult.FINISHED], "of another life"


async def test_progress_is_sent_once_and_says_nothing_about_its_delivery(rig: Rig) -> None:
    state = MemoryState()
    step = worker(rig, PROGRESS, state)
    work, _ = await known(state, step, Stage.AWAITING)
    for decision in (Done(result=Result("delivered", 204)), Dead("poison")):
        await step.table.mark([(work, Outcome(decision, ()))])
        _, seen = await known(state, step, Stage.AWAITING)
        assert seen is LookupResult.FINISHED
    result = present(step.admit(hop_record(TOPICS.to_sender, structs.replace(ANSWER, keep=KEPT), b"{}")))
    assert result.queue == work.queue is not None
    [row] = await answered(state.peek([delivery_row(DELIVERY)]))
    assert row.stage is Stage.AWAITING


async def test_old_progress_is_dropped_and_one_in_doubt_is_not_sent_again(rig: Rig) -> None:
    step = worker(rig, PROGRESS)
    work = present(step.admit(structs.replace(report(), timestamp_ms=int((NOW - 61) * 1000))))
    assert step.overdue(work) == Done()
    work = present(step.admit(report()))
    assert step.overdue(work) is None
    work.in_doubt = True
    assert await stepped(step, work) == Done(result=Result("delivered"))
    assert rig.http.requests == []


@pytest.mark.parametrize("status", [400, 410, 429, 500, 503])
async def test_progress_that_is_refused_is_not_sent_again(rig: Rig, status: int) -> None:
    step = worker(rig, PLAIN_PROGRESS)
    work = present(step.admit(report()))
    rig.reply(status)
    decision = expect(Done, await stepped(step, work, 1))
    assert decision.result == Result("delivered", status)


def test_a_source_that_no_longer_wants_it_gets_none(rig: Rig) -> None:
    step = worker(rig, source())
    work = present(step.admit(report()))
    assert work.how is Handover.UNWANTED
    assert step.overdue(work) == Done()


async def test_a_result_waits_until_progress_can_no_longer_arrive(rig: Rig) -> None:
    state = MemoryState()
    step = worker(rig, PROGRESS, state)
    work, _ = await known(state, step, Stage.AWAITING)
    result = present(step.admit(hop_record(TOPICS.to_sender, ANSWER, b"{}")))
    assert work.rules is not None
    assert (work.rules.limits.settle_s, present(result.rules).limits.settle_s) == (25.0, 0.0)
    lane = Lane(TOPICS.to_sender, 3, 1)
    work.token = b"token-of-8"
    ask = BeginRequest(row_of(work), work.generation, work.token, work.rules.limits)
    assert isinstance((await answered(state.begin(of(lane, [ask]))))[0], Go)
    again, seen = await known(state, step, Stage.PUBLISHED)
    assert (again.outdated, seen) == (True, LookupResult.READY), "its request may be in flight"
    assert step.overdue(again) is None, "it has to settle first"
    assert await stepped(step, again, 1) == Done(result=Result("delivered"))


async def test_progress_without_a_response_is_in_doubt(rig: Rig) -> None:
    step = worker(rig, PLAIN_PROGRESS)
    work = present(step.admit(report()))
    rig.http.replies.append(NoResponse("timeout", "no response", sent=True))
    decision = expect(Later, await stepped(step, work, 1))
    assert (decision.due_in_s, decision.change) == (10.0, Change.DOUBT)
