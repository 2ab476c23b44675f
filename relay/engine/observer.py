"""Events that the engine reports, for logs, metrics and Sentry."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from relay.domain.errors import RelayError, Unavailable
from relay.engine.decision import Dead, Decision
from relay.engine.work import Work
from relay.log.port import NewRecord, Record, TopicPartition
from relay.state.attempts import WaitReason
from relay.state.port import Restored


class StateMemory(Enum):
    """Memory of a state that was not ready. NEW: there never was any; KEPT: a restart that lost nothing; LOST: it is
    gone, or its latest part may be."""

    NEW = "new"
    KEPT = "kept"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Recovered:
    """Result of a recovery pass. `tags`: were not ready, and are now; if empty, it was a check.

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
    """Gets the events of the engine; must neither raise nor block. This one ignores them."""

    def waiting(self, what: str, error: Unavailable) -> None:
        """The server of a port call was unavailable; the call will be repeated."""

    def state_recovering(self, tags: frozenset[int]) -> None:
        """The state asks for a recovery pass."""

    def not_ready(self, tags: frozenset[int], forgotten: frozenset[int]) -> None:
        """These tags are not ready now; those among `forgotten` because their memory is gone, or may lack its latest
        part. Reported at every look, also when all are ready."""

    def other_cluster(self) -> None:
        """The state was first used with the log of another cluster."""

    def state_outdated(self) -> None:
        """The state has older memory than the log: it is restored from the log, like memory that was lost."""

    def recovery_begun(self, tags: frozenset[int], forgotten: frozenset[int]) -> None:
        """This process has begun a recovery pass."""

    def recovered(self, done: Recovered) -> None:
        """A recovery pass, or a check, of this process has ended."""

    def step_crashed(self, stage: str, error: Exception) -> None:
        """A worker's step raised something unexpected: a bug."""

    def lane_broken(self, partition: TopicPartition, error: Exception, record: Record | None, times: int) -> None:
        """A bug of the engine ended this lane, which opens again; others go on. `record`: triggered it for the
        `times`-th time; None if unknown."""

    def attempt(self, stage: str, work: Work, decision: Decision) -> None:
        """An attempt ended, and what that means is stored."""

    def held_up(self, work: Work, behind: int) -> None:
        """An attempt of `work` failed once more, and at least `behind` later ones of its order key wait for it."""

    def duplicate(self, stage: str) -> None:
        """A record whose output was proved to be acknowledged already was skipped."""

    def dead(self, stage: str, endpoint_id: str, record: Record | NewRecord, dead: Dead) -> None:
        """A dead letter is written. `record`: the one that was given up, or its letter, which names the owner."""

    def skipped(self, partition: TopicPartition, first: int, last: int, why: str) -> None:
        """Nothing at these offsets can be read, so they are skipped, with a dead letter. Reported by each lane that
        reads them, and again after a crash."""

    def former_owner_died(self, partition: TopicPartition, before: int, marked: int) -> None:
        """The lane's former owner ended abnormally: the records that it may have had in memory, those before this
        offset, run one by one. `marked`: how many are suspected most."""

    def state_clock_set_back(self, seconds: float) -> None:
        """The clock of the state's server was set back by so much. Waits that it measures are not affected."""

    def parked(self, topic: str, count: int) -> None:
        """So many were parked."""

    def endpoint_held(self, endpoint_id: str, why: WaitReason) -> None:
        """The endpoint gets nothing now, and not for its rate. Reported often while something waits for it."""

    def endpoint_offline(self, endpoint_id: str, down_for_s: float, since: float) -> None:
        """A long outage: a throw-away ping is about to be sent. Reported for each ping. `since`: start of the outage in
        Unix seconds, the same in all processes."""

    def endpoint_back(self, endpoint_id: str, down_for_s: float, since: float) -> None:
        """A ping was answered: the outage is over."""

    def ping_unanswered(self, endpoint_id: str) -> None:
        """A ping was not answered, or not well: the outage goes on."""

    def endpoint_gone(self, endpoint_id: str, detail: str) -> None:
        """The endpoint answered a message with "gone"; it is paused until an operator resumes it."""

    def endpoint_disabled(self, endpoint_id: str, down_for_s: float, last_status: int | None, *, gone: bool) -> None:
        """After a ping the endpoint is paused until an operator resumes it: it answered that it is `gone`, or its
        outage lasted too long, and it is disabled."""

    def sending_paused(self, kind: str, detail: str) -> None:
        """A request could not be made, as this process lacks a resource (`kind` of a NoResponse): it counts as no
        attempt. Reported for each."""

    def sending_resumed(self, lasted_s: float) -> None:
        """The shortage has been over for some seconds; it lasted so long."""

    def fenced(self, partition: TopicPartition) -> None:
        """A newer owner has this lane."""

    def lane(self, partition: TopicPartition, *, unfinished: int | None) -> None:
        """Level of a lane's window, about once a second while it is not empty, and when it has become empty. None: the
        lane was given back."""

    def tick(self) -> None:
        """Called about once a second: conditions that end by time alone can be reported."""

    def stalled(self, partition: TopicPartition, offset: int, seconds: float) -> None:
        """The record at `offset` is unfinished, and nothing has been in progress for it so long: a bug, or a call that
        hangs."""

    def service_failed(self, name: str, error: RelayError, again_in_s: float) -> None:
        """The consumer of a service failed; the service will be started again, and others go on."""

    def service_died(self, name: str, error: Exception) -> None:
        """An unexpected exception ended a part of the process, and will end the process. Reported before other parts
        end, as that may take long, or forever."""
