"""HTTP control of a running sink: GET and PATCH /behaviour, GET /received."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any, Final, Protocol, TypeVar

import msgspec
from aiohttp import web

from relay.domain.errors import UserError
from relay.sink.arrival import ReceivedPost
from relay.sink.behaviour import Behaviour
from relay.sink.builds import CiBehaviour
from relay.sink.server import as_json

ROUTES: Final = frozenset({"/behaviour", "/received"})
B = TypeVar("B", Behaviour, CiBehaviour)
_SHOWN: Final = 100
_NAMED: Final = ("source_id", "message_id", "webhook_id", "attempt", "generation")
_BOUNDS: Final[Mapping[str, tuple[float, float]]] = {
    "delay_s": (0, 3600),
    "fail_rate": (0, 1),
    "fail_status": (200, 599),
    "fail_first": (0, 10**9),
    "retry_after": (0, 10**9),
    "later_polls": (0, 10**9),
    "answer_after_s": (0, 10**9),
    "answer_size": (0, 32 * 1024 * 1024),
    "queued_polls": (0, 10**9),
    "running_polls": (0, 10**9),
    "poll_status": (200, 599),
}


class Controlled(Protocol[B]):
    """The part of a sink or emulator that can be inspected and changed over HTTP."""

    received: list[ReceivedPost]

    @property
    def behaviour(self) -> B: ...

    def behave(self, behaviour: B) -> None: ...


def changed(behaviour: B, body: bytes) -> B:
    """`behaviour` with the fields in `body`, a JSON object, replaced. Raises UserError."""
    try:
        wanted = msgspec.json.decode(body, type=dict[str, Any])
        names = sorted(field.name for field in fields(behaviour))
        if unknown := sorted(wanted.keys() - set(names)):
            raise UserError(f"{unknown[0][:40]!r} is none of {', '.join(names)}")
        found = msgspec.convert(asdict(behaviour) | wanted, type(behaviour))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(str(error)) from error
    for name, (least, most) in _BOUNDS.items():
        value = getattr(found, name, None)
        if value is not None and not least <= value <= most:
            raise UserError(f"{name} is {value}; allowed: {least} to {most}")
    return found


def received_view(received: Sequence[ReceivedPost]) -> dict[str, Any]:
    """The newest arrivals, newest first, and the total numbers of POSTs and messages."""
    shown = [
        {
            **{name: getattr(arrival, name) for name in _NAMED},
            "answered": arrival.status or arrival.met,
            "verified": arrival.verified,
            "body": arrival.body[:1024].decode(errors="replace"),
            **({} if arrival.payload is None else {"payload": arrival.payload[:1024].decode(errors="replace")}),
        }
        for arrival in reversed(received[-_SHOWN:])
    ]
    messages = {(arrival.source_id, arrival.message_id) for arrival in received}
    return {"posts": len(received), "messages": len(messages), "items": shown}


def add_control(app: web.Application, sink: Controlled[B]) -> None:
    """Add the control routes, without authentication: the sink is for tests, and listens on loopback by default."""

    async def behaviour(_: web.Request) -> web.Response:
        return as_json(200, asdict(sink.behaviour))

    async def change(request: web.Request) -> web.Response:
        if request.content_type != "application/json":  # a web page cannot send that cross-origin without a preflight
            return as_json(415, {"error": "the content type has to be application/json"})
        try:
            sink.behave(changed(sink.behaviour, await request.read()))
        except UserError as error:
            return as_json(400, {"error": str(error)})
        return as_json(200, asdict(sink.behaviour))

    async def received(_: web.Request) -> web.Response:
        return as_json(200, received_view(sink.received))

    app.router.add_get("/behaviour", behaviour)
    app.router.add_patch("/behaviour", change)
    app.router.add_get("/received", received)
