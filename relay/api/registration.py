"""Receivers registered, changed and removed over HTTP."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from aiohttp import web

from relay.api.access import OWNED, OWNERS, check_meant, forbidden
from relay.api.audit_lines import changed_nothing, record_audit
from relay.api.backlog import in_lane
from relay.api.context import ApiContext
from relay.api.json_body import JSON, MERGE_PATCH, json_response, read_object
from relay.api.owner import behalf_of
from relay.api.problems import (
    CHANGED_MEANWHILE,
    CREDENTIALS_NEEDED,
    DECLARED_IN_FILE,
    INVALID_RECEIVER,
    NO_SECRETS_KEY,
    NOT_FOUND,
    RECEIVER_EXISTS,
    TOO_MANY_RECEIVERS,
    Problem,
    ProblemKind,
    invalid,
)
from relay.api.reading import flag_in, query_of
from relay.api.receiver_view import described
from relay.api.registrar import ChangedMeanwhile, CredentialsNeeded, InFile, NameTaken, Registrar, Unknown, Written
from relay.api.route import (
    NAME,
    Body,
    DocumentedResponse,
    ETag,
    Example,
    Parameter,
    json_of,
    route,
)
from relay.control.owned import NotTheirs, OwnerScope, TooManyReceivers
from relay.control.patch import Faulty, NewReceiver, NoKey
from relay.domain.topics import SHARED, lane_of
from relay.schema.receivers import MessagesView, NewReceiverView, ReceiverView, RemovalView
from relay.state.replies import answered

MOST_BODY: Final = 65_536
"""Bytes of a receiver."""
_TAG: Final = re.compile(r'\s*(?:"([^"]*)"|(\*))\s*')


IF_MATCH: Final = Parameter("If-Match", "header", ETag, "An `ETag`: only if the receiver is still that.")
ETAG: Final = {"ETag": "Changes with every change of the receiver."}
CHANGE: Final = (DECLARED_IN_FILE, CHANGED_MEANWHILE)


class RegistrationResource:
    """`POST /v1/receivers`, and `PATCH` and `DELETE` of `/v1/receivers/{name}`."""

    def __init__(self, context: ApiContext, registrar: Registrar) -> None:
        self._context = context
        self._registrar = registrar

    @route(
        "POST",
        "/v1/receivers",
        scope=OWNERS,
        audit="receiver.created",
        id="createReceiver",
        noun="receivers",
        body=json_of(NewReceiver),
        answers=(
            DocumentedResponse(
                201,
                "It is in force here, and everywhere within 2 s.",
                json_of(NewReceiverView),
                {"Location": "Of the receiver.", **ETAG},
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
    )
    async def create(self, request: web.Request) -> web.Response:
        """Register a receiver.

        The fields are those of `receivers.yaml`, and `name`. `lane` is `shared` unless it is given; without a `secret`
        one is made, which only this response has. With the key of an owner, the receiver belongs to the owner, is in
        the shared lane, and subscribes to sources that the key may read.
        """
        query_of(request)
        body = await read_object(request, MOST_BODY, JSON)
        record_audit(request, str(body.get("name", "")), fields=sorted(body))
        check_meant(request, body.get("name"))
        with told():
            written = await self._registrar.create(body, self._behalf(request))
        shown: NewReceiverView = {**described(written), "secret": written.secret}
        return answer_of(written, shown, status=201, headers={"Location": f"/v1/receivers/{written.name}"})

    @route(
        "PATCH",
        "/v1/receivers/{name}",
        scope=OWNED,
        audit="receiver.changed",
        id="changeReceiver",
        noun="receivers",
        parameters=(NAME, IF_MATCH),
        body=Body({"application/json": dict[str, Any], "application/merge-patch+json": dict[str, Any]}),
        answers=(DocumentedResponse(200, "As it is now.", json_of(ReceiverView), ETAG),),
        problems=(INVALID_RECEIVER, NO_SECRETS_KEY, CREDENTIALS_NEEDED, *CHANGE),
        example=Example(200, path={"name": "made"}, body={"rate_limit": 100, "retry": {"max_attempts": 5}}),
    )
    async def change(self, request: web.Request) -> web.Response:
        """Change some settings of a receiver.

        A JSON merge patch (RFC 7396): what it does not name stays, `null` brings the default back. Credentials stay
        with their origin: a URL of another one needs them anew.
        """
        query_of(request)
        patch = await read_object(request, MOST_BODY, MERGE_PATCH, JSON)
        record_audit(request, fields=sorted(patch))
        with told():
            name, behalf = request.match_info["name"], self._behalf(request)
            written = await self._registrar.change(name, patch, tag_in(request), behalf)
        return answer_of(written, described(written))

    @route(
        "DELETE",
        "/v1/receivers/{name}",
        scope=OWNED,
        audit="receiver.removed",
        id="removeReceiver",
        noun="receivers",
        parameters=(
            NAME,
            IF_MATCH,
            Parameter("dry_run", "query", bool, "Only tell what becomes of its messages."),
        ),
        answers=(DocumentedResponse(200, "What becomes of its messages.", json_of(RemovalView)),),
        problems=CHANGE,
        example=Example(200, path={"name": "made"}, query={"dry_run": "true"}),
    )
    async def remove(self, request: web.Request) -> web.Response:
        """Remove a receiver.

        What it has accepted is finished; what it has not ends as a dead letter.
        """
        name, dry_run = request.match_info["name"], flag_in(query_of(request, "dry_run"), "dry_run")
        behalf = self._behalf(request)
        with told():
            self._registrar.own(name, tag_in(request), behalf)
            found = await self._messages(name)
            if dry_run:
                changed_nothing(request)
            else:
                await self._registrar.remove(name, tag_in(request), behalf)
        removal: RemovalView = {"name": name, "removed": not dry_run, "messages": found}
        return json_response(200, removal)

    def _behalf(self, request: web.Request) -> OwnerScope | None:
        return behalf_of(request, self._context.owner_receivers)

    async def _messages(self, name: str) -> MessagesView:
        """What there is of a receiver's. Raises Unavailable."""
        context = self._context
        receiver = context.directory.receiver(name)
        lane = SHARED if receiver is None else lane_of(receiver)
        [parked] = await answered(context.state.parked([f"r:{name}"]))
        unfinished = await in_lane(context.log, context.topics, name, lane)
        return {
            "in_lane": {"lane": "shared" if lane == SHARED else "dedicated", "unfinished": unfinished},
            "parked": {"retries": parked.retries, "polls": parked.polls},
            "then": _THEN,
        }


