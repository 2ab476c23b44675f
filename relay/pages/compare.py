"""Differences of two messages, or of two attempts, line by line: for pages and the command line. Pure."""

import difflib
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from relay.pages.payload_view import body_text, readable, shown
from relay.schema.attempts import AttemptItem
from relay.schema.messages import MessageView
from relay.telemetry.redaction import escape_control

MOST_LINES: Final = 2_000
"""Lines of a text that is compared: the time grows with their square in the worst case."""
_AROUND: Final = 3
_TONES: Final = {"+": "good", "-": "bad", "@": "soft"}


class DiffLine(NamedTuple):
    """A line of a difference. `text` begins with its sign: `+`, `-`, a space, or `@` between parts."""

    text: str
    tone: str


class DiffPart(NamedTuple):
    """One part of a comparison. `lines`: empty without a difference; None if a side is too large."""

    title: str
    lines: Sequence[DiffLine] | None


def difference(title: str, before: str, after: str) -> DiffPart:
    old, new = before.splitlines(), after.splitlines()
    if max(len(old), len(new)) > MOST_LINES:
        return DiffPart(title, [] if old == new else None)
    found = list(difflib.unified_diff(old, new, n=_AROUND, lineterm=""))[2:]
    return DiffPart(title, [DiffLine(line, _TONES.get(line[:1], "")) for line in found])


def of_messages(before: MessageView, after: MessageView, payloads: tuple[bytes | None, bytes | None]) -> list[DiffPart]:
    """The differences of two messages. `payloads`: None if one is gone."""
    old, new = ("" if payload is None else shown(payload).text for payload in payloads)
    return [difference("Message", _facts(before), _facts(after)), difference("Payload", old, new)]


def _facts(view: MessageView) -> str:
    receivers = ", ".join(each.receiver for each in view.deliveries)
    return "\n".join((f"type: {escape_control(view.type or '')}", f"receivers: {receivers}"))


def of_attempts(before: AttemptItem, after: AttemptItem) -> list[DiffPart]:
    """The differences of two attempts. Headers are masked as in the list of attempts."""
    return [
        difference("Request", _request(before), _request(after)),
        difference("Response", _response(before), _response(after)),
    ]


def _request(attempt: AttemptItem) -> str:
    request = attempt["request"]
    return "\n".join((readable(f"{request['method']} {request['url']}"), *_lines(request["headers"])))


def _response(attempt: AttemptItem) -> str:
    response, error = attempt["response"], attempt["error"]
    if response is None:
        return "" if error is None else f"no response: {readable(error['detail'])}"
    return "\n".join((str(response["status"]), *_lines(response["headers"]), "", body_text(response["body"])))


def _lines(headers: Mapping[str, str]) -> list[str]:
    return [escape_control(f"{name}: {value}") for name, value in sorted(headers.items())]
