"""Receivers and sources: the two resources that have an endpoint, with the same methods where they do the same.
`export` and `catch_up` stream a receiver's deliveries."""

# mypy: disable-error-code="empty-body"
# A declaration is a signature without a body: relay.client.call makes the method from it.

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any, Final, Literal, TypedDict, Unpack, cast

import msgspec

from relay.client.call import Asyncio, Iteration, M, Resource, every, route
from relay.client.errors import ClientError, RelayUnreachable, is_passing
from relay.client.http import Paging, path
from relay.schema.attempts import AttemptItem, AttemptPage, TrialView, TryView
from relay.schema.receivers import (
    ChangedReceiverView,
    EndpointView,
    GapPage,
    GapView,
    NewReceiverView,
    NewSourceView,
    ReceiverHealthView,
    ReceiverItem,
    ReceiverPage,
    RemovalView,
    RotatedSourceView,
    RotatedView,
    SourceItem,
    SourcePage,
    SourceRemovalView,
    SourceView,
    TriedView,
)
from relay.schema.replays import JobView, PreviewView
from relay.schema.statistics import LastResponseDetail, StatsView
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


_RECEIVER = "/v1/receivers/{name}"
_SOURCE = "/v1/sources/{source}"


class SampleFields(TypedDict, total=False):
    """The message of a test."""

    text: str
    content_type: str
    headers: Mapping[str, str]
    type: str | None
    source: str | None
    id: str | None


class TrialFields(SampleFields, total=False):
    """The same, with the receiver's responses to the POST and to the status GETs."""

    response: str
    status_responses: Iterable[str]


class Receivers(Resource[M]):
    """The receivers of the relay: `AsyncRelay.receivers`. Their fields are those of receivers.yaml.

    `etag`: only if the receiver is still that version; otherwise ApiError with status 412.
    """

    @route("GET", _RECEIVER)
    def get(self, name: str) -> ReceiverHealthView:
        """Settings and health of a receiver."""

    @route("GET", "/v1/receivers")
    def page(
        self,
        *,
        owner: str | None = None,
        label: Iterable[str] = (),
        state: Iterable[str] = (),
        declared_by: Literal["file", "api"] | None = None,
        prefix: str | None = None,
        lane: Literal["dedicated", "shared"] | None = None,
        traffic: bool = False,
        **paging: Unpack[Paging],
    ) -> ReceiverPage:
        """All receivers, in the order of their names: one page. `label`: `name` or `name=value`; all of several."""

    list = every(page, ReceiverItem)

    @route("POST", "/v1/receivers")
    def create(self, /, name: str, post_endpoint: str | None = None, **fields: object) -> NewReceiverView:
        """Register a receiver. Without a `secret`, one is made: it is in this response only."""

    @route("PATCH", _RECEIVER)
    def update(self, name: str, changes: Mapping[str, object], *, etag: str | None = None) -> ChangedReceiverView:
        """Change some fields: a JSON merge patch, in which None restores the default."""

    @route("DELETE", _RECEIVER)
    def delete(self, name: str, *, etag: str | None = None, dry_run: bool = False) -> RemovalView:
        """Remove a receiver; returns what becomes of its messages. `dry_run`: only that."""

    @route("POST", _RECEIVER + "/pause", safe=True)
    def pause(self, name: str, reason: str = "") -> ReceiverHealthView:
        """Send the receiver nothing until it is resumed; its messages wait."""

    @route("POST", _RECEIVER + "/resume", safe=True)
    def resume(self, name: str) -> ReceiverHealthView:
        """Resume the receiver: end its pause or outage, and close its breaker."""

    @route("POST", _RECEIVER + "/test")
    def test(self, name: str, payload: object = None, **sample: Unpack[SampleFields]) -> TrialView:
        """Send the receiver one signed ping, or the request of a delivery with this payload; returns the request and
        the response. `payload`: a JSON value, or else `text`."""

    @route("POST", _RECEIVER + "/try", safe=True)
    def dry_run(self, name: str, payload: object = None, **sample: Unpack[TrialFields]) -> TryView:
        """What the relay would do with this payload, and with these responses to the POST and the status GETs after
        it. Nothing is sent. `payload`: a JSON value, or else `text`."""

    @route("POST", _RECEIVER + "/verify")
    def verify(self, name: str) -> TriedView:
        """Have the receiver's URL prove now that it wants to get messages."""

    @route("POST", _RECEIVER + "/rotate")
    def rotate(
        self, name: str, *, secret: str | None = None, grace: str | float | None = None, etag: str | None = None
    ) -> RotatedView:
        """Give the receiver a new signing secret, by default a random one. `grace`: how long the old one signs along,
        in seconds or as `1d`."""

    @route("GET", _RECEIVER + "/stats")
    def stats(self, name: str) -> StatsView:
        """Outcomes and durations of the attempts of the last 24 hours."""

    @route("GET", _RECEIVER + "/gaps")
    def gaps_page(self, name: str, *, after: int | None = None, **paging: Unpack[Paging]) -> GapPage:
        """The numbers that a receiver with `ordering: receiver` did not get, and why: one page. `after`: only higher
        ones."""

    gaps = every(gaps_page, GapView)

    @route("POST", _RECEIVER + "/gaps/replay", keyed=True)
    def replay_gaps(
        self, name: str, *, first: int | None = None, last: int | None = None, rate: float | None = None
    ) -> JobView:
        """Send again the messages in these gaps, by default in all of them."""

    @route("POST", _RECEIVER + "/gaps/replay", fixed={"dry_run": True}, safe=True)
    def preview_replay_gaps(self, name: str, *, first: int | None = None, last: int | None = None) -> PreviewView:
        """What `replay_gaps` would do."""

    @route("GET", _RECEIVER + "/last-response")
    def last_response(self, name: str) -> LastResponseDetail:
        """The receiver's last response, with its headers and body."""

    @route("GET", _RECEIVER + "/attempts")
    def attempts_page(self, name: str, *, failed: bool = False, **paging: Unpack[Paging]) -> AttemptPage:
        """Each request that the relay made to a receiver, the newest first, from the history: one page."""

    attempts = every(attempts_page, AttemptItem)
    export = export
    catch_up = catch_up


