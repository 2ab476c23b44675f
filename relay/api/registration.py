"""Receivers registered, changed and removed over HTTP, and their signing secrets rotated. Entries of receivers and
sources are in responses without secrets, with an `ETag`.

After a rotation, the former secret signs along with the new one for a while."""

import re
from typing import Annotated, Any, Final

from aiohttp import web

from relay.api.access import OWNED, OWNERS, behalf_of, check_meant
from relay.api.audit import changed_nothing, record_audit
from relay.api.body import MERGE_PATCH, duration_in
from relay.api.context import ApiContext
from relay.api.parameter import ETag, Parameter
from relay.api.problems import (
    CHANGED_MEANWHILE,
    CREDENTIALS_NEEDED,
    DECLARED_IN_FILE,
    INVALID_RECEIVER,
    NO_SECRETS_KEY,
    RECEIVER_EXISTS,
    TOO_MANY_RECEIVERS,
    invalid,
)
from relay.api.registrar import EntryTarget, Registrar, Written, readable
from relay.api.responses import JSON, Reply, V
from relay.api.route import Body, Example, json_of, route
from relay.config.entry_types import has_only_private_keys
from relay.config.receivers_file import Raw, check_entry
from relay.config.redacted_entry import effective
from relay.control.patch import (
    RECEIVER,
    E,
    EntryKind,
    NewReceiver,
    OwnerScope,
    as_private_key,
    former_until,
    present_secrets,
    rotated,
)
from relay.control.records import ORIGIN
from relay.domain.errors import UserError
from relay.domain.signing import is_private_key, public_key
from relay.domain.times import rfc3339
from relay.domain.topics import SHARED, lane_of
from relay.schema.receivers import (
    ChangedReceiverView,
    MessagesView,
    NewReceiverView,
    ReceiverView,
    RemovalView,
    RotatedView,
    SecretRotation,
    SecretTurnView,
)
from relay.state.lanes import in_lane
from relay.state.replies import answered


def described(written: Written) -> ReceiverView:
    """A receiver's record for people."""
    declared_by, entry = entry_of(written, RECEIVER)
    return {
        "name": written.name,
        "declared_by": declared_by,
        "owner": None if entry is None else entry.owner,
        "labels": {} if entry is None else entry.labels,
        "etag": written.tag,
        "settings": None if entry is None else effective(entry),
        "given": None if entry is None else sorted(entry.model_fields_set),
        "from_preset": None if entry is None else entry.from_preset,
    }


def entry_of(written: Written, kind: EntryKind[E]) -> tuple[str | None, E | None]:
    """The origin of an entry, and its fields; None if it cannot be read."""
    declared = readable(written.value)
    if declared is None:
        return None, None
    try:
        return declared.by, check_entry(kind.model, declared.entry, ORIGIN, (kind.place, written.name))
    except UserError:
        return declared.by, None


PATCH: Final = Body({JSON: dict[str, Any], MERGE_PATCH: dict[str, Any]})
MOST_BODY: Final = 65_536
"""Bytes of a receiver."""
_TAG: Final = re.compile(r'\s*(?:"([^"]*)"|(\*))\s*')
IF_MATCH: Final = Parameter("If-Match", ETag, "The `ETag` that the receiver must still have; otherwise 412.", "header")
ETAG: Final = {"ETag": "Changes with every change of the receiver."}
CHANGE: Final = (DECLARED_IN_FILE, CHANGED_MEANWHILE)


def answer_of(written: Written, shown: V, **headers: str) -> Reply[V]:
    """The entry, with its tag as an ETag."""
    return Reply(shown, {"ETag": f'"{written.tag}"', **headers})


def tag_in(request: web.Request) -> str | None:
    """The tag of `If-Match`; None if it matches any entry. Raises Problem."""
    given = request.headers.getall("If-Match", [])
    if not given:
        return None
    found = _TAG.fullmatch(", ".join(given))
    if found is None:
        raise invalid('If-Match takes one ETag, as "0123456789abcdef", or *', header="If-Match")
    return found[1]


MOST_ROTATION_BYTES: Final = 4_096
LONGEST_GRACE_S: Final = 365 * 86_400.0
_GRACE: Final = "at most 365 days are allowed; for secrets that never expire, set a list"