_THEN: Final = (
    "What was not yet accepted by the receiver ends as a dead letter, unknown_receiver; for what it has accepted the "
    "answer is still waited for. Messages for it are refused from then on."
)


def answer_of(
    written: Written, shown: Mapping[str, object], *, status: int = 200, headers: dict[str, str] | None = None
) -> web.Response:
    """The entry, with its tag as an ETag."""
    return json_response(status, shown, ETag=f'"{written.tag}"', **(headers or {}))


def tag_in(request: web.Request) -> str | None:
    """The tag that `If-Match` has; None: any will do. Raises Problem."""
    given = request.headers.getall("If-Match", [])
    if not given:
        return None
    found = _TAG.fullmatch(", ".join(given))
    if found is None:
        raise invalid('If-Match takes one ETag, as "0123456789abcdef", or *', header="If-Match")
    return found[1]


@contextmanager
def told(*, invalid: ProblemKind = INVALID_RECEIVER, taken: ProblemKind = RECEIVER_EXISTS) -> Iterator[None]:
    """Translates errors of the registrar into problems. `invalid`, `taken`: those for sources."""
    try:
        yield
    except Faulty as error:
        errors = tuple({"detail": fault.detail, "pointer": fault.pointer} for fault in error.faults)
        kind = CREDENTIALS_NEEDED if isinstance(error, CredentialsNeeded) else invalid
        raise Problem(kind, str(error), errors=errors) from None
    except NotTheirs:
        raise forbidden(OWNED) from None
    except NameTaken as error:
        raise Problem(taken, str(error)) from None
    except (NoKey, Unknown, InFile, ChangedMeanwhile, TooManyReceivers) as error:
        raise Problem(_KINDS[type(error)], str(error)) from None


_KINDS: Final[dict[type[Exception], ProblemKind]] = {
    NoKey: NO_SECRETS_KEY,
    Unknown: NOT_FOUND,
    TooManyReceivers: TOO_MANY_RECEIVERS,
    InFile: DECLARED_IN_FILE,
    ChangedMeanwhile: CHANGED_MEANWHILE,
}
