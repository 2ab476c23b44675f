"""Writes events as lines to a terminal or a pipe: `-->` a message, `<--` a receiver's response, `<==` its answer on
the way to the sender, `!!!` a dead letter.

Foreign text may be hostile: control characters are escaped. A line begins with its most important part, because a
terminal cuts it at its width.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, Final
from urllib.parse import quote

import click
from rich.console import Console
from rich.text import Text

from relay.cli.api import ApiOptions, api_command, error_of
from relay.cli.listener import ForwardedRequest, ForwardedResponse
from relay.cli.options import program, types_option
from relay.client import ClientError
from relay.client.sse import ServerSentEvent
from relay.domain.attempt import OF_SENDER
from relay.run.event_loop import run_until_signalled
from relay.schema.attempts import AttemptItem
from relay.schema.messages import MessageItem
from relay.schema.replays import LetterView
from relay.schema.streams import AnswerItem
from relay.telemetry.redaction import escape_control

INDENT: Final = 13
"""Columns before the details of an event: the time, and its arrow."""
_LONGEST_ID: Final = 36
"""Characters of an id or a type: the length of a UUID."""
_MOST_NAMES: Final = 4
_LONGEST_BODY: Final = 200


class Lines:
    """Formats the events of the live tail as lines for a terminal. `pages`: the URL of the pages, for links; None if
    there are none. `api`: appended to commands to copy, if they would look for another relay. `stays`: the relay is
    still there when a user could run one."""

    def __init__(self, pages: str | None = None, api: str | None = None, *, stays: bool = True) -> None:
        self._pages = pages
        self._stays = stays
        self._api = f" --api {api}" if api else ""

    def of(self, name: str, data: Mapping[str, object], now: datetime) -> list[Text]:
        """The lines of an event of the live tail; none if it has no line. `now`: in the time zone of the output."""
        forms: Mapping[str, Callable[[Any, datetime], list[Text]]] = {
            "message": self._message,
            "attempt": self._attempt,
            "answer": self._answer,
            "failed": self._failed,
        }
        gaps = {
            "skipped": f"{data.get('count')} omitted: too many at once",
            "away": "the log does not answer; events are missing",
            "ended": f"ended: {escape_control(str(data.get('detail')))}",
        }
        if name in forms:
            return forms[name](data, now)
        return [_line(_time(now, now), "...", ("yellow", gaps[name]))] if name in gaps else []

    def _message(self, data: MessageItem, now: datetime) -> list[Text]:
        names = [str(one["receiver"]) for one in data["deliveries"]]
        more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
        to = ", ".join(map(_shown, names[:_MOST_NAMES])) + more or "no receiver"
        source = _shown(data["source_id"])
        event_type = "" if data["type"] is None else _shown(data["type"])
        at = _clock(data["received_at"], now)
        return [_line(at, "-->", self._id(data), ("", event_type), ("", f"{source} to"), ("cyan", to))]

    def _attempt(self, data: AttemptItem, now: datetime) -> list[Text]:
        response, error, ended = data["response"], data["error"], _ended(data)
        verdict, said = ("red", "-"), ""
        if response is not None:
            verdict, said = (_colour(response["status"]), str(response["status"])), _beginning(response["body"])
        elif error is not None:
            verdict, said = ("red", _shown(error["kind"])), _beginning(error["detail"])
        took = f"{data['duration_ms']:.0f} ms"
        what, whom = _WHAT.get(data["kind"], ""), _shown(data["receiver"] or "-")
        if data["kind"] in OF_SENDER:
            whom = f"sender of {_shown(data['source_id'] or '-')}"
        line = _line(
            _time(ended or now, now),
            "<--",
            verdict,
            ("", took),
            ("cyan", whom),
            self._id(data),
            ("", what),
            ("dim", said),
        )
        follows = None if ended is None else _follows(data, ended)
        return [line] if follows is None else [line, _indented(*follows)]

    def _answer(self, data: AnswerItem, now: datetime) -> list[Text]:
        status = ("", "-") if data["status"] is None else (_colour(data["status"]), str(data["status"]))
        receiver, body = ("cyan", _shown(data["receiver"])), ("dim", _beginning(data["body"]))
        return [_line(_clock(data["at"], now), "<==", self._id(data), receiver, status, body)]

    def _failed(self, data: LetterView, now: datetime) -> list[Text]:
        why = ": ".join(filter(None, (_shown(data["reason"]), _beginning(data["detail"] or ""))))
        line = _line(
            _clock(data["failed_at"], now), "!!!", self._id(data), ("cyan", _shown(data["receiver"])), ("", why)
        )
        line.stylize("red")
        if not self._stays:
            return [line]
        return [line, _indented("bold", f"{program()} failed replay {data['partition']}/{data['offset']}{self._api}")]

    def _id(self, data: MessageItem | AttemptItem | AnswerItem | LetterView) -> tuple[str, str]:
        """The id, which links to the page of its message."""
        source_id, message_id = data["source_id"], data["message_id"]
        if source_id is None or message_id is None:
            return "", "-"
        link = f"link {self._pages}/messages/{_quoted(source_id)}/{_quoted(message_id)}" if self._pages else ""
        return f"bold {link}".strip(), _shown(message_id)


def request_line(came: ForwardedRequest, now: datetime) -> Text:
    """A POST that `relay listen` forwards."""
    again = f"attempt {came.attempt}" if came.attempt != "1" else ""
    body = _beginning(came.body[: 4 * _LONGEST_BODY].decode(errors="replace"))
    parts = (("bold", _shown(came.message_id)), ("", _shown(came.event_type)), ("", _shown(came.source_id)))
    return _line(now.strftime("%H:%M:%S"), "-->", *parts, ("yellow", _shown(again)), ("dim", body))


def response_line(back: ForwardedResponse, now: datetime) -> Text:
    """The response to a forwarded POST."""
    verdict = ("red", "nothing") if back.status is None else (_colour(back.status), str(back.status))
    body = _beginning(back.detail or back.body[: 4 * _LONGEST_BODY].decode(errors="replace"))
    parts = (("", f"{back.took_ms:.0f} ms"), ("bold", _shown(back.came.message_id)), ("dim", body))
    return _line(now.strftime("%H:%M:%S"), "<--", verdict, *parts)


_WHAT: Final = {"status": "status GET", "ping": "ping", "progress": "progress"}


def _clock(at: str | None, now: datetime) -> str:
    """The time of an event (RFC 3339), in the zone of `now`; that of `now` if the event has none."""
    return _time(now if at is None else datetime.fromisoformat(at), now)


def _time(at: datetime, now: datetime) -> str:
    return at.astimezone(now.tzinfo).strftime("%H:%M:%S")


def _ended(attempt: AttemptItem) -> datetime | None:
    """When an attempt ended; None if its time is unknown."""
    begun = attempt["started_at"]
    return None if begun is None else datetime.fromisoformat(begun) + timedelta(milliseconds=attempt["duration_ms"])


def _follows(data: AttemptItem, ended: datetime) -> tuple[str, str] | None:
    """The next step after an attempt that was not the last, its delay from the end of the attempt, and the reason."""
    if data["outcome"] == "done" or data["next_attempt_at"] is None:
        return None
    seconds = (datetime.fromisoformat(data["next_attempt_at"]) - ended).total_seconds()
    if data["kind"] == "status":
        again, why = "next status GET", data["detail"] or data["reason"] or data["outcome"]
    elif data["response"] is not None:
        again, why = "retry", f"response {data['response']['status']}"
    else:
        again, why = "retry", data["reason"] or data["detail"] or data["outcome"]
    return "yellow", f"{again} in {_seconds(seconds)}: {_beginning(why)}"


def _seconds(seconds: float) -> str:
    if seconds < 10:
        return f"{max(0.0, seconds):.1f} s"
    return f"{seconds:.0f} s" if seconds < 180 else f"{seconds / 60:.0f} min"


def _line(at: str, arrow: str, *parts: tuple[str, str]) -> Text:
    line = Text(no_wrap=True, overflow="ellipsis")
    line.append(at, "dim").append(f" {arrow}", "bold")
    for style, text in parts:
        if text:
            line.append(" ").append(text, style or None)
    return line


def _indented(style: str, text: str) -> Text:
    return Text(no_wrap=True, overflow="ellipsis").append(" " * INDENT).append(text, style)


def _colour(status: int) -> str:
    return "green" if status < 300 else "yellow" if status < 400 or status == 429 else "red"


def _shown(text: str) -> str:
    """A name, in one piece, shortened to leave room for others."""
    safe = escape_control(str(text))
    return safe if len(safe) <= _LONGEST_ID else safe[: _LONGEST_ID - 1] + "…"


def _beginning(text: str) -> str:
    """The beginning of a body, without its white space."""
    return escape_control(" ".join(text[: 4 * _LONGEST_BODY].split()))[:_LONGEST_BODY]


def _quoted(text: str) -> str:
    return quote(text, safe="", errors="replace")


class Screen:
    """Writes to stdout. `columns`: longer lines are folded there and none is cut, in a pipe neither."""

    def __init__(self, columns: int | None = None) -> None:
        self._console = Console(markup=False, highlight=False, emoji=False)
        self._columns = columns

    @property
    def is_terminal(self) -> bool:
        return self._console.is_terminal

    def show(self, line: Text) -> None:
        for each in [line] if self._columns is None else self._folded(line, self._columns):
            if self._console.is_terminal:
                self._console.print(each, no_wrap=True, overflow="ellipsis", crop=True)
            else:
                click.echo(each.plain)

    def _folded(self, line: Text, columns: int) -> Iterator[Text]:
        """What follows the first line is indented as details are."""
        first, *rest = line.wrap(self._console, columns, no_wrap=False, overflow="fold")
        first.rstrip()
        yield first
        if rest:
            behind = line[len(first.plain) :]
            behind = behind[len(behind.plain) - len(behind.plain.lstrip()) :]
            for each in behind.wrap(self._console, columns - INDENT, no_wrap=False, overflow="fold"):
                each.rstrip()
                yield Text(" " * INDENT).append_text(each)


Report = Callable[[ServerSentEvent], None]


@click.command()
@click.option("--source", "sources", multiple=True, help="Only events of this source; repeatable.")
@click.option("--receiver", "receivers", multiple=True, help="Only events of this receiver; repeatable.")
@types_option
@click.option("--failed", is_flag=True, help="Only failures.")
@api_command
def tail(
    call: ApiOptions, sources: tuple[str, ...], receivers: tuple[str, ...], types: tuple[str, ...], failed: bool
) -> None:
    """Show events from now on: messages (-->), responses of receivers (<--), answers on their way to the sender (<==)
    and dead letters (!!!). Ctrl-C ends it.

    \b
    relay tail --receiver ci
    relay tail --source github --type 'pull_request.*' --failed
    relay tail -o json | jq 'select(.event == "failed").data.detail'
    """
    report = _as_json if call.is_json else shown_on(Screen(), Lines(api=call.api))

    async def follow(_stop: asyncio.Event) -> None:
        async with call.client() as client:
            await report_all(
                client.tail(sources=sources, receivers=receivers, types=types, failed=failed, reconnect=_trouble),
                report,
            )

    asyncio.run(run_until_signalled(follow, grace_s=0))


def _trouble(why: ClientError) -> None:
    click.echo(f"{error_of(why)}; trying again", err=True)


def ignore(_why: ClientError) -> None:
    """For a relay that is part of this process: when it ends, the command ends."""


async def report_all(events: AsyncIterator[ServerSentEvent], report: Report) -> None:
    async for event in events:
        report(event)


def shown_on(screen: Screen, lines: Lines) -> Report:
    """Prints events as lines."""

    def report(event: ServerSentEvent) -> None:
        for line in lines.of(event.name, event.data, datetime.now().astimezone()):
            screen.show(line)

    return report


def _as_json(event: ServerSentEvent) -> None:
    """One object a line. Events about the stream itself are omitted, except those about missing events."""
    if event.name != "listening":
        click.echo(json.dumps({"event": event.name, "data": event.data}, ensure_ascii=False))
