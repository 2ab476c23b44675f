"""Receivers and sources as the API shows them, and the bodies of requests about one."""

from typing import Any, Final, Literal, NotRequired, TypedDict

import msgspec

from relay.domain.hold import HoldReason
from relay.domain.receiver import Verification
from relay.schema.statistics import HealthView, TrafficView

Condition = Literal["up", "backing_off", "failing", "offline", "paused", "disabled", "unverified"]


class ReceiverView(TypedDict):
    """A receiver. `declared_by`: `file` or `api`. `etag`: changes with every change of it. `settings`: all of them,
    also those left at their defaults, secrets masked; `given`: those that were declared; `from_preset`: those that the
    declared preset adds. Null: a newer version wrote what this one cannot read."""

    name: str
    declared_by: str | None
    owner: str | None
    labels: dict[str, str]
    etag: str
    settings: dict[str, Any] | None
    given: list[str] | None
    from_preset: list[str] | None


class ChangedReceiverView(ReceiverView):
    """A receiver that was just changed. `warnings`: what should be corrected, such as a URL to which this relay sends
    nothing."""

    warnings: NotRequired[list[str]]


class NewReceiverView(ChangedReceiverView):
    """A receiver that was just registered. `secret`: the generated one, only in this response."""

    secret: str | None


class VerificationView(TypedDict):
    """The verification of a receiver's URL. `pending`: it is sent nothing yet, and a handshake is made soon; `failed`:
    it is sent nothing, as the newest handshake failed: `detail` says why, and `next_try_at` when the next one is (null:
    on request). `allowed_rate`: requests a minute that the URL has agreed to, null if any number. RFC 3339."""

    kind: Verification
    state: Literal["not_required", "pending", "failed", "verified"]
    verified_at: str | None
    tried_at: str | None
    next_try_at: str | None
    detail: str | None
    allowed_rate: int | None


class HoldView(TypedDict):
    """Why nothing is sent until the endpoint is resumed."""

    reason: HoldReason
    since: str | None
    detail: str | None


class ParkedView(TypedDict):
    """Parked deliveries: those that wait for a retry, and those that wait for a status GET."""

    retries: int
    polls: int


class LaneView(TypedDict):
    """The unfinished records of a receiver's lane."""

    lane: Literal["shared", "dedicated"]
    unfinished: int


class EndpointView(TypedDict):
    """The health of an endpoint. `name`: of the receiver, or the source whose callback it is. `condition`: what it is
    sent now; `health`: by its newest attempts. `refused`: why its newest settings are not in effect.
    `paused_for_s`: null if until it is resumed. `in_lane`: null for a callback, and if it is not known at once.
    Times are RFC 3339."""

    name: str
    condition: Condition | Literal["refused"]
    health: HealthView
    refused: str | None
    failing_since: str | None
    disabled_since: str | None
    paused: bool
    paused_for_s: float | None
    hold: HoldView | None
    breaker: Literal["closed", "open", "half_open"]
    failures: int
    parked: ParkedView
    in_lane: LaneView | None


class ReceiverHealthView(ReceiverView, EndpointView):
    """A receiver with its health. `verification`: null if its settings cannot be used. `hot_since`: since when it has,
    or gets, a lane of its own because it took more than its share of the shared lane; otherwise null."""

    verification: VerificationView | None
    hot_since: str | None


class Why(msgspec.Struct, forbid_unknown_fields=True):
    """The reason of a pause, for people."""

    reason: str = ""


class ReceiverItem(TypedDict):
    """A receiver in a list. Null: a newer version wrote what this one cannot read. `traffic`: where asked for."""

    name: str
    condition: Condition | Literal["refused"]
    health: HealthView
    declared_by: str | None
    owner: str | None
    labels: dict[str, str]
    post_endpoint: str | None
    lane: Literal["dedicated", "shared"] | None
    enabled: bool | None
    breaker: Literal["closed", "open", "half_open"] | None
    traffic: NotRequired[TrafficView]


class ReceiverPage(TypedDict):
    """`cursor`: of the next page; null on the last one. A page may be short, or empty, and still have one."""

    items: list[ReceiverItem]
    cursor: str | None


class MessagesView(TypedDict):
    """A receiver's messages, and what happens to them when it is removed."""

    in_lane: LaneView
    parked: ParkedView
    then: str


class RemovalView(TypedDict):
    """The removal of a receiver. `removed`: false for a dry run."""

    name: str
    removed: bool
    messages: MessagesView


USUAL_GRACE_S: Final = 86_400.0


class SecretRotation(msgspec.Struct, forbid_unknown_fields=True):
    """A rotation. `grace`: how long the former secret also signs: seconds, or text such as `1d`. `secret`: the new one;
    null to generate one, of the same kind as the present one."""

    grace: float | str = USUAL_GRACE_S
    secret: str | None = None


class SecretTurnView(TypedDict):
    """The secrets in the response to a rotation."""

    secret: str | None
    public_key: str | None
    former_until: str | None


class RotatedView(ReceiverView, SecretTurnView):
    """`secret`: the generated one, only in this response; null if it was given, or is a private key, which only the
    relay needs. `public_key`: verifies its signatures then. `former_until`: when the former one signs for the last
    time; null: it does not sign any more. RFC 3339."""


class TriedView(TypedDict):
    """The result of a handshake. `proved`: whether it succeeded. A failure does not revoke an earlier proof; `detail`
    has the reason."""

    name: str
    proved: bool
    detail: str | None
    verification: VerificationView


class GapView(TypedDict):
    """Numbers that the receiver did not get, for one `reason`. `failed_at`: when the last of them was given up."""

    first: int
    last: int
    reason: str
    failed_at: str | None


class GapPage(TypedDict):
    """In the order of their numbers. `numbered` false: the receiver's messages have no numbers. `cursor`: of what
    follows; null: nothing does."""

    numbered: bool
    items: list[GapView]
    cursor: str | None


class SourceView(TypedDict):
    """A source with an entry of its own. `declared_by`: `file` or `api`. `etag`: changes with every change of it.
    `refused`: why its newest settings are not in force here. `settings`: all of them, also those at their defaults,
    with secrets masked. Null: a newer version wrote what this one cannot read."""

    source_id: str
    declared_by: str | None
    etag: str
    refused: str | None
    settings: dict[str, Any] | None


class NewSourceView(SourceView):
    """A source that was just declared. `secret`: the generated one of its callback, only in this response."""

    secret: str | None


class RotatedSourceView(SourceView, SecretTurnView):
    """A source with a new secret of its callback. `secret`: the generated one, only in this response; null if it was
    given, or is a private key, which only the relay needs. `public_key`: verifies its signatures then. `former_until`:
    when the former one signs for the last time; null: it does not sign any more. RFC 3339."""


class SourceItem(TypedDict):
    """A source in a list. `callback`: the URL where its results are POSTed, or `kafka`. `inbound`: the kind of its
    webhooks."""

    source_id: str
    declared_by: str | None
    refused: str | None
    callback: str | None
    answers: Literal["all", "non_empty", "none"] | None
    inbound: str | None


class SourcePage(TypedDict):
    """`cursor`: of the next page; null on the last one. A page may be short, or empty, and still have one."""

    items: list[SourceItem]
    cursor: str | None


class ResultsView(TypedDict):
    """A source's results, and what happens to them when it is removed."""

    parked: ParkedView
    then: str


class SourceRemovalView(TypedDict):
    """The removal of a source. `removed`: false for a dry run."""

    source_id: str
    removed: bool
    results: ResultsView
