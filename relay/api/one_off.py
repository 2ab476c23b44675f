"""The endpoint that a message brings along, in a request to send it."""

from collections.abc import Mapping, Sequence
from typing import Final

from relay.api.context import ApiContext
from relay.api.problems import ENDPOINT_NOT_ALLOWED, INVALID, NO_SECRETS_KEY, Problem, invalid
from relay.api.route import Parameter
from relay.config.encryption import secret_place
from relay.config.entry_types import check_url
from relay.domain.identity import MessageId
from relay.domain.one_off import OneOff
from relay.domain.signing import check_secret, is_private_key
from relay.domain.urls import same_origin

ENDPOINT: Final = "endpoint"
SECRET: Final = "signing_secret"  # noqa: S105 - its name
FIELDS: Final = (ENDPOINT, SECRET)
HEADERS: Final = {"relay-endpoint": ENDPOINT, "relay-signing-secret": SECRET}
PARAMETERS: Final = (
    Parameter(
        ENDPOINT,
        "query",
        str,
        "URL to which it is delivered, in place of a receiver; its origin is in `RELAY_ADHOC_ENDPOINTS`. Also as "
        "`relay-endpoint`.",
    ),
    Parameter(
        SECRET,
        "query",
        str,
        "Signs the request to that URL; without one it is not signed. Better as the header `relay-signing-secret`, as "
        "proxies log URLs.",
    ),
)


def one_off_in(context: ApiContext, given: Mapping[str, object], identity: MessageId) -> OneOff | None:
    """The message's own endpoint; None if it has none. `given`: the fields of the request. Raises a Problem."""
    url, secret = given.get(ENDPOINT), given.get(SECRET)
    if url is None:
        if secret is not None:
            raise invalid(
                "signing_secret is given without endpoint: receivers have their own secrets", parameter=SECRET
            )
        return None
    checked = _checked(str(url))
    if not any(same_origin(checked, origin) for origin in context.adhoc_endpoints):
        raise Problem(ENDPOINT_NOT_ALLOWED, _not_allowed(context.adhoc_endpoints))
    return OneOff(checked, None if secret is None else _sealed(context, str(secret), identity))


def _checked(url: str) -> str:
    try:
        return check_url(url)
    except ValueError as error:
        raise invalid(f"endpoint: {error}", parameter=ENDPOINT) from None


def _not_allowed(origins: Sequence[str]) -> str:
    if not origins:
        return "Messages may not bring endpoints along: RELAY_ADHOC_ENDPOINTS names no origins. Register a receiver."
    return "The origin of endpoint is not among those of RELAY_ADHOC_ENDPOINTS. Register a receiver, or add the origin."


def _sealed(context: ApiContext, secret: str, identity: MessageId) -> str:
    """The secret as it is written to the log."""
    try:
        check_secret(secret)
    except ValueError as error:
        raise invalid(f"signing_secret: {error}", parameter=SECRET) from None
    if is_private_key(secret):
        raise invalid("signing_secret: a private key is only for registered receivers", parameter=SECRET)
    if not context.ring.can_encrypt:
        raise Problem(NO_SECRETS_KEY, "signing_secret needs RELAY_SECRETS_KEY, with which secrets are encrypted.")
    return context.ring.encrypted(secret, secret_place(*identity))


def check_alone(query: Mapping[str, Sequence[str]]) -> None:
    """Raises a Problem if the query names receivers, too."""
    if "receiver" in query:
        detail = "receiver and endpoint exclude each other: give one of them"
        errors = tuple({"detail": detail, "parameter": name} for name in (ENDPOINT, "receiver"))
        raise Problem(INVALID, detail, errors=errors)
