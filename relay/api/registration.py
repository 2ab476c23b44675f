"""Receivers registered, changed and removed over HTTP."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final, TypedDict

from aiohttp import web

from relay.api.access import OWNED, check_meant, forbidden
from relay.api.audit_verbs import changed_nothing, record_audit
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
from relay.api.receiver_view import NewReceiverView, described
from relay.api.receivers import LaneView, ParkedView
from relay.api.registrar import ChangedMeanwhile, CredentialsNeeded, InFile, NameTaken, Registrar, Unknown, Written
from relay.control.owned import NotTheirs, OwnerScope, TooManyReceivers
from relay.control.patch import Faulty, NoKey
from relay.domain.topics import SHARED, lane_of
from relay.state.replies import answered

MOST_BODY: Final = 65_536
"""Bytes of a receiver."""
_TAG: Final = re.compile(r'\s*(?:"([^"]*)"|(\*))\s*')


class MessagesView(TypedDict):
    """What there is of a receiver's messages, and what becomes of them when it is removed."""

    in_lane: LaneView
    parked: ParkedView
    then: str


class RemovalView(TypedDict):
    """`removed`: false: it was only asked."""

    name: str
    removed: bool
    messages: MessagesView


class RegistrationResource:
    """`POST /v1/receivers`, and `PATCH` and `DELETE` of `/v1/receivers/{name}`."""

    def __init__(self, context: ApiContext, registrar: Registrar) -> None:
        self._context = context
        self._registrar = registrar

    def add_routes(self, router: web.UrlDispatcher) -> None:
        router.add_post("/v1/receivers", self.create)
        router.add_patch("/v1/receivers/{name}", self.change)
        router.add_delete("/v1/receivers/{name}", self.remove)

    async def create(self, request: web.Request) -> web.Response:
        """201 when it is in force here, and on the log for everybody."""
        query_of(request)
        body = await read_object(request, MOST_BODY, JSON)
        record_audit(request, str(body.get("name", "")), fields=sorted(body))
        check_meant(request, body.get("name"))
        with told():
            written = await self._registrar.create(body, self._behalf(request))
        shown: NewReceiverView = {**described(written), "secret": written.secret}
        return answer_of(written, shown, status=201, headers={"Location": f"/v1/receivers/{written.name}"})

    async def change(self, request: web.Request) -> web.Response:
        """A JSON merge patch (RFC 7396)."""
        query_of(request)
        patch = await read_object(request, MOST_BODY, MERGE_PATCH, JSON)
        record_audit(request, fields=sorted(patch))
        with told():
            name, behalf = request.match_info["name"], self._behalf(request)
            written = await self._registrar.change(name, patch, tag_in(request), behalf)
        return answer_of(written, described(written))

    async def remove(self, request: web.Request) -> web.Response:
        """What happens to its messages, told before it is done with `dry_run=true`, or else along with it."""
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
    """What is declared, with its tag as an ETag."""
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
    """What cannot be done becomes the problem that says why. `invalid`, `taken`: for what is no receiver."""
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
