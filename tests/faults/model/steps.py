"""The steps of the three workers, each one call of a port: what the next step is in memory, the rest is in the world.

FromSender:  arrive -> append -> mark -> commit
ToReceiver:  intake -> begin -> post -> settle -> append -> mark -> commit; in doubt begin -> ask -> begin
ToSender:    intake -> begin and post -> settle -> mark -> commit
"""

from collections.abc import Iterator
from typing import NamedTuple

from tests.faults.model.world import (
    ARRIVED,
    DONE,
    ENQUEUED,
    NOBODY,
    NOTHING,
    PUBLISHED,
    RESULT,
    SENDING,
    SENDING_DEAD,
    SENDING_OWNER,
    SENDING_ZOMBIE,
    Rules,
    Work,
    Worker,
    World,
    changed,
)

ATTEMPT_OF = {"to_receiver": SENDING_OWNER, "zombie": SENDING_ZOMBIE}
OTHER = {"to_receiver": "zombie", "zombie": "to_receiver"}
OUTCOME_STORED = frozenset(("append", "mark", "done", "twin"))
STILL_COUNTS = frozenset(("wait", "no answer", "settle", "append", "mark", "release"))
"""What a fenced lane goes on with: what is under way, so that its outcome is known."""


class Step(NamedTuple):
    """One step of a worker; `calls`: the names of its calls, without those that the model leaves out."""

    worker: Worker
    calls: tuple[str, ...]
    after: World


def steps(w: World, rules: Rules, workers: frozenset[Worker]) -> Iterator[Step]:
    """Everything that some of `workers` can do now."""
    if "from_sender" in workers:
        yield from _from_sender(w, rules)
    if "to_receiver" in workers:
        yield from _deliver(w, rules, "to_receiver")
        if w.zombie:
            yield from _deliver(w, rules, "zombie")
    if "to_sender" in workers:
        yield from _to_sender(w, rules)


# --- FromSender -------------------------------------------------------------------------------------------------


def _from_sender(w: World, rules: Rules) -> Iterator[Step]:
    name: Worker = "from_sender"
    first, second = ("append", "mark") if rules.keep("mark_before_produce") else ("mark", "append")
    if len(w.from_sender) < len(w.sent):
        yield Step(name, ("arrive",), _arrived(w, w.sent[len(w.from_sender)], first))
    for n, (m, pc) in enumerate(w.from_sender):
        if pc == "append" and not _before(w.from_sender[:n], "append"):
            after = _next(w, name, n, "done" if second == "append" else second)
            yield Step(name, ("append",), after._replace(hops=(*w.hops, m)))
        elif pc == "mark" and not _before(w.from_sender[:n], "append", "mark"):
            after = _next(w, name, n, "done" if second == "mark" else second)
            yield Step(name, ("mark",), after._replace(messages=changed(w.messages, m, ENQUEUED)))
    yield from _commit(w, name)


def _arrived(w: World, m: int, then: str) -> World:
    known = w.messages[m]
    work = Work(m, "done" if known == ENQUEUED else then)
    rows = w.messages if known == ENQUEUED else changed(w.messages, m, ARRIVED)
    return w._replace(from_sender=(*w.from_sender, work), messages=rows)


# --- ToReceiver, the owner of the lane or a former one ----------------------------------------------------------


