"""Dead letters as the API shows them."""

from typing import TypedDict

from relay.domain.reasons import ReasonClass

LetterView = TypedDict(
    "LetterView",
    {
        "receiver": str,
        "source_id": str | None,
        "message_id": str | None,
        "reason": str,
        "class": ReasonClass,
        "detail": str,
        "stage": str,
        "attempts": int,
        "last_status": int | None,
        "failed_at": str | None,
        "partition": int,
        "offset": int,
        "replay": str,
    },
)
"""A dead letter. `receiver`: `-` where it never had one. `stage`: the topic of the step that gave it up. `partition`,
`offset`: where it is on `failed_messages`. `replay`: where to POST, to have it sent again."""


class PayloadView(TypedDict):
    """A payload. `body` if it is UTF-8, else `body_base64`; neither if it is withheld from the caller."""

    body: str | None
    body_base64: str | None


class WholeLetter(LetterView):
    """A dead letter with the headers of its record (name and value), and its payload."""

    headers: list[list[str]]
    payload: PayloadView


class LetterGroupView(TypedDict):
    """Dead letters of a receiver and reason. `hours`: how many in each of the last 24 hours, the present one last.
    `newest`: the newest of them; null if the log does not have it any more."""

    receiver: str
    reason: str
    count: int
    first_at: str | None
    newest_at: str | None
    hours: list[int]
    newest: LetterView | None


class LetterGroupList(TypedDict):
    """The largest first. `left_out`: how many smaller groups there are. `more`: there are older dead letters that were
    not counted."""

    items: list[LetterGroupView]
    left_out: int
    more: bool


class LetterPage(TypedDict):
    """Newest first. `cursor`: of the next page; null on the last one. A page whose records are large ends early, and
    has one."""

    items: list[LetterView]
    cursor: str | None
