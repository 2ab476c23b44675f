"""The resources of the API: a group of methods each, most of them one declaration."""

# mypy: disable-error-code="empty-body"
# A declaration is a signature without a body: relay.client.call makes the method from it.

from collections.abc import Iterable, Mapping
from typing import Literal, TypedDict, Unpack

from relay.client.call import M, Resource, every, route
from relay.client.http import ApiResponse, Paging
from relay.domain.replay_job import Stage
from relay.schema.access import EndedSession, KeyPage, KeyView, NewKey, NewSession, SessionView
from relay.schema.attempts import AttemptItem, AttemptPage
from relay.schema.incidents import IncidentDetail, IncidentPage, IncidentView
from relay.schema.messages import EventTypePage, EventTypeView, MessageItem, MessagePage, MessageView
from relay.schema.replays import (
    JobPage,
    JobView,
    LetterGroupList,
    LetterPage,
    LetterView,
    OneView,
    PreviewView,
    WholeLetter,
)

_MESSAGE = "/v1/sources/{source}/messages/{id}"
_DELIVERY = _MESSAGE + "/deliveries/{receiver}"
_EVENT_TYPE = "/v1/event-types/{type}"
_LETTER = "/v1/failed/{partition}/{offset}"
_INCIDENT = "/v1/incidents/{id}"


class MessageFilters(TypedDict, total=False):
    """Only these messages of the list."""

    source: str | None
    receiver: str | None
    owner: str | None
    status: str | None
    state: str | None
    reason: str | None
    type: str | None
    since: str | None
    until: str | None
    id: str | None
    header: str | None
    payload: str | None


class PagedMessageFilters(MessageFilters, Paging, total=False):
    """One page of them."""


class Messages(Resource[M]):
    """The messages of the relay: `AsyncRelay.messages`. `since`, `until`: RFC 3339, or how long ago (`90m`)."""

    @route("GET", _MESSAGE)
    def get(self, source: str, id: str, *, receiver: str | None = None) -> MessageView:
        """The state of a message and its deliveries. Raises ApiError with status 404 if it is not known."""

    @route("GET", "/v1/messages")
    def page(
        self,
        **query: Unpack[PagedMessageFilters],
    ) -> MessagePage:
        """Messages from the history, the newest first: one page."""

    list = every(page, MessageItem)

    @route("GET", _MESSAGE + "/attempts")
    def attempts_page(
        self,
        source: str,
        id: str,
        *,
        receiver: str | None = None,
        behind: str | None = None,
        **paging: Unpack[Paging],
    ) -> AttemptPage:
        """Each request that the relay made for a message, the newest first, from the history: one page."""

    attempts = every(attempts_page, AttemptItem)

    @route("GET", _MESSAGE + "/payload")
    def payload(self, source: str, id: str) -> ApiResponse:
        """The payload, as the sender gave it: `body`, and its content type among the `headers`."""

    @route("POST", _MESSAGE + "/copies")
    def copy(
        self,
        source: str,
        id: str,
        *,
        payload: str | None = None,
        payload_base64: str | None = None,
        headers: Mapping[str, str] | None = None,
        type: str | None = None,
        content_type: str | None = None,
        receivers: Iterable[str] | None = None,
    ) -> MessageView:
        """Send a message again as a copy with a new id. Fields that are not given are as in the original. `payload`:
        text; `payload_base64`: any bytes."""

    @route("POST", _DELIVERY + "/replay")
    def replay(self, source: str, id: str, receiver: str, *, only_failed: bool = True) -> OneView:
        """Send a delivery that failed to its receiver again. `only_failed=False`: also one that was delivered."""

    @route("POST", _DELIVERY + "/discard")
    def discard(self, source: str, id: str, receiver: str) -> OneView:
        """End a delivery that failed for good, and notify its sender."""

    @route("POST", _DELIVERY + "/cancel")
    def cancel(self, source: str, id: str, receiver: str) -> OneView:
        """Cancel a delivery that was not sent yet. Raises ApiError with status 409 if it was."""


class Failed(Resource[M]):
    """Dead letters: `AsyncRelay.failed`. `receiver`: `-` for those of messages that never had one."""

    @route("GET", "/v1/failed")
    def page(
        self,
        *,
        receiver: Iterable[str] = (),
        source: Iterable[str] = (),
        reason: Iterable[str] = (),
        stage: Stage | None = None,
        **paging: Unpack[Paging],
    ) -> LetterPage:
        """Open dead letters, the newest first: one page. `stage`: that gave up, as `to_sender` on the way back."""

    list = every(page, LetterView)

    @route("GET", "/v1/failed/groups")
    def groups(
        self,
        *,
        receiver: Iterable[str] = (),
        source: Iterable[str] = (),
        reason: Iterable[str] = (),
        limit: int | None = None,
    ) -> LetterGroupList:
        """Dead letters by receiver and reason, the largest groups first."""

    @route("GET", _LETTER)
    def get(self, partition: int, offset: int) -> WholeLetter:
        """A dead letter with its headers and payload."""

    @route("POST", _LETTER + "/replay")
    def replay(self, partition: int, offset: int) -> OneView:
        """Send it to its receiver again."""

    @route("POST", _LETTER + "/discard")
    def discard(self, partition: int, offset: int) -> OneView:
        """End it for good, and notify its sender."""


