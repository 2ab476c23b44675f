"""Streams of a receiver's deliveries: `AsyncRelay.receivers.export` and `AsyncRelay.receivers.catch_up`."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Final, cast

import msgspec

from relay.client.call import Asyncio, Iteration, Resource
from relay.client.errors import ClientError, RelayUnreachable, is_passing
from relay.client.http import path
from relay.schema.streams import CatchUpEnd, ExportEnd, ExportLine, MissingLine, NumberedLine

RECONNECT_S: Final = 1.0
_TRIES: Final = 10
"""Connections in a row that bring nothing."""


@Iteration
async def export(
    self: Resource[Asyncio],
    name: str,
    *,
    since: str | None = None,
    until: str | None = None,
    after: str | None = None,
    reconnect: Callable[[ClientError], None] | None = None,
) -> AsyncIterator[ExportLine]:
    """Everything that a receiver got or missed, with payloads, the newest first, from the history. `since`, `until`:
    RFC 3339, or how long ago. `after`: the `cursor` of an item; continues after it. With `reconnect` it continues after
    a broken connection, for whose reason `reconnect` is called."""
    place, failures = after, 0
    while True:
        query = {"since": since, "until": until, "after": place}
        try:
            async for line in self._http.lines(path("/v1/receivers/{}/export", name), query):
                item = _decoded(line)
                if "exported" in item:
                    if not cast(ExportEnd, item)["complete"]:
                        raise RelayUnreachable(f"the export is incomplete: {item['detail']}", busy=True)
                    return
                place, failures = item["cursor"], 0
                yield cast(ExportLine, item)
            raise RelayUnreachable("the export ended without its last line", lost=True)
        except ClientError as error:
            failures += 1
            if reconnect is None or place == after or failures == _TRIES or not is_passing(error):
                raise
            reconnect(error)
            await asyncio.sleep(RECONNECT_S)


def _decoded(line: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(line, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise RelayUnreachable(f"the response has a line that is no JSON: {error}", lost=True) from error


@Iteration
async def catch_up(self: Resource[Asyncio], name: str, *, after: int) -> AsyncIterator[NumberedLine | MissingLine]:
    """The messages behind `after`, the last number that a receiver has, in the order of their numbers; and the numbers
    without one, as ranges with a reason."""
    while True:
        end: CatchUpEnd | None = None
        async for line in self._http.lines(path("/v1/receivers/{}/catch-up", name), body={"after": after}):
            item = _decoded(line)
            if "delivered" in item:
                end = cast(CatchUpEnd, item)
                break
            yield cast(NumberedLine | MissingLine, item)
        if end is None:
            raise RelayUnreachable("the response ended without its last line", lost=True)
        if end["complete"]:
            return
        if end["last"] == after:
            raise RelayUnreachable(f"the response is incomplete: {end['detail']}", busy=True)
        after = end["last"]
