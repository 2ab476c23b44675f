"""The receivers of a relay under test: their behaviour, and the guarantees for each."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from tests.faults.harness.party import Mode

SECRET: Final = "whsec_aGFybmVzcy1oYXJuZXNzLWhhcm5lc3MtaGFybmVzcw=="
QUICK: Final[Mapping[str, object]] = {
    "secret": SECRET,
    "timeout": 2,
    "retry": {"base": 0.5, "cap": 2, "max_attempts": 1000},
    "breaker": {"failures": 10, "window": 60, "open_for": 1},
    "poll": {"base": 0.3, "factor": 1.5, "cap": 1},
    "max_in_flight": 32,
}


CALLBACKS: Final[Mapping[str, int]] = {"callback": 64, "callback-1": 16, "callback-2": 6}
"""Receivers of each tenant, with their limits in flight. Sources are assigned to the tenants in turn."""
MOST_SOURCES: Final = 32
OF_SOME: Final = "HARNESS_SECRET"
"""A variable that some processes lack."""


def tenant_of(source: int) -> int:
    return source % len(CALLBACKS)


def sources_of(tenant: int) -> list[str]:
    return [f"source-{number}" for number in range(MOST_SOURCES) if tenant_of(number) == tenant]


@dataclass(frozen=True, slots=True)
class ReceiverPlan:
    """A receiver: its behaviour (see outside.Behaviour), its guarantees (see history.Promise), and its fields in
    receivers.yaml that differ from the defaults of the harness. `item`: the expression for its item, if it has two
    status steps; it cannot be asked if that needs a response that was lost. `tenant`: only this tenant's sources may
    name it; None: all may."""

    mode: Mode = "answer"
    seconds: float = 0.0
    rate: float | None = None
    status: bool = True
    chance: float = 0.0
    deaths: frozenset[str] = frozenset()
    generations: int = 1
    item: str = ""
    tenant: int | None = None
    entry: Mapping[str, object] = field(default_factory=dict)

    @property
    def can_be_asked(self) -> bool:
        return self.status and not self.item.startswith("response")

    def entry_at(self, url: str) -> dict[str, object]:
        """The entry in receivers.yaml."""
        entry = {**QUICK, **self.entry, "post_endpoint": url}
        if self.tenant is not None:
            entry |= {"owner": f"tenant-{self.tenant}", "senders": sources_of(self.tenant)}
        if self.item:
            entry["status_steps"] = [
                {"url": f"{url}/item/${{{{ {self.item} }}}}", "until": "has(body.build)"},
                {"url": f"{url}/build/${{{{ steps[0].body.build }}}}", "until": "response.status == 200"},
            ]
        elif self.status:
            entry["status_endpoint"] = f"{url}/{{message_id}}"
        return entry


MIX: Final[Mapping[str, ReceiverPlan]] = {
    "asked": ReceiverPlan(seconds=0.02),
    "asked-slow": ReceiverPlan("slow", seconds=0.3),
    "later": ReceiverPlan("later", seconds=0.5),
    "blind": ReceiverPlan(seconds=0.02, status=False),
    "blind-slow": ReceiverPlan("slow", seconds=0.3, status=False),
    "shared-asked": ReceiverPlan(seconds=0.02, entry={"lane": "shared"}),
    "parts": ReceiverPlan(seconds=0.02, entry={"partitions": 3}),
    "chain": ReceiverPlan("builds", seconds=0.5, item="message.id"),
    "queue": ReceiverPlan("builds", seconds=0.5, item="response.body.item"),
    "few": ReceiverPlan("slow", seconds=0.1, entry={"partitions": 3, "max_in_flight": 2}),
    "paced": ReceiverPlan(seconds=0.02, status=False, entry={"partitions": 2, "rate_limit": 30, "window_size": 2}),
    "batches": ReceiverPlan(seconds=0.02, entry={"batch": {"max_events": 8, "linger": 0.1}}),
    "lists": ReceiverPlan("slow", seconds=0.3, entry={"batch": {"format": "list", "linger": 0.1}, "lane": "shared"}),
    "numbered": ReceiverPlan(seconds=0.02, entry={"ordering": "receiver", "max_in_flight": 1}),
    "own-1": ReceiverPlan(seconds=0.02, tenant=1),
    "own-2": ReceiverPlan(seconds=0.02, tenant=2, entry={"lane": "shared", "max_in_flight": 4}),
}
"""Receivers with and without a status endpoint, fast and slow, that answer at once and later, with one status step and
with two (from the message's id or the response), dedicated and shared, with a lower limit in flight than partitions,
with a rate limit that a backlog reaches, two with batches, one with numbers, and two that belong to tenants."""
WITH_DOORS: Final[Mapping[str, ReceiverPlan]] = {
    "thin": ReceiverPlan(seconds=0.02, entry={"payload": "thin"}),
    "shared-thin": ReceiverPlan("slow", seconds=0.1, entry={"payload": "thin", "lane": "shared"}),
}
"""Receivers that read each payload from the relay's API."""
OF_SOME_PROCESSES: Final[Mapping[str, ReceiverPlan]] = {
    "signed": ReceiverPlan(seconds=0.02, entry={"secret": f"${{{OF_SOME}}}"}),
    "shared-signed": ReceiverPlan(seconds=0.02, entry={"secret": f"${{{OF_SOME}}}", "lane": "shared"}),
}
"""Receivers that only processes with the variable can serve."""
