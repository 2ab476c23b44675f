"""`POST /v1/receivers/{name}/verify`, and the verification state of a receiver's URL."""

from typing import Final

from aiohttp import web

from relay.api.access import RECEIVER
from relay.api.audit import record_audit
from relay.api.context import ApiContext
from relay.api.problems import NOT_FOUND, TOO_MANY, Problem, busy
from relay.api.registrar import Registrar
from relay.api.route import route
from relay.api.view import rfc3339
from relay.control.registry import Registry
from relay.domain.receiver import Receiver
from relay.domain.verification import HandshakeResult, handshake_of, next_try
from relay.schema.receivers import TriedView, VerificationView

AT_A_TIME: Final = 16
"""Handshakes of a process that requests wait for."""


class VerificationResource:
    """`POST /v1/receivers/{name}/verify`."""

    noun = "receivers"

    def __init__(self, context: ApiContext, registrar: Registrar) -> None:
        self._context = context
        self._registry = registrar.registry
        self._under_way = 0

    @route("POST", "/v1/receivers/{name}/verify", scope=RECEIVER, audit="receiver.verified", answer="The outcome.")
    async def verify_receiver(self, request: web.Request, name: str) -> TriedView:
        """Run the verification handshake of a receiver.

        It runs at once, of the kind in `verification` of the receiver. Only one at a time: 429 while one is in
        progress. A receiver with `verification: none` needs none.
        """
        receiver = self._registry.receiver(name)
        if receiver is None or receiver.unusable is not None:
            raise Problem(NOT_FOUND, f"There is no receiver named {name[:80]!r} that messages can be sent to.")
        result = None if receiver.verification == "none" else await self._tried(receiver)
        view: TriedView = {
            "name": name,
            "proved": result is not None and result.verified_at is not None,
            "detail": None if result is None else result.detail or None,
            "verification": verification_of(self._registry, self._registry.receiver(name) or receiver),
        }
        record_audit(request, proved=view["proved"])
        return view

    async def _tried(self, receiver: Receiver) -> HandshakeResult:
        verify = self._context.verify
        if verify is None or self._under_way >= AT_A_TIME:
            raise busy("Too many handshakes are in progress.", TOO_MANY)
        self._under_way += 1
        try:
            result = await verify(receiver)
        finally:
            self._under_way -= 1
        if result is None:
            raise busy(f"A handshake with {receiver.name} is in progress.", TOO_MANY)
        return result


def verification_of(registry: Registry, receiver: Receiver) -> VerificationView:
    """The state that this process knows."""
    return verification_view(receiver, registry.verifications.newest(receiver.name))


def verification_view(receiver: Receiver, result: HandshakeResult | None) -> VerificationView:
    """`result`: of the newest handshake; one with another URL is ignored."""
    kind = receiver.verification
    if kind == "none" or (result is not None and result.of != handshake_of(kind, receiver.post.url)):
        result = None
    view: VerificationView = {
        "kind": kind,
        "state": "not_required" if kind == "none" else "pending",
        "verified_at": None,
        "tried_at": None if result is None else rfc3339(result.tried_at),
        "next_try_at": None,
        "detail": None if result is None else result.detail or None,
        "allowed_rate": None,
    }
    if result is None:
        return view
    if result.verified_at is None:
        return {**view, "state": "failed", "next_try_at": rfc3339(next_try(result))}
    verified_at = rfc3339(result.verified_at)
    return {**view, "state": "verified", "verified_at": verified_at, "allowed_rate": result.allowed_rate}