def _deliver(w: World, rules: Rules, name: Worker) -> Iterator[Step]:
    works = w.works(name)
    if name == "to_receiver" and len(works) < len(w.hops):
        m = w.hops[len(works)]
        yield Step(name, ("intake",), w._replace(to_receiver=(*works, Work(m, _looked_up(w, rules, works, m)))))
    for n, (m, pc) in enumerate(works):
        if pc == "read":
            if not _before(works[:n], "read"):
                yield Step(name, ("intake",), _next(w, name, n, _looked_up(w, rules, works[:n], m)))
        elif pc in ("begin", "take over", "take over!"):
            if all(work.next in OUTCOME_STORED for work in works[:n]):
                begun = _begin(w, rules, name, n, m)
                if begun is not None:
                    yield Step(name, ("begin",), begun)
        elif pc.startswith("post"):
            wire = tuple(sorted((*w.wire[m], ATTEMPT_OF[name])))
            after = _next(w, name, n, "wait")
            yield Step(name, ("post",), after._replace(wire=changed(w.wire, m, wire)))
        elif pc in ("ask", "ask!"):
            proof = "take over" + pc.removeprefix("ask")
            yield Step(name, ("ask",), _next(w, name, n, "settle" if w.seen[m] else proof))
        elif pc.startswith("release"):
            yield Step(name, ("settle",), _taken_back(w, name, n, m, pc[-1]))
        elif pc == "no answer":
            after = _next(w, name, n, "begin") if rules.asked else _taken_back(w, name, n, m, NOTHING)
            yield Step(name, ("settle",), after)
        elif pc == "settle":
            yield Step(name, ("settle",), _settled(w, name, n, m))
        elif pc == "append" and not _before(works[:n], "append"):
            yield Step(name, ("append",), _next(w, name, n, "mark")._replace(answers=(*w.answers, m)))
        elif pc == "mark" and not _before(works[:n], "append", "mark"):
            rows = w.deliveries if w.deliveries[m] == DONE else changed(w.deliveries, m, PUBLISHED)
            yield Step(name, ("mark",), _next(w._replace(deliveries=rows), name, n, "done"))
    if name == "to_receiver":
        yield from _commit(w, name)


def _looked_up(w: World, rules: Rules, before: tuple[Work, ...], m: int) -> str:
    row = w.deliveries[m]
    if row in (PUBLISHED, DONE) or (row == RESULT and not rules.keep("skip_what_has_a_result")):
        return "done"
    if any(work.message == m and work.next != "done" for work in before):
        return "twin"  # ends with the one that is here already
    return "append" if row == RESULT else "begin"


def _begin(w: World, rules: Rules, name: Worker, n: int, m: int) -> World | None:
    """None where it has to wait: an earlier POST may still arrive."""
    if name == "zombie" and w.fenced and rules.keep("no_fence"):
        return _clean(w._replace(zombie=tuple(work for work in w.zombie if _still_counts(work))))
    if name == "to_receiver":
        w = w._replace(fenced=True)
    row = w.deliveries[m]
    if row in (PUBLISHED, DONE):
        return _next(w, name, n, "done")
    if row == RESULT:
        return _next(w, name, n, "append")
    if row in SENDING or (rules.asked and w.in_doubt and rules.keep("no_suspicion")):
        if rules.keep("no_settling") and w.wire[m]:
            return None  # an earlier POST can still arrive
        if rules.keep("no_lease"):
            w = _expire(w, OTHER[name], m)
            row = w.deliveries[m]
        if w.works(name)[n].next != "take over":
            return _next(w, name, n, "ask" if rules.asked else "take over")
    if rules.keep("stale_proof"):
        w = _with_proof(w, OTHER[name], m, outdated=True)
    return _next(w, name, n, "post" + row)._replace(deliveries=changed(w.deliveries, m, ATTEMPT_OF[name]))


def _with_proof(w: World, other: str, m: int, *, outdated: bool) -> World:
    """What the other owner has heard about an attempt, or is about to hear, is no proof once there is a later one; it
    is again when that one was never made."""
    proofs = (("ask", "ask!"), ("take over", "take over!"))
    then = dict(proofs) if outdated else {late: good for good, late in proofs}
    works = tuple(Work(m, then.get(work.next, work.next)) if work.message == m else work for work in w.works(other))
    return w.working(other, works)


def _still_counts(work: Work) -> bool:
    return work.next.rstrip("".join(SENDING) + NOTHING) in STILL_COUNTS


def _expire(w: World, other: str, m: int) -> World:
    """So much time has passed that what the other owner has begun, and not sent yet, it will not send any more."""
    works = tuple(
        Work(m, "release" + work.next[-1]) if work.message == m and work.next.startswith("post") else work
        for work in w.works(other)
    )
    return w.working(other, works)


def _taken_back(w: World, name: Worker, n: int, m: int, before: str) -> World:
    """The attempt is settled without an outcome, where it still is the current one."""
    mine = w.deliveries[m] == ATTEMPT_OF[name]
    if mine:
        w = _with_proof(w, OTHER[name], m, outdated=False)
    return _next(w._replace(deliveries=changed(w.deliveries, m, before) if mine else w.deliveries), name, n, "begin")


