"""The builds of an emulated CI: pure, with the time passed in."""

import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, Literal, TypedDict, get_args

Result = Literal["success", "failed", "canceled"]
RESULTS: Final[tuple[Result, ...]] = get_args(Result)
Phase = Literal["queued", "running", "finished"]


class CiKnobs(TypedDict, total=False):
    """The fields of `CiBehaviour`, for keyword arguments."""

    result: Result
    queued_polls: int
    running_polls: int
    fail_status: int | None
    fail_after_start: bool
    retry_after: int | None
    vanish: bool
    poll_status: int | None


@dataclass(frozen=True, slots=True)
class CiBehaviour:
    """`result`: of new builds. `queued_polls`, `running_polls`: number of status GETs that find a new build queued, and
    then running. `vanish`: status GETs do not find new builds.

    `fail_status`: POSTs get this status instead of a build; with `fail_after_start`, a build starts nevertheless.
    `poll_status`: status GETs get this status. `retry_after`: seconds, sent with both.
    """

    result: Result = "success"
    queued_polls: int = 1
    running_polls: int = 1
    fail_status: int | None = None
    fail_after_start: bool = False
    retry_after: int | None = None
    vanish: bool = False
    poll_status: int | None = None


@dataclass(slots=True)
class Build:
    """A build. `ref`: branch, tag or commit as requested. `queued_left`, `running_left`: status GETs until it starts,
    and then until it is finished; None if no status GET finds it."""

    number: int
    uuid: str
    ref: str
    inputs: Mapping[str, object]
    result: Result
    queued_left: int
    running_left: int
    vanished: bool
    created_at: str = field(compare=False)

    def leave_queue(self) -> bool:
        """Handle a GET of the build's place in the queue; returns whether the build has started."""
        if self.queued_left > 0:
            self.queued_left -= 1
            return False
        return True

    def poll(self) -> Phase:
        """Handle a status GET of the build."""
        if not self.leave_queue():
            return "queued"
        if self.running_left > 0:
            self.running_left -= 1
            return "running"
        return "finished"


class Builds:
    """All builds of a CI, by number and by UUID. `clock` returns Unix seconds."""

    def __init__(self, behaviour: CiBehaviour, clock: Callable[[], float] = time.time) -> None:
        self.behaviour = behaviour
        self.started: list[Build] = []
        self._clock = clock

    def start(self, ref: str, inputs: Mapping[str, object]) -> Build:
        """A new build, numbered from 1."""
        behaviour, number = self.behaviour, len(self.started) + 1
        build = Build(
            number,
            str(uuid.uuid5(uuid.NAMESPACE_URL, f"build/{number}")),
            ref,
            inputs,
            behaviour.result,
            behaviour.queued_polls,
            behaviour.running_polls,
            behaviour.vanish,
            datetime.fromtimestamp(self._clock(), UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        )
        self.started.append(build)
        return build

    def finish(self) -> None:
        """All builds that have started are finished from their next status GET on."""
        for build in self.started:
            build.queued_left = build.running_left = 0

    def find(self, key: str) -> Build | None:
        """The build with this number or UUID; None if it does not exist, or has vanished."""
        found = next((build for build in self.started if key in (str(build.number), build.uuid)), None)
        return None if found is None or found.vanished else found
