"""Trials of a delivery: the payload and the responses to try, and what they lead to."""

from typing import Any, Literal, NotRequired, TypedDict

import msgspec
from msgspec import UNSET, UnsetType

from relay.schema.attempts import FailureView, RequestView, ResponseView

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
