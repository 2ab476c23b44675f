"""The first steps on an empty relay: a sample is sent, a receiver is added, and its answer is seen.

Derived from the lists of receivers and messages each time, so a step is done however it was done. Pure but for
`start_of`, which reads them.
"""

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple

from relay.domain.identity import PROBE
from relay.domain.state import State
from relay.pages.visit import Visit
from relay.schema.messages import MessageItem

SAMPLE: Final = "github.push"
_MOST: Final = 20
"""A relay with more messages than this is not new, even if no receiver has answered."""
_LISTED: Final = 2 * _MOST
"""Some of the listed messages are those that `relay dev` sends at its start."""
_ANSWERED: Final[frozenset[State]] = frozenset({"returning", "returned", "delivered"})


class Start(NamedTuple):
    """`has_probe`: the relay has a receiver of its own, which answers samples. `receiver`: another one. `sample`: the
    newest message of a sender; `own`: the newest one to another receiver."""

    has_probe: bool
    receiver: str | None
    sample: MessageItem | None
    own: MessageItem | None


async def start_of(visit: Visit) -> Start | None:
    """The first steps; None if all are done, or if the visitor may not see them. Without a history only the receivers
    are known."""
    receivers, messages = await asyncio.gather(
        visit.load_list(visit.api.receivers.page(limit=2)),
        visit.load_list(visit.api.messages.page(limit=_LISTED)),
    )
    if receivers.problem is not None:
        return None
    names = [each["name"] for each in receivers.items]
    return start(names, None if messages.problem is not None else messages.items)


def start(receivers: Sequence[str], messages: Sequence[MessageItem] | None) -> Start | None:
    """`receivers`: the names of some. `messages`: the newest ones, newest first; None: not known."""
    others = [name for name in receivers if name != PROBE]
    sent = [each for each in messages or () if each["source_id"] != PROBE]
    own = [each for each in sent if any(one["receiver"] != PROBE for one in each["deliveries"])]
    if others and (messages is None or len(sent) > _MOST or any(map(_is_answered, own))):
        return None
    return Start(PROBE in receivers, next(iter(others), None), next(iter(sent), None), next(iter(own), None))


def _is_answered(message: MessageItem) -> bool:
    return any(one["receiver"] != PROBE and one["state"] in _ANSWERED for one in message["deliveries"])
