"""HTTP exchanges with receivers and senders, as the API shows them."""

from typing import TypedDict

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
    `attempt`: the first is 1, counted per kind. `outcome`: `done`, `retry`, `doubt`, `released` or `dead`; `reason`:
    why not `done`. `next_attempt_at`: when it goes on at the earliest. `code_class`: what a response to a POST to the
    receiver means; `rule`: the rule of the receiver's settings that says so, such as `codes.accepted`; null for the
    usual table. `cut`: of long headers only the first are here; `GET /v1/attempts/{partition}/{offset}` has all that
    are kept."""

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
