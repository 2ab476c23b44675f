"""HTTP exchanges with receivers and senders as the API shows them, and trials: the payload and the responses to try."""

from typing import Any, Literal, NotRequired, TypedDict

import msgspec
from msgspec import UNSET, UnsetType

from relay.domain.attempt import AttemptKind
from relay.domain.outcome import CodeClass


class RequestItem(TypedDict):
    """A request as it was sent: `headers` in order, secrets masked."""

    method: str
    url: str
    headers: dict[str, str]


class RequestView(RequestItem):
    """A request as it was sent. Values of headers from the receiver's settings are masked."""

    body: str


class ResponseView(TypedDict):
    """A response. `body`: its beginning, as text; `truncated`: there was more."""

    status: int
    headers: dict[str, str]
    body: str
    truncated: bool


class FailureView(TypedDict):
    """The reason for a missing response. `kind`: such as `refused`, `dns`, `timeout`, `blocked`. `sent`: a part of the
    request was sent, so the receiver may have acted on it."""

    kind: str
    detail: str
    sent: bool


class ResponseItem(ResponseView):
    """A response. `body`: its beginning as text, secrets masked; `truncated`: there was more."""


class ErrorItem(FailureView):
    """The reason for a missing response. `sent`: a part of the request was sent, so the receiver may have acted on
    it."""


class AttemptItem(TypedDict):
    """One HTTP exchange; `partition` and `offset` of its record name it. `kind`: a POST to the receiver, a GET of its
    status, a POST to the sender's `callback`, one of `progress` to it, or a `ping`, which is about no message.
    `attempt`: the first is 1, counted per kind. `outcome`: `done`, `working` (no answer yet), `retry`, `doubt`,
    `released` or `dead`; `reason`: why not `done`. `next_attempt_at`: when it goes on at the earliest. `code_class`:
    what a response to a POST to the receiver means; `rule`: the rule of the receiver's settings that says so, such as
    `codes.accepted`; null for the usual table. `cut`: of long headers only the first are here; `GET
    /v1/attempts/{partition}/{offset}` has all that are kept."""

    partition: int
    offset: int
    kind: AttemptKind
    receiver: str | None
    source_id: str | None
    message_id: str | None
    generation: int
    attempt: int
    started_at: str | None
    duration_ms: float
    request: RequestItem
    response: ResponseItem | None
    error: ErrorItem | None
    outcome: str
    reason: str | None
    detail: str | None
    next_attempt_at: str | None
    code_class: CodeClass | None
    rule: str | None
    cut: bool


class AttemptPage(TypedDict):
    """Newest first. `cursor`: of the next page; null on the last one. A page of large items ends early."""

    items: list[AttemptItem]
    cursor: str | None


OutcomeWord = Literal["answered", "delivered", "accepted", "not_now", "ambiguous", "not_processed", "rejected", "gone"]
ReadingWord = Literal["finished", "answer", "running", "unknown", "gone", "nothing", "invalid"]


class PastedResponse(msgspec.Struct, forbid_unknown_fields=True):
    """A response. `body`: text, or any other JSON value."""

    status: int
    headers: dict[str, str] = {}
    body: Any = ""


class SampleMessage(msgspec.Struct, forbid_unknown_fields=True):
    """A message to try. `payload`: any JSON value; or else `text`, with its `content_type`. `source` and `type`: by
    default the first that the receiver subscribes to. `id`: by default a new one."""

    payload: msgspec.Raw | UnsetType = UNSET
    text: str | None = None
    content_type: str = "application/json"
    headers: dict[str, str] = {}
    type: str | None = None
    source: str | None = None
    id: str | None = None


class WantedTrial(SampleMessage, forbid_unknown_fields=True):
    """A message to try, with responses. `response`: to the POST, `status_responses`: to the status GETs that follow; as
    objects, or as texts that begin with the status line, as curl -i prints them."""

    response: str | PastedResponse | None = None
    status_responses: list[str | PastedResponse] = []


class TrialFaultView(TypedDict):
    """A field whose value cannot be computed. `place`: such as `request.json.branch`; empty if it is not about a
    field."""

    place: str
    detail: str


class ReadingView(TypedDict):
    """The meaning of the response to a status GET. `finished`: of a step, and another one follows; `nothing`: it says
    nothing about the delivery."""

    meaning: ReadingWord
    detail: str


class TryView(TypedDict):
    """What the relay would do, secrets masked. `request`: to the receiver. `outcome`: the meaning of the response, and
    `rule`: what decided it. `next`: the status GET that follows. `callback`: the request with the result to the sender.
    Null: it is not known, or not made; `errors` and `notes` say why."""

    name: str
    source_id: str
    message_id: str
    request: RequestView | None
    outcome: OutcomeWord | None
    rule: str | None
    readings: list[ReadingView]
    next: RequestView | None
    callback: RequestView | None
    errors: list[TrialFaultView]
    notes: list[str]


class TrialView(TypedDict):
    """What was sent, and what came of it within `duration_ms`: a `response` or a `failure`, the other one is null.
    `trial`: of a payload, what the response means and leads to."""

    name: str
    request: RequestView
    response: ResponseView | None
    failure: FailureView | None
    duration_ms: float
    trial: NotRequired[TryView]
