"""What happens, line by line, as a terminal and a pipe get it."""

import io
import sys
from datetime import UTC, datetime
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from relay.cli.events import Lines, request_line, response_line
from relay.cli.listener import ForwardedRequest, ForwardedResponse

NOW = datetime(2026, 11, 22, 12, 0, 0, tzinfo=UTC)
HOSTILE = "\x1b[2J\x9b\u202e\r\nevil\u2028\x00" + "x" * 300


def plain(lines: list[Text]) -> list[str]:
    return [line.plain for line in lines]


def told(name: str, data: dict[str, Any], lines: Lines | None = None) -> list[str]:
    return plain((lines or Lines()).of(name, data, NOW))


def message(**other: Any) -> dict[str, Any]:
    deliveries = [{"receiver": name} for name in other.pop("receivers", ("ci",))]
    return {
        "source_id": "github",
        "message_id": "m-1",
        "type": "push",
        "received_at": "2026-11-22T11:59:58.000Z",
        "deliveries": deliveries,
    } | other


def attempt(**other: Any) -> dict[str, Any]:
    return {
        "kind": "post",
        "receiver": "ci",
        "source_id": "github",
        "message_id": "m-1",
        "started_at": "2026-11-22T11:59:58.000Z",
        "duration_ms": 12.3,
        "response": {"status": 200, "headers": {}, "body": '{"ok":\n true}', "truncated": False},
        "error": None,
        "outcome": "done",
        "reason": None,
        "detail": None,
        "next_attempt_at": None,
    } | other


def response(status: int, body: str = "") -> dict[str, Any]:
    return {"status": status, "headers": {}, "body": body, "truncated": False}


def letter(**other: Any) -> dict[str, Any]:
    return {
        "failed_at": None,
        "receiver": "ci",
        "source_id": "github",
        "message_id": "m-1",
        "reason": "exhausted",
        "detail": "given up after 3 attempts",
        "partition": 3,
        "offset": 17,
    } | other


def test_a_message_says_where_it_goes() -> None:
    assert told("message", message()) == ["11:59:58 --> m-1 push github to ci"]
    assert told("message", message(type=None, receivers=())) == ["11:59:58 --> m-1 github to no receiver"]
    many = message(receivers=[f"r-{n}" for n in range(9)])
    assert told("message", many) == ["11:59:58 --> m-1 push github to r-0, r-1, r-2, r-3 and 5 more"]


def test_an_attempt_says_what_came_back_and_how_soon() -> None:
    assert told("attempt", attempt()) == ['11:59:58 <-- 200 12 ms ci m-1 {"ok": true}']
    assert told("attempt", attempt(kind="callback")) == ['11:59:58 <-- 200 12 ms sender of github m-1 {"ok": true}']
    ping = attempt(kind="ping", message_id=None, source_id=None, response=response(204))
    assert told("attempt", ping) == ["11:59:58 <-- 204 12 ms ci - ping"]


def test_a_failed_attempt_says_when_it_is_tried_again_and_why() -> None:
    again = attempt(
        outcome="retry",
        response=response(503, "busy"),
        detail="POST https://receiver.example: 503: busy",
        next_attempt_at="2026-11-22T12:00:03.012Z",
    )
    assert told("attempt", again) == ["11:59:58 <-- 503 12 ms ci m-1 busy", "             retry in 5.0 s: response 503"]
    error = {"kind": "refused", "detail": "connect call failed", "sent": False}
    refused = again | {"response": None, "error": error, "reason": "refused"}
    assert told("attempt", refused) == [
        "11:59:58 <-- refused 12 ms ci m-1 connect call failed",
        "             retry in 5.0 s: refused",
    ]
    asked = again | {"kind": "status", "response": response(202), "detail": "still working"}
    assert told("attempt", asked)[1] == "             next status GET in 5.0 s: still working"


@pytest.mark.parametrize(
    ("at", "words"), [("12:01:00.000", "62 s"), ("12:09:58.000", "10 min"), ("11:59:50.000", "0.0 s")]
)
def test_how_long_it_is_until_then(at: str, words: str) -> None:
    again = attempt(outcome="retry", next_attempt_at=f"2026-11-22T{at}Z")
    assert f"retry in {words}: " in told("attempt", again)[1]


def test_an_answer_goes_back() -> None:
    answer = {"at": None, "source_id": "github", "message_id": "m-1", "receiver": "ci", "status": 201, "body": "built"}
    assert told("answer", answer) == ["12:00:00 <== m-1 ci 201 built"]
    assert told("answer", answer | {"status": None, "body": ""}) == ["12:00:00 <== m-1 ci -"]


