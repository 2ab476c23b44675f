"""Batches: the deliveries of a batch are sent in one POST, whose response says what becomes of each.

1. All deliveries of a batch that have begun join it in the same iteration of the event loop; then it is sent.
2. A list of ids and statuses in a 2xx: each delivery has its own. A list that cannot be read: all are ambiguous.
3. A rejected batch of more than one is sent again in halves, until the one that is rejected is alone.
4. Any other response, or none, is the same for all.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple, Protocol

from msgspec import structs

from relay.domain.batch import BadVerdicts, BatchEvent, batch_id, encoded_event, read_verdicts
from relay.domain.exchange import Exchange, Request, Response
from relay.domain.hop import Hop
from relay.domain.identity import webhook_id
from relay.domain.outcome import Accepted, Ambiguous, Gone, NotProcessed, Outcome, Rejected, Ruling, classify, healthy
from relay.domain.receiver import BatchPolicy
from relay.domain.requests import batch_request, deadline_of
from relay.domain.shown_exchange import failure_detail
from relay.engine.decision import Call, Dead, Decision, Done, Later
from relay.engine.work import SharedRequest
from relay.state.attempts import Change
from workers.delivery import Delivery, ruled
from workers.dependencies import Dependencies
from workers.outcomes import outcome_of

Reply = Callable[["Share"], None]
SETUP_STATUSES: Final = frozenset({401, 402, 403, 404, 405, 407, 421, 425, 426, 451})
"""Statuses that are about the receiver's set-up, whichever messages it gets."""
UNREADABLE: Final = "batch_response"
NOT_IN_BATCH: Final = Later(0.0, "its batch was full", Change.RELEASED)


class Deciding(Protocol):
    """Decides what a response means for one delivery (`ToReceiver`)."""

    def count(self, work: Delivery, outcome: Outcome, now: float) -> None: ...

    def decide(
        self, work: Delivery, outcome: Outcome, request: Request, exchange: Exchange, ruling: Ruling | None
    ) -> Done | Later | Dead: ...

    def ambiguous(self, work: Delivery, outcome: Ambiguous, detail: str) -> Done | Later | Dead: ...


@dataclass(slots=True)
class SentBatch:
    """A POST that has ended. `ours`: the decision on all, if this process caused its failure. `responses`: one for each
    delivery, if the response has a list of them; `fault`: why its list cannot be read. `waits`: until the next attempt,
    by order key and reason, so that what was sent together stays together."""

    request: Request
    exchange: Exchange
    seconds: float
    count: int
    ours: Later | None = None
    responses: Sequence[Response | None] | None = None
    fault: str | None = None
    waits: dict[tuple[bytes | None, str], float] = field(default_factory=dict)

    def exchange_of(self, at: int) -> Exchange:
        response = None if self.responses is None else self.responses[at]
        return self.exchange if response is None else response


class Share(NamedTuple):
    """The reply to one delivery. `sent` None: it was not in the POST; an exception: none could be made."""

    sent: SentBatch | Exception | None
    at: int = 0