class Incidents(Resource[M]):
    """Causes of failures: `AsyncRelay.incidents`."""

    @route("GET", "/v1/incidents")
    def page(
        self,
        *,
        state: Iterable[Literal["open", "acknowledged", "resolved"]] = (),
        party: Iterable[str] = (),
        **paging: Unpack[Paging],
    ) -> IncidentPage:
        """Incidents, the newest first: one page. `party`: only of these receivers, sources, or parts of the relay."""

    list = every(page, IncidentView)

    @route("GET", _INCIDENT)
    def get(self, id: str) -> IncidentDetail:
        """An incident with its evidence, and what was tried."""

    @route("POST", _INCIDENT + "/acknowledge", safe=True)
    def acknowledge(self, id: str) -> IncidentDetail:
        """Say that you are on it. The first one counts."""

    @route("POST", _INCIDENT + "/resolve", safe=True)
    def resolve(self, id: str) -> IncidentDetail:
        """Resolve it by hand; it is reopened if its cause is observed again."""


class Replays(Resource[M]):
    """Jobs that replay or discard many dead letters, or cancel many deliveries: `AsyncRelay.replays`.

    `selection`: `receiver`, `source`, `reason`, `status`, `stage`, `ids`, `since`, `until`, `rate` (a second),
    `only_failed`; as in the API's `POST /v1/replays`. Without a restriction, `everything` has to be true.
    """

    @route("POST", "/v1/replays", keyed=True)
    def create(self, /, *, everything: bool = False, **selection: object) -> JobView:
        """Send many again."""

    @route("POST", "/v1/discards", keyed=True)
    def discard(self, /, *, everything: bool = False, **selection: object) -> JobView:
        """End many for good, and notify their senders."""

    @route("POST", "/v1/cancels", keyed=True)
    def cancel(self, /, *, everything: bool = False, **selection: object) -> JobView:
        """End many that were not sent yet. `selection`: without `reason`, `status`, `stage` and `only_failed`."""

    @route("POST", "/v1/cancels", fixed={"dry_run": True}, safe=True)
    def preview_cancel(self, /, **selection: object) -> PreviewView:
        """What `cancel` would do."""

    @route("POST", "/v1/replays", fixed={"dry_run": True}, safe=True)
    def preview(self, /, **selection: object) -> PreviewView:
        """What `create` would do."""

    @route("POST", "/v1/discards", fixed={"dry_run": True}, safe=True)
    def preview_discard(self, /, **selection: object) -> PreviewView:
        """What `discard` would do."""

    @route("GET", "/v1/replays/{id}")
    def get(self, id: str) -> JobView:
        """The progress of a job."""

    @route("GET", "/v1/replays")
    def page(self, **paging: Unpack[Paging]) -> JobPage:
        """All jobs, the newest first: one page."""

    list = every(page, JobView)

    @route("POST", "/v1/replays/{id}/stop", safe=True)
    def stop(self, id: str) -> JobView:
        """Stop a job. What it has done until then stays done."""


class EventTypes(Resource[M]):
    """The catalogue of event types: `AsyncRelay.event_types`."""

    @route("GET", "/v1/event-types")
    def page(self, **paging: Unpack[Paging]) -> EventTypePage:
        """All event types, in the order of their names: one page."""

    list = every(page, EventTypeView)

    @route("GET", _EVENT_TYPE)
    def get(self, type: str) -> EventTypeView:
        """An event type with its schemas and examples."""

    @route("PUT", _EVENT_TYPE, safe=True, in_query=False)
    def put(self, type: str, /, **entry: object) -> EventTypeView:
        """Declare an event type, or replace its entry: `description`, `deprecated`, and `versions`, each with
        `version`, `schema` and `examples`."""

    @route("DELETE", _EVENT_TYPE)
    def delete(self, type: str) -> EventTypeView:
        """Remove an event type. Messages of the type are no longer checked."""


class Keys(Resource[M]):
    """The keys of the API: `AsyncRelay.keys`."""

    @route("POST", "/v1/keys")
    def create(self, scopes: Iterable[str], *, name: str = "", expires_in: str | float | None = None) -> NewKey:
        """Create a key: its text is in this response only. `expires_in`: seconds, or as `30d`."""

    @route("GET", "/v1/keys")
    def page(self, **paging: Unpack[Paging]) -> KeyPage:
        """All keys, the newest first: one page."""

    list = every(page, KeyView)

    @route("DELETE", "/v1/keys/{id}")
    def revoke(self, id: str) -> KeyView:
        """Revoke the key ID: every process rejects it within two seconds."""

    @route("POST", "/v1/keys/{id}/rotate")
    def rotate(self, id: str, *, overlap: str | float | None = None) -> NewKey:
        """Give the key a new secret. `overlap`: how long the old one stays valid, in seconds or as `1d`."""


class Sessions(Resource[M]):
    """The caller's session: `AsyncRelay.sessions`."""

    @route("POST", "/v1/sessions")
    def create(self, *, key: str | None = None, expires_in: str | float | None = None) -> NewSession:
        """Begin a session with a key, by default the client's own."""

    @route("GET", "/v1/session")
    def get(self) -> SessionView:
        """The rights of the caller, and how they are proved."""

    @route("DELETE", "/v1/session")
    def end(self) -> EndedSession:
        """End the session that the caller uses."""