def test_a_dead_letter_is_red_and_says_how_to_send_it_again() -> None:
    first, second = Lines(api="http://127.0.0.1:8080").of("failed", letter(), NOW)
    assert first.plain == "12:00:00 !!! m-1 ci exhausted: given up after 3 attempts"
    assert any(span.style == "red" for span in first.spans)
    assert second.plain == "             relay failed replay 3/17 --api http://127.0.0.1:8080"
    nobody = letter(source_id=None, message_id=None, receiver="-", reason="invalid", detail=None)
    assert told("failed", nobody)[0] == "12:00:00 !!! - - invalid"


def test_the_command_that_sends_it_again_is_one_that_the_shell_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [".venv/bin/relay", "dev"])
    monkeypatch.setenv("PATH", "")
    assert told("failed", letter())[1] == "             .venv/bin/relay failed replay 3/17"


def test_what_is_missing_is_said() -> None:
    assert told("skipped", {"count": 7}) == ["12:00:00 ... 7 omitted: too many at once"]
    assert told("ended", {"detail": "the key\x1b is over"}) == ["12:00:00 ... ended: the key\\x1b is over"]
    assert told("away", {}) == ["12:00:00 ... the log does not answer; events are missing"]
    assert told("listening", {}) == told("of a newer version", {"new": 1}) == []


def test_what_listen_shows() -> None:
    came = ForwardedRequest("github", "m-1", "push", "1", b'{"n":\n 1}')
    assert request_line(came, NOW).plain == '12:00:00 --> m-1 push github {"n": 1}'
    assert request_line(came._replace(attempt="3"), NOW).plain == '12:00:00 --> m-1 push github attempt 3 {"n": 1}'
    assert response_line(ForwardedResponse(came, 200, 12.4, b"ok"), NOW).plain == "12:00:00 <-- 200 12 ms m-1 ok"
    down = ForwardedResponse(came, None, 1.0, b"", "Cannot connect")
    assert response_line(down, NOW).plain == "12:00:00 <-- nothing 1 ms m-1 Cannot connect"


EVERY = [
    ("message", message(source_id=HOSTILE, message_id=HOSTILE, type=HOSTILE, receivers=(HOSTILE,))),
    ("attempt", attempt(receiver=HOSTILE, source_id=HOSTILE, message_id=HOSTILE, response=response(200, HOSTILE))),
    (
        "attempt",
        attempt(
            kind="callback",
            source_id=HOSTILE,
            message_id=HOSTILE,
            response=None,
            error={"kind": HOSTILE, "detail": HOSTILE, "sent": True},
            outcome="retry",
            reason=HOSTILE,
            detail=HOSTILE,
            next_attempt_at="2026-11-22T12:00:03Z",
        ),
    ),
    (
        "answer",
        {"at": None, "source_id": HOSTILE, "message_id": HOSTILE, "receiver": HOSTILE, "status": 200, "body": HOSTILE},
    ),
    ("failed", letter(receiver=HOSTILE, source_id=HOSTILE, message_id=HOSTILE, reason=HOSTILE, detail=HOSTILE)),
]


def shown(lines: list[Text], *, width: int) -> str:
    """As a terminal gets it."""
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=width, color_system="standard", markup=False)
    for line in lines:
        console.print(line, no_wrap=True, overflow="ellipsis", crop=True)
    return out.getvalue()


@pytest.mark.parametrize(("name", "data"), EVERY)
def test_nothing_of_what_others_wrote_steers_a_terminal(name: str, data: dict[str, Any]) -> None:
    lines = Lines(pages="http://127.0.0.1/ui").of(name, data, NOW)
    for line in lines:
        assert line.plain.isprintable(), repr(line.plain)
    assert "\x1b[2J" not in shown(lines, width=1_000)
    for row in Text.from_ansi(shown(lines, width=80)).plain.splitlines():
        assert cell_len(row) <= 80


def test_an_id_is_a_link_to_its_page() -> None:
    found = shown(Lines(pages="http://127.0.0.1/ui").of("message", message(message_id="a/b c\x1b"), NOW), width=80)
    assert "http://127.0.0.1/ui/messages/github/a%2Fb%20c%1B\x1b\\" in found
    assert "\x1b]8;" not in shown(Lines().of("message", message(), NOW), width=80)


def test_wide_characters_stay_within_the_width() -> None:
    found = shown(Lines().of("message", message(message_id="漢" * 200), NOW), width=80)
    assert all(cell_len(row) <= 80 for row in Text.from_ansi(found).plain.splitlines())
