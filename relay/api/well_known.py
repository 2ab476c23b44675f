"""Public keys of this relay, under `/.well-known/`, for the verification of HTTP message signatures."""

from collections.abc import Iterator
from typing import Annotated, Final

from relay.api.access import OPEN
from relay.api.context import ApiContext
from relay.api.parameter import ReceiverName
from relay.api.responses import Reply
from relay.api.route import route
from relay.control.registry import Registry
from relay.domain.http_message import PublicJwk, public_jwk
from relay.domain.receiver import Endpoint, Receiver
from relay.domain.signing import is_private_key, public_key
from relay.schema.operation import PublicKeys

MOST_KEYS: Final = 1_000
_CACHED: Final = "max-age=300"
"""A verifier that meets a new `kid` asks again anyway."""


class WellKnownResource:
    """The JWK Set of the keys that sign with `http-message`."""

    noun = "monitoring"

    def __init__(self, context: ApiContext) -> None:
        self._context = context
        self._made: tuple[int, list[PublicJwk]] = -1, []

    @route(
        "GET",
        "/.well-known/jwks.json",
        scope=OPEN,
        answer="The keys.",
    )
    async def list_public_keys(
        self, receiver: Annotated[ReceiverName | None, "Only the keys of this receiver."]
    ) -> Reply[PublicKeys]:
        """Get the public keys of the relay's signatures, as a JWK Set.

        Ed25519 keys of receivers with a topic of their own, and of callbacks, with `signature: http-message`; at most
        1,000. `receiver` names any receiver, also one in the shared lane. `keyid` of a signature names the key's `kid`.
        """
        registry = self._context.registry
        keys = self._keys(registry) if receiver is None else _of_one(registry.receiver(receiver))
        return Reply(PublicKeys(keys=keys), {"Cache-Control": _CACHED})

    def _keys(self, registry: Registry) -> list[PublicJwk]:
        """Collected once per change of the entries, because any client may ask."""
        if self._made[0] != registry.version:
            found = sorted({public_key(key) for key in _private_keys(registry)})[:MOST_KEYS]
            self._made = registry.version, list(map(public_jwk, found))
        return self._made[1]


def _of_one(receiver: Receiver | None) -> list[PublicJwk]:
    keys = () if receiver is None else _private_keys_of(receiver.post)
    return list(map(public_jwk, sorted({public_key(key) for key in keys})))


def _private_keys(registry: Registry) -> Iterator[str]:
    receivers = (each.post for each in registry.receivers().values())
    callbacks = (each.callback for each in registry.sources().values())
    for endpoint in (*receivers, *callbacks):
        yield from () if endpoint is None else _private_keys_of(endpoint)


def _private_keys_of(endpoint: Endpoint) -> Iterator[str]:
    if "http-message" in endpoint.signing.styles:
        yield from endpoint.signing.private_keys
        yield from (each.secret for each in endpoint.signing.former if is_private_key(each.secret))
