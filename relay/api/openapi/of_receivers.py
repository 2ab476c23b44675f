"""The routes of what is POSTed to: receivers, and the callbacks of sources."""

from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal

from msgspec import Meta

from relay.api.openapi.operation import (
    SOURCE,
    Body,
    DocumentedResponse,
    Example,
    Limit,
    Operation,
    Parameter,
    ReceiverName,
    json_of,
)
from relay.api.problems import (
    CHANGED_MEANWHILE,
    CREDENTIALS_NEEDED,
    DECLARED_IN_FILE,
    INVALID_RECEIVER,
    NO_SECRETS_KEY,
    RECEIVER_EXISTS,
    TOO_MANY_RECEIVERS,
    UNVERIFIED,
)
from relay.api.receiver_list import ReceiverPage
from relay.api.receiver_view import NewReceiverView, ReceiverView
from relay.api.receivers import Condition, EndpointView, ReceiverHealthView, Why
from relay.api.registration import RemovalView
from relay.api.rotation import RotatedView, SecretRotation
from relay.api.stats import StatsView
from relay.api.test_request import TrialView
from relay.api.verification import TriedView
from relay.control.patch import NewReceiver

State = Condition | Literal["refused"]
_WHY: Final = json_of(Why, required=False)


def _of_endpoint(path: str, of: Parameter, word: str, name: str, example: str, view: type[Any]) -> Iterator[Operation]:
    health = (DocumentedResponse(200, "How it is now.", json_of(view)),)
    at = {of.name: example}
    noun = f"{word}s"
    yield Operation(
        method="GET",
        path=path,
        id=f"get{name}",
        noun=noun,
        summary=f"How a {word} is",
        parameters=(of,),
        answers=health,
        example=Example(200, path=at),
    )
    yield Operation(
        method="POST",
        path=f"{path}/pause",
        id=f"pause{name}",
        noun=noun,
        summary=f"Send a {word} nothing until it is resumed",
        description="What is for it waits, and its `max_age` goes on.",
        parameters=(of,),
        body=_WHY,
        answers=health,
        example=Example(200, path=at, body={"reason": "it is being moved"}),
    )
    yield Operation(
        method="POST",
        path=f"{path}/resume",
        id=f"resume{name}",
        noun=noun,
        summary=f"Send to a {word} again",
        description="Its breaker is closed, and its outage forgotten.",
        parameters=(of,),
        answers=health,
        example=Example(200, path=at),
    )


