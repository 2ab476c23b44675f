"""What the engine tells about itself: for logs, metrics and Sentry, which are wired in from outside."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from relay.domain.errors import RelayError, Unavailable
from relay.engine.work import Dead, Decision, Work
from relay.log.port import NewRecord, Record, TopicPartition
from relay.state.attempts import WaitReason
from relay.state.port import Restored


class StateMemory(Enum):
    """Of a state that was not ready. NEW: there never was any; KEPT: a restart that lost nothing; LOST: it is gone, or
    its end may be."""

    NEW = "new"
    KEPT = "kept"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Recovered:
    """What a recovery pass did. `tags`: were not ready, and are now; none of them: it was a check.

    `owners`: per owner of parked records (`r:<receiver>`, `s:<source_id>`) what became of each. `doubt_until`: Unix
    seconds; until then a delivery without a row counts as in doubt. None: this pass brings no doubt.
    """

    tags: frozenset[int]
    memory: StateMemory
    owners: Mapping[str, Counter[Restored]]
    seconds: float
    doubt_until: float | None

    def count(self, what: Restored | None = None) -> int:
        """Parked records in all, or those of which this is so."""
        return sum(found.total() if what is None else found[what] for found in self.owners.values())


class Observer:
    """Told what happens; must not raise, and must not block. This one tells nobody."""

    def waiting(self, what: str, error: Unavailable) -> None:
        """A port call found its server away and will be repeated."""

    def state_recovering(self, tags: frozenset[int]) -> None:
        """The state asks for a recovery pass."""

    def not_ready(self, tags: frozenset[int], forgotten: frozenset[int]) -> None:
        """These tags are not ready now; those among `forgotten` because their memory is gone, or may lack its end.
        Told at every look, also when all are ready."""

    def recovery_begun(self, tags: frozenset[int], forgotten: frozenset[int]) -> None:
        """This process has begun a recovery pass."""

    def recovered(self, done: Recovered) -> None:
        """A recovery pass, or a check, of this process has ended."""

    def step_crashed(self, stage: str, error: Exception) -> None:
        """A worker's step raised something unexpected: a bug."""

    def lane_broken(self, partition: TopicPartition, error: Exception, record: Record | None, times: int) -> None:
        """A bug of ours ended this lane, which is made anew; the others go on. `record`: that brought it out, where
        that is known, for the `times`-th time."""

    def attempt(self, stage: str, work: Work, decision: Decision) -> None:
        """An attempt ended, and what that means is stored."""

    def held_up(self, work: Work, behind: int) -> None:
        """An attempt of `work` failed once more, and at least `behind` later ones of its order key wait for it."""

    def duplicate(self, stage: str) -> None:
        """A record whose output was proved to be acknowledged already was skipped."""

    def dead(self, stage: str, gate: str, record: Record | NewRecord, dead: Dead) -> None:
        """A dead letter is written. `record`: the one that was given up, or its letter: it says whose it is."""

    def skipped(self, partition: TopicPartition, first: int, last: int, why: str) -> None:
        """Nothing of these offsets can be read, so they are passed over, under a dead letter. Told for each lane that
        met them; after a crash again."""

    def wary(self, partition: TopicPartition, before: int, marked: int) -> None:
        """The lane's former owner ended abnormally: what it may have had in hand, records before this offset, is worked
        at one by one. `marked`: how many are suspected most."""

    def state_clock_set_back(self, seconds: float) -> None:
        """The clock of the state's server was set back by so much. What waits by it goes on as if it were not."""

    def parked(self, topic: str, count: int) -> None:
        """So many were parked."""

    def held(self, gate: str, why: WaitReason) -> None:
        """The endpoint is to be sent nothing now, and not for its rate. Told often while something waits for it."""

    def offline(self, gate: str, down_for_s: float, since: float) -> None:
        """A long outage: a throw-away ping is about to be sent. Told for each. `since`: when it began, in Unix seconds,
        the same in all processes."""

    def back(self, gate: str, down_for_s: float, since: float) -> None:
        """A ping was answered: the outage is over."""

    def unanswered(self, gate: str) -> None:
        """A ping was not answered, or not well: the outage goes on."""

    def gone(self, gate: str, detail: str) -> None:
        """Asked for a message, the endpoint said that it is gone; it is paused until somebody resumes it."""

    def shut(self, gate: str, down_for_s: float, last_status: int | None, *, gone: bool) -> None:
        """After a ping the endpoint is paused until somebody resumes it: it said that it is `gone`, or else its outage
        lasted too long, and it is disabled."""

    def short_of(self, kind: str, detail: str) -> None:
        """A request could not be made for want of something of our own (`kind` of a NoResponse): it is nobody's
        attempt. Told for each."""

    def enough_again(self, lasted_s: float) -> None:
        """That is over, for some seconds now; it lasted so long."""

    def fenced(self, partition: TopicPartition) -> None:
        """A newer owner has this lane."""

    def lane(self, partition: TopicPartition, *, unfinished: int) -> None:
        """Level of a lane's window, told about once a second while it is not empty, and when it has become so."""

    def look(self) -> None:
        """About once a second: what ends by time alone can be told."""

    def stalled(self, partition: TopicPartition, offset: int, seconds: float) -> None:
        """For so long nobody has had the record at `offset`, which is not finished: a bug, or a call that hangs."""

    def service_failed(self, name: str, error: RelayError, again_in_s: float) -> None:
        """A service cannot go on with its consumer, and will be started again; the others go on."""

    def service_died(self, name: str, error: Exception) -> None:
        """Something unexpected ended a part of the process, and will end the process: told before anything else is
        ended, as that may take its time, or never come to its end."""