class Batches:
    """The batches that are being filled, of all lanes of a worker."""

    def __init__(self, dependencies: Dependencies, deciding: Deciding) -> None:
        self._dependencies = dependencies
        self._deciding = deciding
        self._joined: dict[SharedRequest | Delivery, list[tuple[Delivery, Reply]]] = {}

    def post(self, work: Delivery) -> Call[Share]:
        return Call(partial(self._join, work), partial(self._decided, work))

    def _join(self, work: Delivery, replied: Reply) -> None:
        batch = work.batch or work
        joined = self._joined.get(batch)
        if joined is None:
            joined = self._joined[batch] = []
            asyncio.get_running_loop().call_soon(self._send, batch)
        joined.append((work, replied))

    def _send(self, batch: SharedRequest | Delivery) -> None:
        joined = self._joined.pop(batch)
        try:
            request, count = self._request([work for work, _ in joined])
        except Exception as error:  # noqa: BLE001  a bug in a step: the engine decides about each
            for _, replied in joined:
                replied(Share(error))
            return
        for _, replied in joined[count:]:
            replied(Share(None))
        now = self._dependencies.clock.time()
        rest_s = min(work.deadline_in_s(now) for work, _ in joined[:count])
        on_reply = partial(self._on_reply, joined[:count], request, self._dependencies.clock.monotonic())
        self._dependencies.transport.send(self._dependencies.within_slot(joined[0][0], request, rest_s), on_reply)

    def _request(self, works: Sequence[Delivery]) -> tuple[Request, int]:
        """The POST, and how many of the deliveries are in it: the first ones, until one does not fit, or has the
        id of another one."""
        receiver, policy = works[0].receiver, works[0].receiver.batch or BatchPolicy()
        events: list[bytes] = []
        names: set[str] = set()
        size = 1
        for work in works:
            _, source_id, message_id = work.hop.delivery
            event = self._event(work)
            size += len(event) + 1
            own = {message_id, webhook_id(source_id, message_id)}
            if events and (size > policy.max_bytes or names & own):
                break
            events.append(event)
            names |= own
        identity, now, agent = batch_id(works[0].token), self._dependencies.clock.wall(), self._dependencies.user_agent
        return batch_request(receiver, identity, events, now=now, user_agent=agent), len(events)

    def _event(self, work: Delivery) -> bytes:
        hop = self._dependencies.traced(work.hop, "post", work.attempts)
        return event_of(work, hop, self._dependencies.answer_url(work.receiver, work.hop))

    def _on_reply(
        self, joined: Sequence[tuple[Delivery, Reply]], request: Request, begun: float, exchange: Exchange
    ) -> None:
        dependencies, first = self._dependencies, joined[0][0]
        sent = SentBatch(request, exchange, dependencies.clock.monotonic() - begun, len(joined))
        sent.ours = dependencies.request_limiter.on_reply(first.endpoint_id, request.url, exchange)
        if sent.ours is None:
            now = dependencies.clock.time()
            outcome, _ = outcome_of(first, exchange, now)
            dependencies.meter.posted(first.receiver, exchange, outcome, sent.seconds, now)
            if isinstance(exchange, Response) and 200 <= exchange.status < 300:
                try:
                    sent.responses = read_verdicts(exchange, [work.hop for work, _ in joined])
                except BadVerdicts as error:
                    sent.fault = str(error)
        for at, (_, replied) in enumerate(joined):
            replied(Share(sent, at))

    def _decided(self, work: Delivery, share: Share) -> Decision:
        sent, at = share
        if sent is None:
            return NOT_IN_BATCH
        if isinstance(sent, Exception):
            raise sent
        own = sent.ours or self._about_endpoint(sent, at, self._together(sent, work, self._decide(work, sent, at)))
        about = work.purpose("post", work.receiver.post, work.attempts, work.attempts - 1)
        decision = self._dependencies.of_present_life(about, own)
        for journal in self._dependencies.journals:
            journal.record(about, sent.request, sent.exchange_of(at), decision, sent.seconds)
        return decision

    def _decide(self, work: Delivery, sent: SentBatch, at: int) -> Done | Later | Dead:
        now, exchange = self._dependencies.clock.time(), sent.exchange
        status = exchange.status if isinstance(exchange, Response) else None
        if sent.fault is not None:
            detail = f"its batch was sent, and the response cannot be read: {sent.fault}"
            return self._deciding.ambiguous(work, Ambiguous(None, status, UNREADABLE), detail)
        if sent.responses is None:
            outcome, ruling = outcome_of(work, exchange, now)
            if sent.count > 1 and _is_about_a_message(outcome):
                return self._halved(work, sent, outcome)
            if isinstance(outcome, Accepted):
                # a Location is about the batch, not about one message
                outcome = structs.replace(outcome, location=None)
            self._deciding.count(work, outcome, now)
            decision = self._deciding.decide(work, outcome, sent.request, exchange, ruling)
            return decision if ruling is None else ruled(decision, ruling)
        response = sent.responses[at]
        if response is None:
            detail = "its batch was sent, and the list in the response does not have it"
            return self._deciding.ambiguous(work, Ambiguous(None, status, UNREADABLE), detail)
        outcome = classify(response, codes=work.receiver.post.codes, now=now)
        self._deciding.count(work, outcome, now)
        return self._deciding.decide(work, outcome, sent.request, response, None)

    def _halved(self, work: Delivery, sent: SentBatch, outcome: Outcome) -> Later:
        work.batch_limit = (sent.count + 1) // 2
        said = failure_detail(sent.exchange, work.receiver.post, url=sent.request.url, method=sent.request.method)
        work.last_failure = f"its batch of {sent.count} was rejected: {said}"
        return Later(
            0.0,
            "batch rejected",
            counted=False,
            last_status=sent.exchange.status if isinstance(sent.exchange, Response) else None,
            healthy=healthy(outcome),
            detail=work.last_failure,
        )

    def _together(self, sent: SentBatch, work: Delivery, decision: Done | Later | Dead) -> Done | Later | Dead:
        """The next attempt at the same time as of the others, or of the first of its order key that failed so."""
        if not isinstance(decision, Later) or (sent.responses is not None and work.queue is None):
            return decision
        key = None if sent.responses is None else work.queue
        return structs.replace(decision, due_in_s=sent.waits.setdefault((key, decision.reason), decision.due_in_s))

    def _about_endpoint(self, sent: SentBatch, at: int, decision: Done | Later | Dead) -> Done | Later | Dead:
        """The result about the endpoint, which is counted once per response. A verdict about one message says nothing
        about the endpoint."""
        if at:
            return structs.replace(decision, healthy=None, pause_s=0.0)
        return structs.replace(decision, healthy=True, pause_s=0.0) if sent.responses is not None else decision


def event_of(work: Delivery, hop: Hop, answer_url: str | None) -> bytes:
    """A delivery as it stands in a batch. `hop`: with the trace context of its request."""
    receiver = work.receiver
    deadline = int(deadline_of(hop, receiver)) if hop.accepted_ms else None
    payload, form = work.record.value or b"", receiver.batch.format if receiver.batch is not None else "list"
    event = BatchEvent(hop, payload, work.attempts, work.sequence, work.out_of_order, deadline, answer_url, work.gaps)
    return encoded_event(event, form)


def _is_about_a_message(outcome: Outcome) -> bool:
    """Whether a smaller batch may have another outcome."""
    if isinstance(outcome, NotProcessed):
        return outcome.status is not None and 400 <= outcome.status < 500 and outcome.status not in SETUP_STATUSES
    return isinstance(outcome, Rejected | Gone)