class RegistrationResource:
    """`POST /v1/receivers`; `PATCH` and `DELETE` of `/v1/receivers/{name}`, and `POST` to `/rotate` of it."""

    noun = "receivers"

    def __init__(self, context: ApiContext) -> None:
        self._context = context
        self._registrar = context.registrar

    @route(
        "POST",
        "/v1/receivers",
        scope=OWNERS,
        audit="receiver.created",
        body=json_of(NewReceiver),
        most_bytes=MOST_BODY,
        answer="In effect in this process, and in all others within 2 s.",
        status=201,
        headers={"Location": "The path of the receiver.", **ETAG},
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
    async def create_receiver(self, request: web.Request, body: Raw) -> Reply[NewReceiverView]:
        """Register a receiver.

        The fields are those of `receivers.yaml`, and `name`. The default of `lane` is `shared`. Without a `secret` one
        is generated, which only this response has. With the key of an owner, the receiver belongs to the owner, is in
        the shared lane, and may subscribe to sources that the key may read.
        """
        record_audit(request, str(body.get("name", "")), fields=sorted(body))
        check_meant(request, body.get("name"))
        written = await self._registrar.create(body, self._behalf(request))
        shown: NewReceiverView = {**self._changed(written), "secret": written.secret}
        return answer_of(written, shown, Location=f"/v1/receivers/{written.name}")

    @route(
        "PATCH",
        "/v1/receivers/{name}",
        scope=OWNED,
        audit="receiver.changed",
        parameters=(IF_MATCH,),
        body=PATCH,
        most_bytes=MOST_BODY,
        answer="The entry in effect.",
        headers=ETAG,
        problems=(INVALID_RECEIVER, NO_SECRETS_KEY, CREDENTIALS_NEEDED, *CHANGE),
        example=Example(200, path={"name": "made"}, body={"rate_limit": 100, "retry": {"max_attempts": 5}}),
    )
    async def change_receiver(self, request: web.Request, name: str, body: Raw) -> Reply[ChangedReceiverView]:
        """Change some settings of a receiver.

        The body is a JSON merge patch (RFC 7396): other fields stay unchanged, and `null` restores the default.
        Credentials stay with their origin: a URL of another origin needs them again.
        """
        record_audit(request, fields=sorted(body))
        written = await self._registrar.change(self._target(request, name), body)
        return answer_of(written, self._changed(written))

    @route(
        "DELETE",
        "/v1/receivers/{name}",
        scope=OWNED,
        audit="receiver.removed",
        parameters=(IF_MATCH,),
        answer="What happens to its messages.",
        problems=CHANGE,
        example=Example(200, path={"name": "made"}, query={"dry_run": "true"}),
    )
    async def remove_receiver(
        self,
        request: web.Request,
        name: str,
        dry_run: Annotated[bool, "Only return what would happen to its messages."],
    ) -> RemovalView:
        """Remove a receiver.

        Messages that it has accepted are finished; all others become dead letters.
        """
        target = self._target(request, name)
        self._registrar.own(target)
        found = await self._messages(name)
        if dry_run:
            changed_nothing(request)
        else:
            await self._registrar.remove(target)
        return {"name": name, "removed": not dry_run, "messages": found}

    @route(
        "POST",
        "/v1/receivers/{name}/rotate",
        scope=OWNED,
        audit="receiver.rotated",
        parameters=(IF_MATCH,),
        most_bytes=MOST_ROTATION_BYTES,
        answer="The new secret signs in this process, and in all others within 2 s.",
        headers=ETAG,
        problems=(INVALID_RECEIVER, NO_SECRETS_KEY, *CHANGE),
        example=Example(200, path={"name": "made"}, body={"grace": "1d", "secret": "${DEPLOY_SECRET}"}),
    )
    async def rotate_receiver_secret(self, request: web.Request, name: str, body: SecretRotation) -> Reply[RotatedView]:
        """Give a receiver a new signing secret.

        The former one also signs during the `grace` time. In a style with room for one signature (`github`), the new
        one signs alone.
        """
        turn = SecretTurn(body, self._registrar)
        written = await self._registrar.alter(self._target(request, name), turn.rotated)
        record_audit(request, grace_s=turn.grace_s)
        shown: RotatedView = {**described(written), **turn.view()}
        return answer_of(written, shown)

    def _changed(self, written: Written) -> ChangedReceiverView:
        _, entry = entry_of(written, RECEIVER)
        why = None if entry is None else self._context.blocked_endpoint(entry)
        return {**described(written), "warnings": [] if why is None else [why]}

    def _behalf(self, request: web.Request) -> OwnerScope | None:
        return behalf_of(request, self._context.owner_receivers)

    def _target(self, request: web.Request, name: str) -> EntryTarget:
        return EntryTarget(name, tag_in(request), self._behalf(request))

    async def _messages(self, name: str) -> MessagesView:
        """The unfinished and parked messages of a receiver. Raises Unavailable."""
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


class SecretTurn:
    """One rotation of the secret of an endpoint. `secret` and `former_until` are set by `rotated`. Raises a Problem for
    an invalid grace time."""

    def __init__(self, asked: SecretRotation, registrar: Registrar) -> None:
        self._asked = asked
        self.grace_s = duration_in(asked.grace, "/grace", LONGEST_GRACE_S, _GRACE)
        self._registrar = registrar
        self.secret = ""
        self.former_until: str | None = None

    def rotated(self, entry: Raw, now: float) -> Raw:
        """The entry of the endpoint, decrypted, with a new secret."""
        present = present_secrets(entry)
        self.secret = self._made(present) if self._asked.secret is None else self._asked.secret
        changed = rotated(entry, self.secret, grace_s=self.grace_s, now=now)
        until = former_until(entry, changed)
        self.former_until = rfc3339(until)
        return changed

    def view(self) -> SecretTurnView:
        """The result, after `rotated`."""
        is_key = is_private_key(self.secret)
        return {
            "secret": None if is_key or self._asked.secret is not None else self.secret,
            "public_key": public_key(self.secret) if is_key else None,
            "former_until": self.former_until,
        }

    def _made(self, present: list[str]) -> str:
        made = self._registrar.new_secret()
        return as_private_key(made) if has_only_private_keys(tuple(present)) else made