def _settled(w: World, name: Worker, n: int, m: int) -> World:
    """An outcome counts from whoever brings it; what is beyond it stays."""
    row = w.deliveries[m]
    if row in (PUBLISHED, DONE):
        return _next(w, name, n, "done")
    return _next(w._replace(deliveries=changed(w.deliveries, m, RESULT)), name, n, "append")


# --- ToSender ---------------------------------------------------------------------------------------------------


def _to_sender(w: World, rules: Rules) -> Iterator[Step]:
    """To call the sender twice is allowed: so it does not matter whether an earlier call was begun."""
    name: Worker = "to_sender"
    if len(w.to_sender) < len(w.answers):
        m = w.answers[len(w.to_sender)]
        pc = "done" if w.deliveries[m] == DONE else "mark" if w.callbacks[m] == RESULT else "begin"
        yield Step(name, ("intake",), w._replace(to_sender=(*w.to_sender, Work(m, pc))))
    for n, (m, pc) in enumerate(w.to_sender):
        if pc == "begin":
            after = _next(w, name, n, "settle")
            yield Step(name, ("begin", "post"), after._replace(back=changed(w.back, m, True)))
        elif pc == "settle":
            after = _next(w, name, n, "mark")
            yield Step(name, ("settle",), after._replace(callbacks=changed(w.callbacks, m, RESULT)))
        elif pc == "mark":
            yield Step(name, ("mark",), _ended(_next(w, name, n, "done"), rules, m))
    yield from _commit(w, name)


def _ended(w: World, rules: Rules, m: int) -> World:
    w = w._replace(callbacks=changed(w.callbacks, m, NOTHING))
    if rules.keep("delete_at_done"):
        return w._replace(deliveries=changed(w.deliveries, m, DONE))
    return w._replace(deliveries=changed(w.deliveries, m, NOTHING), messages=changed(w.messages, m, NOTHING))


# --- works ------------------------------------------------------------------------------------------------------


def _next(w: World, name: Worker, n: int, pc: str) -> World:
    """The `n`-th work of `name` goes on to `pc`; a twin ends with it."""
    works = w.works(name)
    m = works[n].message
    if pc == "done" and name != "from_sender":
        works = tuple(Work(m, "done") if work == (m, "twin") else work for work in works)
    works = (*works[:n], Work(m, pc), *works[n + 1 :])
    if name == "zombie":
        works = tuple(work for work in works if work.next != "done")
        return _clean(w._replace(zombie=works))
    return w.working(name, works)


def _clean(w: World) -> World:
    """Without a zombie nobody can tell that there was one."""
    return w if w.zombie else orphaned(w, SENDING_ZOMBIE)._replace(fenced=True)


def orphaned(w: World, attempt: str, heir: str = SENDING_DEAD) -> World:
    """Whoever made these attempts is gone; `heir`: who has them now."""
    waits = NOBODY if heir == SENDING_DEAD else heir
    return w._replace(
        deliveries=tuple(heir if row == attempt else row for row in w.deliveries),
        wire=tuple(tuple(sorted(waits if who == attempt else who for who in posts)) for posts in w.wire),
    )


def _before(works: tuple[Work, ...], *pcs: str) -> bool:
    """Whether some of these works have to go first: batches are appended, and marked, one after the other."""
    return any(work.next in pcs for work in works)


def _commit(w: World, name: Worker) -> Iterator[Step]:
    """The watermark, when all that was read has ended. It may be committed earlier, but then only a crash can tell:
    see `uncommitted`."""
    works = w.works(name)
    if works and all(work.next == "done" for work in works):
        yield Step(name, ("commit",), w.working(name, (), w.log(name)[len(works) :]))


def uncommitted(w: World, name: str, rules: Rules) -> Iterator[tuple[int, ...]]:
    """What a new owner may have to read again: the watermark is anywhere before the first work that has not ended."""
    works = w.works(name)
    ended = [work.next == "done" for work in works]
    watermark = ended.index(False) if False in ended else len(ended)
    if not rules.keep("no_watermark"):
        watermark = max((n + 1 for n, end in enumerate(ended) if end), default=0)
    yield from (w.log(name)[committed:] for committed in range(watermark + 1))
