"""`POST /v1/receivers/{name}/rotate`: a new signing secret, beside which the former one signs along for a while."""

from typing import Final

from aiohttp import web

from relay.api.access import OWNED
from relay.api.audit_lines import record_audit
from relay.api.context import ApiContext
from relay.api.owner import behalf_of
from relay.api.problems import (
    INVALID_RECEIVER,
    NO_SECRETS_KEY,
    invalid,
)
from relay.api.receiver_view import described
from relay.api.registrar import Registrar
from relay.api.registration import CHANGE, ETAG, IF_MATCH, answer_of, tag_in, told
from relay.api.route import (
    NAME,
    DocumentedResponse,
    Example,
    json_of,
    route,
)
from relay.api.view import rfc3339
from relay.config.durations import parse_duration
from relay.config.entry_types import has_only_private_keys
from relay.config.receivers_file import Raw
from relay.control.rotation import as_private_key, former_until, present_secrets, rotated
from relay.domain.ed25519 import is_private_key, public_key
from relay.schema.receivers import RotatedView, SecretRotation

MOST_BYTES: Final = 4_096
LONGEST_GRACE_S: Final = 365 * 86_400.0


class RotationResource:
    """The route; see the module's first line."""

    def __init__(self, context: ApiContext, registrar: Registrar) -> None:
        self._context = context
        self._registrar = registrar

    @route(
        "POST",
        "/v1/receivers/{name}/rotate",
        scope=OWNED,
        audit="receiver.rotated",
        id="rotateReceiverSecret",
        noun="receivers",
        parameters=(NAME, IF_MATCH),
        body=json_of(SecretRotation, required=False),
        most_bytes=MOST_BYTES,
        answers=(
            DocumentedResponse(
                200, "The new secret signs here, and everywhere within 2 s.", json_of(RotatedView), ETAG
            ),
        ),
        problems=(INVALID_RECEIVER, NO_SECRETS_KEY, *CHANGE),
        example=Example(200, path={"name": "made"}, body={"grace": "1d", "secret": "${DEPLOY_SECRET}"}),
    )
    async def rotate(self, request: web.Request, asked: SecretRotation) -> web.Response:
        """Give a receiver a new signing secret.

        The former one signs along for the `grace` time, and then no longer. In a style that has room for one signature
        (`github`) the new one signs alone.
        """
        name = request.match_info["name"]
        turn = _Turn(asked, _grace_s(asked.grace), self._registrar)
        behalf = behalf_of(request, self._context.owner_receivers)
        with told():
            written = await self._registrar.alter(name, turn.rotated, tag_in(request), behalf)
        record_audit(request, grace_s=turn.grace_s)
        is_key = is_private_key(turn.secret)
        shown: RotatedView = {
            **described(written),
            "secret": None if is_key or asked.secret is not None else turn.secret,
            "public_key": public_key(turn.secret) if is_key else None,
            "former_until": turn.former_until,
        }
        return answer_of(written, shown)


class _Turn:
    """One rotation: which secret it made, and until when the former one signs, is known when it has been made."""

    def __init__(self, asked: SecretRotation, grace_s: float, registrar: Registrar) -> None:
        self._asked = asked
        self.grace_s = grace_s
        self._registrar = registrar
        self.secret = ""
        self.former_until: str | None = None

    def rotated(self, entry: Raw, now: float) -> Raw:
        present = present_secrets(entry)
        self.secret = self._made(present) if self._asked.secret is None else self._asked.secret
        changed = rotated(entry, self.secret, grace_s=self.grace_s, now=now)
        until = former_until(entry, changed)
        self.former_until = None if until is None else rfc3339(until)
        return changed

    def _made(self, present: list[str]) -> str:
        made = self._registrar.new_secret()
        return as_private_key(made) if has_only_private_keys(tuple(present)) else made


def _grace_s(value: float | str) -> float:
    try:
        seconds = parse_duration(value)
    except ValueError as error:
        raise invalid(str(error), pointer="/grace") from None
    if seconds > LONGEST_GRACE_S:
        raise invalid("longer than 365 days is not allowed; what is to sign for ever is a list", pointer="/grace")
    return seconds
