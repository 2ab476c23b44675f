"""A job's records on `receiver_config`, and what a selection takes."""

import json

import pytest
from msgspec.structs import replace

from relay.api.replays import job_view
from relay.control.projections import Jobs, ReplayJob
from relay.domain.control_key import ControlKey, decode_value, encode_value
from relay.domain.errors import InvalidRecord
from relay.domain.replay_job import LetterFacts, OffsetSpan, ReplayOrder, ReplayProgress, Selection, eta_s
from relay.log.port import Record
from relay.replay.runner import next_of

CHOSEN = Selection(frozenset({"ci"}), statuses=frozenset({500, 502}), since_ms=5, until_ms=9)
ORDER = ReplayOrder(
    "ab12", "discard", CHOSEN, 1_700_000_000.5, (OffsetSpan("f", 0, 1, 2),), (OffsetSpan("l", 3, 4, 5),), 2.5
)
PROGRESS = ReplayProgress("running", 10, 3, {"replayed": 2}, 1, (4, 5), (6, 7), 1_700_000_001.0)


def record(key: bytes, value: bytes | None) -> Record:
    return Record("receiver_config", 0, 0, key, value, (), 0)


def test_records_round_trip() -> None:
    assert decode_value(ReplayOrder, encode_value(ORDER)) == ORDER
    assert decode_value(ReplayProgress, encode_value(PROGRESS)) == PROGRESS


@pytest.mark.parametrize("kind", [ReplayOrder, ReplayProgress])
@pytest.mark.parametrize("value", [b"", b"[]", b"\xff", b'{"positions": 1, "action": "burn"}', b"[" * 10_000])
def test_what_is_none_is_refused(kind: type, value: bytes) -> None:
    with pytest.raises(InvalidRecord):
        decode_value(kind, value)


def test_an_order_has_all_that_a_job_needs() -> None:
    with pytest.raises(InvalidRecord):
        decode_value(ReplayOrder, b"{}")


def test_what_is_known_does_not_depend_on_the_order_of_the_records() -> None:
    for turned in (False, True):
        jobs, records = (
            Jobs(),
            [
                (ControlKey("replay", "ab12"), encode_value(ORDER)),
                (ControlKey("replay-progress", "ab12"), encode_value(PROGRESS)),
                (ControlKey("replay-stop", "ab12"), b"{}"),
                (ControlKey("replay-progress", "other"), b"spoilt"),
            ],
        )
        for key, value in reversed(records) if turned else records:
            jobs.take(key, record(key.encode(), value))
        [job] = jobs.all()
        assert (job.order, job.progress, job.stopping) == (ORDER, PROGRESS, True)
        for key, _ in records[:3]:
            jobs.take(key, record(key.encode(), None))
        assert jobs.all() == []


def test_a_state_of_a_newer_release_leaves_the_rest_of_the_progress_readable() -> None:
    jobs = Jobs()
    newer = json.loads(encode_value(PROGRESS)) | {"state": "paused"}
    jobs.take(ControlKey("replay", "ab12"), record(b"replay:ab12", encode_value(ORDER)))
    jobs.take(ControlKey("replay-progress", "ab12"), record(b"replay-progress:ab12", json.dumps(newer).encode()))
    [job] = jobs.all()
    assert (job.progress.state, job.progress.positions, job.progress.sent) == ("paused", (4, 5), 3)
    assert not job.is_over
    assert not job.is_known


def test_an_action_of_a_newer_release_leaves_its_job_to_that_release() -> None:
    jobs = Jobs()
    newer = json.loads(encode_value(ORDER)) | {"action": "forward"}
    jobs.take(ControlKey("replay", "ab12"), record(b"replay:ab12", json.dumps(newer).encode()))
    jobs.take(ControlKey("replay-progress", "ab12"), record(b"replay-progress:ab12", encode_value(PROGRESS)))
    assert jobs.all() == []


def test_the_end_is_as_far_as_the_pace_so_far_says() -> None:
    assert eta_s(PROGRESS, 1_700_000_011.0) == pytest.approx(10.0)
    assert eta_s(ReplayProgress("running", 5, 5, begun_at=1.0), 2.0) == 0.0
    assert eta_s(ReplayProgress("running", 5, 0, begun_at=1.0), 2.0) is None
    assert eta_s(ReplayProgress("counting"), 2.0) is None


@pytest.mark.parametrize(("stopping", "left_s"), [(False, 10.0), (True, None)])
def test_a_job_that_is_being_stopped_goes_to_no_end(stopping: bool, left_s: float | None) -> None:
    view = job_view(ReplayJob(ORDER, PROGRESS, stopping=stopping), 1_700_000_011.0)
    assert (view["eta_s"], view["eta"] is None) == (left_s, stopping)


FACTS = LetterFacts("ci", "github", "m-1", "rejected", 422, "to_receiver", 100)


@pytest.mark.parametrize(
    ("selection", "takes"),
    [
        (Selection(), True),
        (Selection(receivers=frozenset({"cd"})), False),
        (Selection(sources=frozenset({"github"}), ids=frozenset({"m-1", "m-2"})), True),
        (Selection(reasons=frozenset({"gone"})), False),
        (Selection(statuses=frozenset({422})), True),
        (Selection(stages=frozenset({"pending"})), False),
        (Selection(since_ms=100, until_ms=101), True),
        (Selection(since_ms=101), False),
        (Selection(until_ms=100), False),
    ],
)
def test_a_selection_takes_what_it_says(selection: Selection, takes: bool) -> None:
    assert selection.takes(FACTS) is takes


def test_what_was_discarded_has_to_be_asked_for() -> None:
    discarded = FACTS._replace(reason="discarded")
    assert not Selection().takes(discarded)
    assert Selection(reasons=frozenset({"discarded"})).takes(discarded)


def test_jobs_of_one_caller_leave_a_place_for_another() -> None:
    def jobs(by: str, count: int) -> list[ReplayJob]:
        return [ReplayJob(replace(ORDER, id=f"{by}{number}", by=by)) for number in range(count)]

    def ids(found: list[ReplayJob]) -> list[str]:
        return [job.order.id for job in found]

    assert ids(next_of(jobs("a", 9), [])) == ["a0", "a1", "a2"]
    assert ids(next_of(jobs("a", 9) + jobs("b", 1), ["a0", "a1", "a2"])) == ["b0"]
    assert ids(next_of(jobs("a", 9) + jobs("b", 9), [])) == ["a0", "b0", "a1", "b1"]
    assert next_of(jobs("a", 9) + jobs("b", 1), ["a0", "a1", "a2", "b0"]) == []