_NAME: Final = Parameter("name", "path", ReceiverName, "The receiver's name.")
ETag = Annotated[str, Meta(pattern=r'^(\*|"[^"]*")$')]
_IF_MATCH: Final = Parameter("If-Match", "header", ETag, "An `ETag`: only if the receiver is still that.")
_ETAG: Final = {"ETag": "Changes with every change of the receiver."}
_CHANGE: Final = (DECLARED_IN_FILE, CHANGED_MEANWHILE)
_REGISTRATION: Final = (
    Operation(
        method="POST",
        path="/v1/receivers",
        id="createReceiver",
        noun="receivers",
        summary="Register a receiver",
        description="The fields are those of `receivers.yaml`, and `name`. `lane` is `shared` unless it is given; "
        "without a `secret` one is made, which the answer tells, this once. With the key of an owner it is "
        "theirs, in the shared lane, and subscribes to sources that the key may read.",
        body=json_of(NewReceiver),
        answers=(
            DocumentedResponse(
                201,
                "It is in force here, and everywhere within 2 s.",
                json_of(NewReceiverView),
                {"Location": "Of the receiver.", **_ETAG},
            ),
        ),
        problems=(INVALID_RECEIVER, RECEIVER_EXISTS, TOO_MANY_RECEIVERS, NO_SECRETS_KEY),
        example=Example(
            201,
            body={
                "name": "deploy",
                "post_endpoint": "https://deploy.example/hooks",
                "secret": "${DEPLOY_SECRET}",
                "owner": "team-42",
                "labels": {"env": "production"},
            },
        ),
    ),
    Operation(
        method="GET",
        path="/v1/receivers",
        id="listReceivers",
        noun="receivers",
        summary="The receivers that there are",
        description="With the key of an owner: their own.",
        parameters=(
            Parameter("owner", "query", str, "Those of this owner."),
            Parameter("label", "query", list[str], "Those with this label: `name`, or `name=value`; all of several."),
            Parameter("state", "query", list[State], "Those in this condition; in one of several."),
            Parameter("declared_by", "query", Literal["file", "api"], "Those that came from there."),
            Parameter("prefix", "query", str, "Those whose name begins so."),
            Parameter("lane", "query", Literal["dedicated", "shared"], "Those in such a lane."),
            Parameter("traffic", "query", bool, "With what became of a day's attempts, and what waits."),
            Parameter("limit", "query", Limit, "So many at most; usually 50."),
            Parameter("cursor", "query", str, "Of the page before: what follows it."),
        ),
        answers=(DocumentedResponse(200, "In the order of their names.", json_of(ReceiverPage)),),
        example=Example(200, query={"declared_by": "api", "limit": "10"}),
    ),
    Operation(
        method="PATCH",
        path="/v1/receivers/{name}",
        id="changeReceiver",
        noun="receivers",
        summary="Change some settings of a receiver",
        description="A JSON merge patch (RFC 7396): what it does not name stays, `null` brings the default back. "
        "Credentials stay with their origin: a URL of another one needs them anew.",
        parameters=(_NAME, _IF_MATCH),
        body=Body({"application/json": dict[str, Any], "application/merge-patch+json": dict[str, Any]}),
        answers=(DocumentedResponse(200, "As it is now.", json_of(ReceiverView), _ETAG),),
        problems=(INVALID_RECEIVER, NO_SECRETS_KEY, CREDENTIALS_NEEDED, *_CHANGE),
        example=Example(200, path={"name": "made"}, body={"rate_limit": 100, "retry": {"max_attempts": 5}}),
    ),
    Operation(
        method="POST",
        path="/v1/receivers/{name}/rotate",
        id="rotateReceiverSecret",
        noun="receivers",
        summary="Give a receiver a new signing secret",
        description="The former one signs along for the `grace` time, and then no longer. In a style that has room for "
        "one signature (`github`) the new one signs alone.",
        parameters=(_NAME, _IF_MATCH),
        body=json_of(SecretRotation, required=False),
        answers=(
            DocumentedResponse(
                200, "The new secret signs here, and everywhere within 2 s.", json_of(RotatedView), _ETAG
            ),
        ),
        problems=(INVALID_RECEIVER, NO_SECRETS_KEY, *_CHANGE),
        example=Example(200, path={"name": "made"}, body={"grace": "1d", "secret": "${DEPLOY_SECRET}"}),
    ),
    Operation(
        method="DELETE",
        path="/v1/receivers/{name}",
        id="removeReceiver",
        noun="receivers",
        summary="Remove a receiver",
        description="What it has accepted is finished; what it has not ends as a dead letter.",
        parameters=(
            _NAME,
            _IF_MATCH,
            Parameter("dry_run", "query", bool, "Only tell what becomes of its messages."),
        ),
        answers=(DocumentedResponse(200, "What becomes of its messages.", json_of(RemovalView)),),
        problems=_CHANGE,
        example=Example(200, path={"name": "made"}, query={"dry_run": "true"}),
    ),
)
_TRIAL: Final = Operation(
    method="POST",
    path="/v1/receivers/{name}/test",
    id="testReceiver",
    noun="receivers",
    summary="Send a receiver one signed ping, and see what comes back",
    description="A `relay.ping`, sent as deliveries are, also to one that is paused or offline; it counts for nothing. "
    "One at a time, and one a second; else 429.",
    parameters=(_NAME,),
    answers=(DocumentedResponse(200, "What was sent, and what came of it.", json_of(TrialView)),),
    problems=(INVALID_RECEIVER, UNVERIFIED),
    example=Example(200, path={"name": "ci"}),
)
_VERIFICATION: Final = Operation(
    method="POST",
    path="/v1/receivers/{name}/verify",
    id="verifyReceiver",
    noun="receivers",
    summary="Have a receiver's URL prove that it wants what is sent there",
    description="At once, by the handshake that its `verification` says. One at a time: while one is under way the "
    "answer is 429. Of a receiver with `verification: none` none is made.",
    parameters=(_NAME,),
    answers=(DocumentedResponse(200, "What came of it.", json_of(TriedView)),),
    example=Example(200, path={"name": "ci"}),
)
_STATS: Final = Operation(
    method="GET",
    path="/v1/receivers/{name}/stats",
    id="getReceiverStats",
    noun="receivers",
    summary="What became of the attempts at a receiver within a day",
    description="Over all processes, some seconds late. Status GETs, pings and tests do not count.",
    parameters=(_NAME,),
    answers=(DocumentedResponse(200, "Of 24 hours of the clock, the present one among them.", json_of(StatsView)),),
    example=Example(200, path={"name": "ci"}),
)
OPERATIONS: Final = (
    *_REGISTRATION,
    _TRIAL,
    _VERIFICATION,
    _STATS,
    *_of_endpoint("/v1/receivers/{name}", _NAME, "receiver", "Receiver", "ci", ReceiverHealthView),
    *_of_endpoint("/v1/sources/{source_id}/callback", SOURCE, "callback", "Callback", "calls", EndpointView),
)
