"""`POST /v1/receivers/{name}/verify`, and the verification state of a receiver's URL."""

from typing import Final, Literal

from aiohttp import web

from relay.api.access import RECEIVER
from relay.api.audit import record_audit
from relay.api.context import ApiContext
from relay.api.problems import NOT_FOUND, TOO_MANY, Problem
from relay.api.registrar import Registrar
from relay.api.responses import json_response
from relay.api.route import NAME, DocumentedResponse, Example, json_of, route
from relay.api.view import rfc3339
from relay.control.registry import Registry
from relay.domain.receiver import Receiver, Verification
from relay.domain.verification import HandshakeResult, handshake_of, next_try
from relay.schema.receivers import TriedView, VerificationView

AT_A_TIME: Final = 16
"""Handshakes of a process that requests wait for."""
BUSY_S: Final = 2


class VerificationResource:
    """`POST /v1/receivers/{name}/verify`."""

    def __init__(self, context: ApiContext, registrar: Registrar) -> None:
        self._context = context
        self._registry = registrar.registry
        self._under_way = 0

    @route(
        "POST",
        "/v1/receivers/{name}/verify",
        scope=RECEIVER,
        audit="receiver.verified",
        id="verifyReceiver",
        noun="receivers",
        parameters=(NAME,),
        answers=(DocumentedResponse(200, "The outcome.", json_of(TriedView)),),
        example=Example(200, path={"name": "ci"}),
    )
    async def verify(self, request: web.Request, name: str) -> web.Response:
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
            "detail": (result.detail if result is not None else None) or None,
            "verification": verification_of(self._registry, self._registry.receiver(name) or receiver),
        }
        record_audit(request, proved=view["proved"])
        return json_response(200, view)

    async def _tried(self, receiver: Receiver) -> HandshakeResult:
        verify = self._context.verify
        if verify is None or self._under_way >= AT_A_TIME:
            raise _busy("Too many handshakes are in progress.")
        self._under_way += 1
        try:
            result = await verify(receiver)
        finally:
            self._under_way -= 1
        if result is None:
            raise _busy(f"A handshake with {receiver.name} is in progress.")
        return result


def verification_of(registry: Registry, receiver: Receiver) -> VerificationView:
    """The state that this process knows."""
    return verification_view(receiver, registry.proofs.newest(receiver.name))


def verification_view(receiver: Receiver, result: HandshakeResult | None) -> VerificationView:
    """`result`: of the newest handshake; one with another URL is ignored."""
    kind = receiver.verification
    if kind == "none":
        return _view(kind, "not_required")
    if result is None or result.of != handshake_of(kind, receiver.post.url):
        return _view(kind, "pending")
    if result.verified_at is not None:
        view = _view(kind, "verified", result)
        view["verified_at"], view["allowed_rate"] = rfc3339(result.verified_at), result.allowed_rate
        return view
    view = _view(kind, "failed", result)
    view["next_try_at"] = rfc3339(next_try(result))
    return view


def _view(
    kind: Verification,
    state: Literal["not_required", "pending", "failed", "verified"],
    result: HandshakeResult | None = None,
) -> VerificationView:
    return {
        "kind": kind,
        "state": state,
        "verified_at": None,
        "tried_at": None if result is None else rfc3339(result.tried_at),
        "next_try_at": None,
        "detail": (result.detail if result is not None else None) or None,
        "allowed_rate": None,
    }


def _busy(detail: str) -> Problem:
    return Problem(TOO_MANY, detail, headers={"Retry-After": str(BUSY_S)})
