"""Receivers that use options (order and windows by a field, thin and encrypted payloads), erasures and jobs that run
meanwhile, and how such receivers open their requests."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

from jwcrypto.jwk import JWK
from msgspec import structs

from relay.api.history.payload import PayloadsResource
from relay.api.problems import Problem
from relay.api.status import StatusReader
from relay.domain.erasure import Erasure
from relay.domain.errors import NotYet, RelayError
from relay.domain.exchange import Exchange, Request, Response
from relay.domain.identity import DeliveryId
from relay.domain.jwe import decrypt
from relay.domain.reasons import CANCELLED, DISCARDED
from relay.domain.replay_job import Action, Selection
from tests.fakes.replaying import ReplayWorld
from tests.fakes.strikes import Fuse
from tests.fakes.virtual_time import LoopClock
from tests.faults.simulation.moving import ENTRIES, MOVING, MovingSetup, resolved
from tests.faults.simulation.outside import Wire
from tests.faults.simulation.story import Sending, Story

KEY = JWK.generate(kty="EC", crv="P-256")
VALUES: Sequence[object] = ("x", 1, "1", None)
"""Of the field of the payload that order and windows go by. The number and its text are the same."""
OPTIONS: Mapping[str, dict[str, Any]] = {
    **ENTRIES,
    "answer": ENTRIES["answer"] | {"ordering": {"by": "/k"}, "max_in_flight": 4},
    "later": ENTRIES["later"] | {"payload": "thin"},
    "blind": ENTRIES["blind"] | {"encrypt": {"jwk": KEY.export_public(as_dict=True)}},
    "ci": ENTRIES["ci"] | {"coalesce": {"key": "/k", "window": 20}},
    "batches": ENTRIES["batches"] | {"ordering": {"by": "/k"}},
}
THIN, SEALED, NEWEST = "/later", "/blind", "ci"


class OptionsSetup(MovingSetup):
    entries = OPTIONS


WITH_OPTIONS = OptionsSetup(resolved(OPTIONS), MOVING.settings)


class Job(NamedTuple):
    """`at`: when it was asked for (Unix seconds)."""

    id: str
    action: Action
    selection: Selection
    at: float
    only_failed: bool

    def covers(self, delivery: DeliveryId) -> bool:
        return self.selection.takes_delivery(*delivery, 0, "")


@dataclass
class OptionsStory(Story):
    """`refused`: ids of messages that a receiver rejects. `stopped`: ids of jobs that were to stop. `times`: by message
    id, when it was sent (Unix seconds). `windows`: ids with one value that were sent at once."""

    erasures: list[Erasure] = field(default_factory=list)
    jobs: list[Job] = field(default_factory=list)
    stopped: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    windows: list[list[str]] = field(default_factory=list)
    times: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def add(self, sending: Sending) -> None:
        super().add(sending)
        self.times[sending.message.message_id].append(LoopClock().time())

    def holds(self, message_id: str, letter: bytes | None) -> bool:
        return letter is None or super().holds(message_id, letter) or super().holds(message_id, unsealed(letter))

    def allows(self, reason: str, message_id: str, receiver: str) -> bool:
        if reason == "rejected":
            return message_id in self.refused
        delivery = DeliveryId(receiver, self.firsts[message_id].source_id, message_id)
        asked = {CANCELLED: "cancel", DISCARDED: "discard"}[reason]
        withdrawn = any(job.action == asked and job.covers(delivery) for job in self.jobs)
        return withdrawn or self.erased_at(delivery, self.times[message_id][0]) is not None

    def has_order(self, message_id: str, receiver: str) -> bool:
        """An erased message ends at once, even while an attempt is in doubt; a refused one may be sent again after a
        loss."""
        delivery = DeliveryId(receiver, self.firsts[message_id].source_id, message_id)
        return message_id not in self.refused and self.erased_at(delivery, self.times[message_id][0]) is None

    def erased_at(self, delivery: DeliveryId, sent: float) -> float | None:
        """When the payload was erased that was sent then; both in Unix seconds."""
        found = (one.made_at for one in self.erasures if sent <= one.made_at and _hits(one, delivery))
        return min(found, default=None)


def _hits(erasure: Erasure, delivery: DeliveryId) -> bool:
    of = delivery.source_id, delivery.message_id, delivery.receiver
    return all(named in (None, own) for named, own in zip(erasure.target, of, strict=True))


@dataclass
class OptionsWire(Wire):
    """Receivers that open what they get before they answer."""

    world: ReplayWorld | None = None
    sent: list[tuple[float, DeliveryId, int]] = field(default_factory=list)
    """When each POST of a message began (Unix seconds), and in which life."""
    wrongs: list[str] = field(default_factory=list)

    async def _met(self, path: str, request: Request) -> Exchange:
        if path == "/callback":
            return await super()._met(path, request)
        headers = dict(request.headers)
        delivery = DeliveryId(path.removeprefix("/"), headers["ce-source"], headers["ce-id"])
        self.sent.append((LoopClock().time(), delivery, int(headers["relay-generation"])))
        opened = await self._opened(path, delivery, request)
        if opened is None:
            return Response(503, {}, b"")
        return await super()._met(path, structs.replace(request, body=opened))

    async def _opened(self, path: str, delivery: DeliveryId, request: Request) -> bytes | None:
        """The payload; None if it cannot be read now."""
        if path == SEALED:
            opened = unsealed(request.body)
            if opened is None:
                self.wrongs.append(f"form: {delivery.message_id} came to {path} for everybody to read")
            return opened or request.body
        if path != THIN:
            return request.body
        document = json.loads(request.body)
        if document.keys() != {"id", "source", "type", "time", "webhook_id", "payload_url"}:
            self.wrongs.append(f"form: {delivery.message_id} came to {path} with {sorted(document)}")
            return request.body
        return await payload_at(cast("ReplayWorld", self.world), document["payload_url"])


def unsealed(body: bytes | None) -> bytes | None:
    """None if it is not encrypted."""
    with suppress(ValueError):
        return decrypt([KEY.export_private()], body or b"")[0]
    return None


async def payload_at(world: ReplayWorld, url: str) -> bytes | None:
    """As a receiver reads it, from an API of its own. None if it gets none."""
    if not (world.broker.available and world.state_available):
        return None
    registry = await world.registry()
    context = replace(
        await world.api_context(Fuse()),
        directory=registry,
        erasures=cast("Any", SimpleNamespace(known=registry.erasures)),
    )
    asked = SimpleNamespace(match_info={"token": url.rpartition("/")[2]})
    try:
        response = await PayloadsResource(context, StatusReader(context)).get_thin_payload(cast("Any", asked))
    except (Problem, RelayError, NotYet):
        return None
    return bytes(cast("Any", response).body)
