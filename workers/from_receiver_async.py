"""FromReceiverAsync: gets the answers that come later.

1. read the record; its receiver must exist;
2. the deadline is over: a receiver that need not answer has delivered without one, else a dead letter
   (`receiver_forgot` where it last said that it never saw the message, else `answer_timeout`);
3. ask at the status URL, if there is one; else wait for the receiver's own callback, which ends the row from outside;
4. an answer goes to `to_sender`; still working: ask again later, less and less often.
"""

from dataclasses import replace
from math import inf
from typing import assert_never

from relay.domain.directory import Directory
from relay.domain.errors import InvalidRecord
from relay.domain.hop import Hop, decode_hop
from relay.domain.receiver import Receiver
from relay.domain.requests import status_request
from relay.domain.schedule import poll_delay
from relay.domain.status import AnswerReady, AskLater, NeverSeen, StatusGone, Working, read_status
from relay.domain.topics import Topics
from relay.engine.rows import RowTable
from relay.engine.work import Dead, Decision, Done, GateRules, Later, Work
from relay.log.port import NewRecord, Record
from relay.state.port import Kind, Limits, Result, Stage, State, delivery_row
from workers.letters import Letters
from workers.results import answer_record
from workers.to_receiver import Outside

FINISHED_AT = frozenset({Stage.PUBLISHED, Stage.DONE, Stage.FAILED})


class Awaited(Work):
    """A delivery whose answer comes later."""

    __slots__ = ("forgotten", "hop", "receiver")

    def __init__(self, record: Record, hop: Hop, receiver: Receiver) -> None:
        row = delivery_row(hop.delivery)
        super().__init__(record, row, hop.generation, None, row.owner)
        self.hop = hop
        self.receiver = receiver
        limits = Limits(0.0, receiver.post.settle_s, receiver.post.breaker, receiver.post.settle_s)
        self.rules = GateRules(limits, max(1, receiver.post.max_in_flight // receiver.partitions))
        self.attempts = hop.attempt
        self.forgotten = False
        """The receiver last said that it never saw this message."""


class FromReceiverAsync:
    """The step; see the module's first lines."""

    stage = "pending"
    kind = Kind.POLL
    parks = True

    def __init__(self, topics: Topics, directory: Directory, state: State, letters: Letters, outside: Outside) -> None:
        self._topics = topics
        self._directory = directory
        self._letters = letters
        self._outside = outside
        self.table: RowTable[Awaited] = RowTable(state, outside.clock, self.kind, FINISHED_AT)

    def admit(self, record: Record) -> Awaited:
        hop = decode_hop(record.headers)
        receiver = self._directory.receiver(hop.delivery.receiver)
        if receiver is None:
            raise InvalidRecord("unknown_receiver", f"there is no receiver named {hop.delivery.receiver!r} any more")
        work = Awaited(record, hop, receiver)
        work.due = self._outside.clock.monotonic() + self._first_wait_s(work)
        return work

    def overdue(self, work: Awaited) -> Dead | Done | None:
        if self._age_s(work) < work.receiver.answer_deadline:
            return None
        if work.forgotten:
            return Dead("receiver_forgot", "the receiver accepted the message, and then said that it never saw it", 404)
        if work.hop.status_url is None and work.receiver.answer == "optional":
            return Done(stage=Stage.PUBLISHED, result=Result("delivered", 202))
        return Dead("answer_timeout", f"no answer within {work.receiver.answer_deadline:g} s")

    async def step(self, work: Awaited) -> Decision:
        receiver, outside = work.receiver, self._outside
        if work.hop.status_url is None:
            return self._later(work, inf, "waiting for the receiver's callback")
        request = status_request(
            work.hop.status_url, receiver, user_agent=outside.user_agent, timeout_s=receiver.post.timeout
        )
        exchange = await outside.transport.exchange(request)
        reading = read_status(exchange, status_map=receiver.status_map, now=outside.clock.time())
        work.forgotten = isinstance(reading, NeverSeen)
        usual_s = poll_delay(work.polls, receiver.poll)
        match reading:
            case AnswerReady(status, content_type, body, truncated):
                result = Result("answered", status, content_type, body, truncated)
                return Done(stage=Stage.PUBLISHED, result=result)
            case Working(ask_after_s):
                return self._later(work, usual_s if ask_after_s is None else ask_after_s, "still working")
            case NeverSeen():
                return self._later(work, usual_s, "never seen, says the receiver")
            case StatusGone():
                return Dead("gone", "the receiver's status endpoint says that it is gone", 410, pause_s=inf)
            case AskLater(retry_after_s, whole, kind):
                later = self._later(work, usual_s if retry_after_s is None else retry_after_s, kind)
                return replace(later, pause_s=later.due_in_s) if whole else later
            case _:
                assert_never(reading)

    def resume(self, work: Awaited, result: Result) -> Done | Dead:
        if result.outcome == "dead":
            return Dead(result.reason or "poison", result.detail or "", result.status)
        return Done((answer_record(self._topics, work.hop, result, work.attempts),), Stage.PUBLISHED, result=result)

    def bury(self, record: Record, work: Awaited | None, dead: Dead) -> NewRecord:
        if work is None:
            return self._letters.bury(record, dead)
        return self._letters.bury(record, dead, work.hop, attempts=work.attempts)

    def _later(self, work: Awaited, seconds: float, why: str) -> Later:
        """Never beyond the deadline."""
        rest_s = work.receiver.answer_deadline - self._age_s(work)
        return Later(max(0.0, min(seconds, rest_s)), why)

    def _age_s(self, work: Awaited) -> float:
        return self._outside.clock.time() - work.record.timestamp_ms / 1000

    def _first_wait_s(self, work: Awaited) -> float:
        wait_s = work.hop.ask_after_s if work.hop.ask_after_s is not None else work.receiver.poll.base
        if work.hop.status_url is None:
            wait_s = work.receiver.answer_deadline
        return max(0.0, min(wait_s, work.receiver.answer_deadline) - self._age_s(work))
