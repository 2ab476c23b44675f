"""Dead letters as the API shows them, and their replays and discards: the bodies of requests, and the jobs."""

from typing import Annotated, Final, Literal, NotRequired, TypedDict

import msgspec

from relay.domain.reasons import ReasonClass
from relay.domain.replay_job import Action, JobState

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


MOST_VALUES: Final = 1_000
"""Of one field."""
RATES: Final = (0.01, 100_000.0)
_RATE: Final = msgspec.Meta(extra_json_schema={"minimum": RATES[0], "maximum": RATES[1]})
_SOME: Final = msgspec.Meta(extra_json_schema={"minItems": 1, "maxItems": MOST_VALUES})
_Status = Annotated[int, msgspec.Meta(extra_json_schema={"minimum": 100, "maximum": 599})]
Texts = str | Annotated[list[str], _SOME] | None


class Discards(msgspec.Struct, forbid_unknown_fields=True):
    """A selection of dead letters. Any value of a list matches; omitted fields do not filter. `since`, `until`: RFC
    3339, Unix seconds, or how long ago (`90m`). `rate`: maximum number per second. `dry_run`: only return what would be
    done."""

    receiver: Texts = None
    source: Texts = None
    reason: Texts = None
    status: _Status | Annotated[list[_Status], _SOME] | None = None
    stage: Texts = None
    ids: Texts = None
    since: str | float | None = None
    until: str | float | None = None
    rate: Annotated[float, _RATE] | None = None
    dry_run: bool = False


class Replays(Discards, forbid_unknown_fields=True):
    """A selection of deliveries to replay. `only_failed` false: also delivered ones."""

    only_failed: bool = True


class GapReplays(msgspec.Struct, forbid_unknown_fields=True):
    """The range of the receiver's numbers; default: all. `rate`: maximum number per second. `dry_run`: only return what
    would be done."""

    first: Annotated[int, msgspec.Meta(ge=1)] | None = None
    last: Annotated[int, msgspec.Meta(ge=1)] | None = None
    rate: Annotated[float, _RATE] | None = None
    dry_run: bool = False


class Cancels(msgspec.Struct, forbid_unknown_fields=True):
    """A selection of deliveries that were not sent yet. `since`, `until`: time at which the message was accepted."""

    receiver: Texts = None
    source: Texts = None
    ids: Texts = None
    since: str | float | None = None
    until: str | float | None = None
    rate: Annotated[float, _RATE] | None = None
    dry_run: bool = False

    def as_discards(self) -> Discards:
        """The same selection."""
        return Discards(**msgspec.structs.asdict(self))


class One(msgspec.Struct, forbid_unknown_fields=True):
    """Options of the replay of one delivery. `only_failed` false: also if it was delivered."""

    only_failed: bool = True


class Nothing(msgspec.Struct, forbid_unknown_fields=True):
    """An empty body, or an empty object."""


class ReplayRequestView(TypedDict):
    """The request of a job; omitted fields are null. `since`, `until`: RFC 3339. `first`, `last`: numbers of a
    receiver's gaps."""

    receiver: list[str] | None
    source: list[str] | None
    reason: list[str] | None
    status: list[int] | None
    stage: list[str] | None
    ids: list[str] | None
    since: str | None
    until: str | None
    first: int | None
    last: int | None
    only_failed: bool
    rate: float | None


class JobView(TypedDict):
    """A job that replays, discards or cancels many. `counted`: deliveries selected, once known. `skipped_because`: how
    many were not sent, by why. `eta`, `eta_s`: when it is expected to end, and in how many seconds, if known."""

    id: str
    action: Action
    state: JobState | Literal["stopping"]
    detail: str | None
    request: ReplayRequestView
    made_at: str | None
    begun_at: str | None
    ended_at: str | None
    counted: int | None
    sent: int
    skipped: int
    skipped_because: dict[str, int]
    eta: str | None
    eta_s: float | None


class JobPage(TypedDict):
    """Newest first. `cursor`: of the next page; null on the last one."""

    items: list[JobView]
    cursor: str | None


class GoneView(TypedDict):
    """Records that are no longer on the log: their maximum number, and the time before which they were written."""

    records: int
    before: str | None


class PreviewView(TypedDict):
    """What a job would do. `complete` false: there is more than could be counted in the time that a request may take.
    `not_found`: ids without a match. `unknown_receivers`: names in `receiver` that no receiver has, and no counted
    delivery. `unremembered`: how many of those to be sent failed so long ago that it is not known whether they were
    replayed before."""

    dry_run: Literal[True]
    action: Action
    request: ReplayRequestView
    counted: int
    to_send: int
    skipped: int
    skipped_because: dict[str, int]
    complete: bool
    gone: GoneView | None
    not_found: list[str]
    unknown_receivers: NotRequired[list[str]]
    unremembered: int


class OneView(TypedDict):
    """What was done about one delivery. `generation`: its life from now on. `topic`: where its record is now; null: its
    lane will see to it. The other names are null where its record cannot be read."""

    action: Action
    receiver: str | None
    source_id: str | None
    message_id: str | None
    generation: int
    topic: str | None
