"""A webhook with the id of an earlier one: which deliveries of the first are sent again.

Signatures without a timestamp can be replayed by anyone who captured a request, so by default only failed ones are.
"""

from collections.abc import Mapping

from relay.api.problems import NOT_FAILED, NOT_FOUND, Problem
from relay.api.replay_one import ReplayResource
from relay.domain.identity import DeliveryId
from relay.domain.reasons import DISCARDED
from relay.domain.receiver import Inbound
from relay.schema.messages import MessageView


class Redelivery:
    """`replays` None: nothing is ever sent once more."""

    def __init__(self, replays: ReplayResource | None) -> None:
        self._replays = replays

    async def begin(self, policy: Inbound, first: MessageView) -> Mapping[str, int]:
        """The generations that begin now, by receiver. Deliveries in progress, or just replayed by another process, are
        left alone."""
        begun: dict[str, int] = {}
        if self._replays is None or policy.redelivery == "never":
            return begun
        always = policy.redelivery == "always"
        for one in first.deliveries:
            if always or (one.status == "failed" and one.reason != DISCARDED):  # somebody wanted no more of that one
                delivery = DeliveryId(one.receiver, first.source_id, first.message_id)
                generation = await _again(self._replays, delivery, only_failed=not always)
                if generation is not None:
                    begun[one.receiver] = generation
        return begun


async def _again(replays: ReplayResource, delivery: DeliveryId, *, only_failed: bool) -> int | None:
    try:
        plan = await replays.again(delivery, only_failed=only_failed)
    except Problem as problem:
        if problem.kind in (NOT_FAILED, NOT_FOUND):
            return None
        raise
    return plan.out[0].generation if plan.skip is None else None
