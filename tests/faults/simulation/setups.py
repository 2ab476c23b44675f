"""What a relay under test has to cope with: its receivers, and how much it may hold."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import yaml

from relay.config.receivers_file import parse_receivers_file
from relay.config.settings import Settings
from relay.control.apply import apply_file
from relay.domain.expression import STATUS, Expression
from relay.domain.receiver import BatchPolicy, Receiver, StatusStep
from relay.domain.template import template
from relay.domain.topics import SHARED
from tests.fakes.log import MemoryLog
from tests.fakes.moving import SOURCES
from tests.fakes.world import World, receiver
from tests.faults.simulation.outside import PATIENCE_S

_WAITS: dict[str, Any] = {"base": 8.0, "factor": 1.0, "cap": 8.0, "timeout": PATIENCE_S}


def _of_a_preset() -> Receiver:
    """It is asked in its own form, and later for the answer, in two steps that begin with its response."""
    entry = {"preset": "circleci", "post_endpoint": "http://ci/ci"}
    receivers, _ = parse_receivers_file(json.dumps({"receivers": {"ci": entry}})).resolve({})
    preset, plain = receivers["ci"], receiver("ci", "/ci", max_attempts=10_000, **_WAITS)
    return replace(preset, post=replace(plain.post, request=preset.post.request), answer_deadline=86_400.0)


RECEIVERS: Sequence[Receiver] = (
    receiver("answer", "/answer", status=True, max_attempts=10_000, partitions=3, max_in_flight=1, **_WAITS),
    replace(
        receiver("later", "/later", status=True, max_attempts=10_000, rate_limit=2, **_WAITS), answer_deadline=86_400.0
    ),
    receiver("blind", "/blind", max_attempts=10_000, max_in_flight=1, **_WAITS),
    receiver("fail", "/fail", max_attempts=2, failures=10_000, rate_limit=3, window_size=2.0, partitions=3, **_WAITS),
    _of_a_preset(),
    replace(receiver("caller", "/caller", max_attempts=10_000, max_in_flight=2, **_WAITS), answer_deadline=86_400.0),
    replace(
        receiver("batches", "/batches", status=True, max_attempts=10_000, max_in_flight=2, rate_limit=4, **_WAITS),
        batch=BatchPolicy(max_events=4, max_bytes=1_100_000, linger=0.5),
    ),
    replace(
        receiver("lists", "/lists", status=True, ordering="receiver", max_attempts=10_000, failures=3, **_WAITS),
        batch=BatchPolicy(max_events=3, linger=0.05, format="list"),
    ),
)
"""Each receiver's path is its name. One has a status endpoint, one answers later, one has no status endpoint, one
always fails, one has a preset, one brings its answers, and two get batches. Their `max_in_flight` and rates are below
the number of messages sent at a time. No deadline is as short as the error of the brokers' clocks, which measure it."""
HELD = Settings(receivers_file="none", hold_max=5.0, memory_budget=2_000_000)
"""Every retry is parked, and a few large messages are all that fits in memory."""


class Setup(NamedTuple):
    """What a relay under test has to cope with."""

    receivers: Sequence[Receiver]
    settings: Settings

    async def declare(self, world: World) -> None:
        """What reads the topics back looks up there which lanes there are."""
        own = [one for one in self.receivers if one.lane != SHARED]
        entries = {
            one.name: {"post_endpoint": one.post.url, "signature": "none", "partitions": one.partitions} for one in own
        }
        log = MemoryLog(world.broker)
        await log.start()
        file = parse_receivers_file(yaml.safe_dump({"sources": SOURCES, "receivers": entries}), "test")
        await apply_file(log, file, world.topics, prune=False)


BUILDS = (
    StatusStep(template("http://later/later/${{ message.id }}", STATUS), Expression("has(body.built)", STATUS)),
    StatusStep(
        template("http://later/build/${{ steps[0].body.built }}", STATUS), Expression("has(body.built)", STATUS)
    ),
)
CALM = Setup(
    [replace(one, status_endpoint=None, status_steps=BUILDS) if one.name == "later" else one for one in RECEIVERS], HELD
)
"""The answer that comes later is asked for in two steps."""
SUBSCRIBERS: Sequence[str] = tuple(f"subscriber{number}" for number in range(1_000))
WIDE = Setup(
    [
        *(replace(one, lane="shared") for one in RECEIVERS),
        *(receiver(name, f"/{name}", lane="shared", max_attempts=10_000, **_WAITS) for name in SUBSCRIBERS),
    ],
    Settings(receivers_file="none", hold_max=5.0, window_records=20, window_offsets=200),
)
"""All in one lane, with small bounds."""
SLOW = "slow"
CROWDED = Setup(
    [
        *(replace(one, lane="shared") for one in RECEIVERS),
        receiver(SLOW, f"/{SLOW}", lane="shared", max_attempts=10_000, max_in_flight=4, cap=90.0, timeout=30.0),
    ],
    Settings(receivers_file="none", window_records=6, window_offsets=50),
)
"""All in one lane, whose bounds a dozen messages exceed."""
FULL = Setup(
    [replace(one, lane="shared", partitions=1) if one.name in ("blind", "fail") else one for one in CALM.receivers],
    Settings(receivers_file="none", hold_max=5.0),
)
"""Some in a lane of their own, others in the shared one; how much may be parked is drawn."""
