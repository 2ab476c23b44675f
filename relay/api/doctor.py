"""`GET /v1/doctor`: this process looks at all that it depends on, and says what to do."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, Final

from relay.api.access import ADMIN
from relay.api.context import ApiContext
from relay.api.problems import invalid
from relay.api.route import Parameter, Query, ReceiverName, route
from relay.domain.diagnosis import Checked, Diagnosis
from relay.domain.identity import is_receiver_name
from relay.domain.times import rfc3339
from relay.schema.operation import CheckView, DoctorView

KEPT_S: Final = 10.0
"""For so long a look is as good as another one."""

Examine = Callable[[str | None], Awaitable[Diagnosis]]


def _receiver(query: Query) -> str | None:
    receiver = query.get("receiver", [None])[-1]
    if receiver is not None and not is_receiver_name(receiver):
        raise invalid(f"{receiver[:80]!r} is not a receiver name", parameter="receiver")
    return receiver


_RECEIVER: Final = Parameter("receiver", ReceiverName, "Only checks of this receiver.", read=_receiver)


class DoctorResource:
    """The route, for administrators. One look at a time; who comes meanwhile, or shortly after, gets the same."""

    noun = "doctor"

    def __init__(self, context: ApiContext, examine: Examine) -> None:
        self._clock = context.clock
        self._examine = examine
        self._looking = asyncio.Lock()
        self._last: tuple[str | None, float, Diagnosis] | None = None

    @route("GET", "/v1/doctor", scope=ADMIN, answer="The findings of each check.")
    async def look_at_itself(self, receiver: Annotated[str | None, _RECEIVER]) -> DoctorView:
        """Run the checks of the doctor.

        The process checks its settings, Kafka, Redis and the receivers, within 20 seconds, even if Kafka or Redis does
        not answer. It runs the checks at most once within 10 seconds. docs/doctor.md explains them.
        """
        async with self._looking:
            if self._last is None or self._last[0] != receiver or self._clock.monotonic() - self._last[1] >= KEPT_S:
                found = await self._examine(receiver)
                self._last = receiver, self._clock.monotonic(), found
            return view_of(self._last[2])


def view_of(found: Diagnosis) -> DoctorView:
    return {"ok": found.ok, "at": rfc3339(found.at), "checks": [_view_of_check(each) for each in found.checks]}


def _view_of_check(checked: Checked) -> CheckView:
    return {
        "name": checked.name,
        "subject": checked.subject,
        "ok": checked.ok,
        "severity": checked.severity,
        "what": checked.what,
        "todo": checked.todo,
    }
