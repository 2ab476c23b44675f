"""Attempts and dead letters in words: log lines for developers of receivers."""

from typing import assert_never

from relay.domain.dead_letter import identity_of
from relay.engine.decision import Dead, Decision, Done, Later, Resend
from relay.engine.work import Work
from relay.log.port import NewRecord, Record
from relay.state.attempts import Change

_LATER = {Change.STEP: "working", Change.RETRY: "retry", Change.DOUBT: "in doubt", Change.RELEASED: "not sent"}


def outcome_of(decision: Decision) -> str:
    """`done`, `retry`, `doubt`, `released` or `dead`: a label of metrics."""
    match decision:
        case Later():
            return decision.change.value
        case Dead():
            return "dead"
        case _:
            return "done"


def facts_of(work: Work, decision: Decision) -> dict[str, object]:
    """The fields of an attempt's log line; fields without a value are left out."""
    receiver, source_id, message_id = work.delivery or (work.endpoint_id, None, None)
    facts: dict[str, object | None] = {
        "receiver": receiver,
        "source_id": source_id,
        "message_id": message_id,
        "attempt": work.attempts,
    }
    match decision:
        case Done():
            result = decision.result
            facts["outcome"] = "done"
            if result is not None:  # its detail: why the answer cannot be polled
                facts |= {"outcome": result.outcome, "status": result.status, "detail": result.detail}
        case Later():
            facts |= {"outcome": _LATER.get(decision.change, decision.change.value), "status": decision.last_status}
            facts |= {"reason": decision.reason, "again_in_s": round(decision.due_in_s, 1)}
        case Dead():
            facts |= {"outcome": "dead", "status": decision.last_status, "reason": decision.reason}
            facts |= {"detail": decision.detail or None}
        case Resend():
            facts |= {"outcome": "sent again"}
        case _:
            assert_never(decision)
    return {name: fact for name, fact in facts.items() if fact is not None}


def poll_facts(work: Work, decision: Decision) -> dict[str, object]:
    """The same for a status GET, which is no delivery attempt: a missing answer is no failure."""
    facts = facts_of(work, decision)
    del facts["attempt"]
    if isinstance(decision, Later):
        facts["outcome"] = "not answered" if decision.detail else facts.pop("reason")
        facts |= {"detail": decision.detail} if decision.detail else {}
    return facts | {"poll": work.polls}


def letter_facts(record: Record | NewRecord, dead: Dead) -> dict[str, object]:
    """The fields of the log line of a dead letter: its ids, where known, and why."""
    receiver, source_id, message_id = identity_of(record.value, record.headers)
    return {
        "receiver": receiver,
        "source_id": source_id,
        "message_id": message_id,
        "reason": dead.reason,
        "status": dead.last_status,
        "detail": dead.detail,
    }