class Sources(Resource[M]):
    """The declared sources: `AsyncRelay.sources`. Their fields are those of receivers.yaml.

    `etag`: only if the source is still that version; otherwise ApiError with status 412.
    """

    @route("GET", _SOURCE)
    def get(self, source: str) -> SourceView:
        """A source, as it is declared."""

    @route("GET", "/v1/sources")
    def page(self, *, declared_by: Literal["file", "api"] | None = None, **paging: Unpack[Paging]) -> SourcePage:
        """All declared sources: one page."""

    list = every(page, SourceItem)

    @route("POST", "/v1/sources")
    def create(self, /, source_id: str, **fields: object) -> NewSourceView:
        """Declare a source. A callback without a secret gets one: it is in this response only."""

    @route("PATCH", _SOURCE)
    def update(self, source: str, changes: Mapping[str, object], *, etag: str | None = None) -> SourceView:
        """Change some fields: a JSON merge patch, in which None restores the default."""

    @route("DELETE", _SOURCE)
    def delete(self, source: str, *, etag: str | None = None, dry_run: bool = False) -> SourceRemovalView:
        """Remove a source; returns what becomes of its results. `dry_run`: only that."""

    @route("GET", _SOURCE + "/callback")
    def callback(self, source: str) -> EndpointView:
        """The health of the source's callback."""

    @route("POST", _SOURCE + "/callback/rotate")
    def rotate(
        self, source: str, *, secret: str | None = None, grace: str | float | None = None, etag: str | None = None
    ) -> RotatedSourceView:
        """Give the callback a new signing secret, by default a random one. `grace`: how long the old one signs along,
        in seconds or as `1d`."""

    @route("GET", _SOURCE + "/callback/attempts")
    def attempts_page(self, source: str, *, failed: bool = False, **paging: Unpack[Paging]) -> AttemptPage:
        """Each request that the relay made to the callback, the newest first, from the history: one page."""

    attempts = every(attempts_page, AttemptItem)

    @route("POST", _SOURCE + "/callback/test")
    def test(self, source: str) -> TrialView:
        """Send the callback one signed ping; returns the request and the response."""

    @route("POST", _SOURCE + "/callback/pause", safe=True)
    def pause(self, source: str, reason: str = "") -> EndpointView:
        """Send the callback nothing until it is resumed; results wait."""

    @route("POST", _SOURCE + "/callback/resume", safe=True)
    def resume(self, source: str) -> EndpointView:
        """Resume the callback: end its pause or outage, and close its breaker."""
