"""The round trip of a message in a terminal: what happened when, within 80 columns, and nothing that steers it."""

from typing import Any

import msgspec
import pytest
from rich.cells import cell_len

from relay.cli.status import timeline
from relay.cli.table import span
from relay.schema.attempts import AttemptItem
from relay.schema.messages import MessageView

NOON = "2026-09-21T12:00:0{}Z"
LATER = 1_790_000_000.0  # 14:13:20 of that day


def message(*deliveries: dict[str, Any]) -> MessageView:
    shown = {
        "source_id": "github",
        "message_id": "m-1",
        "status": "arrived",
        "state": "queued",
        "received_at": NOON.format("0.000"),
        "deliveries": list(deliveries),
        "webhook_id": "msg_1",
        "type": None,
        "at": None,
        "duplicate": False,
    }
    return msgspec.convert(shown, MessageView)


def delivery(**more: Any) -> dict[str, Any]:
    usual = {"receiver": "ci", "status": "arrived", "state": "queued", "generation": 0, "attempts": 1}
    rest = dict.fromkeys(
        ("next_attempt_at", "waiting_for", "last_status", "reason", "detail", "advice", "answer", "callback")
    )
    return usual | rest | more


def attempt(seconds: str, status: int | None, **more: Any) -> AttemptItem:
    response = None if status is None else {"status": status, "headers": {}, "body": "", "truncated": False}
    error = None if status is not None else {"kind": "refused", "detail": "nobody listens", "sent": False}
    usual = {
        "kind": "post",
        "receiver": "ci",
        "generation": 0,
        "attempt": 1,
        "started_at": NOON.format(seconds),
        "duration_ms": 12.0,
        "request": {"method": "POST", "url": "https://ci.example/", "headers": {}},
        "response": response,
        "error": error,
        "outcome": "retry",
        "reason": None,
        "detail": None,
        "next_attempt_at": None,
        "partition": 0,
        "offset": 0,
        "source_id": "github",
        "message_id": "m-1",
        "code_class": None,
        "rule": None,
        "cut": False,
    }
    return msgspec.convert(usual | more, AttemptItem)


WAIT = {
    "kind": "retry",
    "since": NOON.format("2.012"),
    "until": "2026-09-21T12:01:00.000Z",
    "detail": "attempt 2 did not succeed: 401",
}


def test_each_step_has_its_time_and_how_long_after_the_arrival() -> None:
    waiting = delivery(waiting_for=WAIT, attempts=2, advice="Compare the secrets.")
    tried = [
        attempt("2.000", 401, attempt=2),
        attempt("0.100", None, reason="refused", next_attempt_at=NOON.format("2.000")),
    ]
    assert timeline(message(waiting), tried, now=LATER - 7_980.0, width=80) == [
        "to ci, times in UTC:",
        "  2026-09-21",
        "  12:00:00.000        +0 ms  Arrived",
        "                               acknowledged by the log",
        "  12:00:00.000        +0 ms  Waited to be sent (100 ms)",
        "  12:00:00.100      +100 ms  Attempt 1: The connection was refused (12 ms)",
        "                               nobody listens",
        "                               the next one was set for 12:00:02.000",
        "  12:00:00.112      +112 ms  Waited to try again (1.9 s)",
        "  12:00:02.000       +2.0 s  Attempt 2: 401 Unauthorized (12 ms)",
        "  12:00:02.012       +2.0 s  Waiting to try again, until 12:01:00.000",
        "                               because attempt 2 did not succeed: 401",
        "  What to do: Compare the secrets.",
    ]


def test_polls_answer_and_the_way_to_the_sender_are_there() -> None:
    answer = {"status": 200, "content_type": "text/plain", "body": "fine", "body_base64": None}
    callback = {"status": "delivered", "attempts": 1, "last_status": None, "detail": None}
    ended = delivery(status="response_delivered_to_sender", answer=answer, callback=callback)
    tried = [
        attempt("0.000", 202, outcome="done"),
        attempt("1.000", 202, kind="status"),
        attempt("2.000", 202, kind="status", attempt=2),
        attempt("3.000", 200, kind="status", attempt=3, outcome="done"),
        attempt("4.000", 204, kind="callback", outcome="done"),
    ]
    told = "\n".join(timeline(message(ended), tried, now=LATER, width=80))
    for words in ("Status checks 1 to 2: 202", "Answered: 200 OK", "Callback 1: 204 No Content", "Back at the sender"):
        assert words in told
    assert told.index("Answered") < told.index("Callback 1")


def test_each_delivery_is_told_for_itself_and_a_replay_as_another_life() -> None:
    failed = delivery(status="failed", generation=1, reason="exhausted", detail="given up", attempts=1)
    tried = [attempt("1.000", 500, outcome="dead", reason="exhausted"), attempt("3.000", 500, generation=1)]
    lines = timeline(message(failed, delivery(receiver="cd")), tried, now=LATER, width=80)
    assert [line for line in lines if line and not line.startswith("  ")] == [
        "to ci, times in UTC:",
        "to cd, times in UTC:",
    ]
    assert "  replay 1:" in lines
    assert "" in lines


def test_a_new_day_is_said() -> None:
    late = attempt("0", 200, started_at="2026-09-22T00:00:01.500Z", outcome="done")
    lines = timeline(message(delivery(status="done")), [late], now=LATER, width=80)
    assert lines.index("  2026-09-21") < lines.index("  2026-09-22")
    assert any("+12 h 0 min" in line for line in lines)


HOSTILE = "\x1b[2J\r\n\x07\x9b31m\u202eevil\u2028 " + "漢字" * 200 + "x" * 300


@pytest.mark.parametrize("width", [80, 60, 40, 1])
def test_nothing_steers_the_terminal_or_leaves_its_columns(width: int) -> None:
    wait = WAIT | {"detail": HOSTILE}
    waiting = delivery(receiver=HOSTILE, waiting_for=wait, detail=HOSTILE, advice=HOSTILE)
    tried = [attempt("1.000", 500, receiver=HOSTILE, detail=HOSTILE, reason=HOSTILE)]
    lines = timeline(message(waiting), tried, now=LATER, width=width)
    assert "evil" in "".join(lines)
    for line in lines:
        assert cell_len(line) <= max(width, 40), line
        assert all(char.isprintable() for char in line), line


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 ms"),
        (0.0123, "12 ms"),
        (1.24, "1.2 s"),
        (75, "1 min 15 s"),
        (3_599, "59 min 59 s"),
        (3_700, "1 h 1 min"),
        (90_000, "25 h 0 min"),
        (1e6, "11 d 13 h"),
    ],
)
def test_spans_are_said_as_people_do(seconds: float, words: str) -> None:
    assert span(seconds) == words
