"""Invariants where receivers use options, payloads are erased, and jobs run. Each check yields violations.

Nothing is sent, or can be read, once it was erased. Jobs end, and account for all messages that they took. A delivery
has as many lives as jobs may have begun; a job for failed deliveries begins none for others.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping

from relay.control.projections import ReplayJob
from relay.domain.answer_token import issue_for_payload
from relay.domain.dead_letter import parse_dead_letter
from relay.domain.hop import decode_hop
from relay.domain.identity import DeliveryId
from relay.domain.reasons import ON_PURPOSE
from relay.log.port import Record
from tests.fakes.replaying import ReplayWorld
from tests.faults.simulation.options import NEWEST, THIN, OptionsStory, OptionsWire, payload_at

UNHEARD_S = 40.0
"""A process that is frozen has not heard of an erasure, and goes on before its groups do without it."""
Life = tuple[DeliveryId, int]


def wrong_erasures(wire: OptionsWire, story: OptionsStory) -> Iterator[str]:
    """A POST that had begun may continue. A message that is sent again afterwards is another payload, where the id is
    unknown."""
    for at, delivery, _ in wire.sent:
        erased = story.erased_at(delivery, story.times[delivery.message_id][-1])
        if erased is not None and at > erased + UNHEARD_S:
            yield f"erased: {delivery.message_id} was sent to {delivery.receiver} {at - erased:g} s after that"


async def wrong_reads(world: ReplayWorld, story: OptionsStory) -> list[str]:
    """At the end: thin receivers cannot read any more what was erased."""
    found = []
    for one in story.firsts.values():
        delivery = DeliveryId(THIN.removeprefix("/"), *one.id)
        if story.erased_at(delivery, story.times[one.message_id][-1]) is not None:
            url = f"http://relay/{issue_for_payload(b'secret', delivery, '', 2**40)}"
            if await payload_at(world, url) is not None:
                found.append(f"erased: {one.message_id} can still be read by {delivery.receiver}")
    return found


def wrong_windows(wire: OptionsWire, story: OptionsStory) -> Iterator[str]:
    """Where nothing was in the way: of those with one value that were sent together, one arrived at most."""
    if story.faults or story.interrupted:
        return
    firsts = {d.message_id for _, d, generation in wire.sent if d.receiver == NEWEST and not generation}
    for together in story.windows:
        arrived = firsts.intersection(together)
        if len(arrived) > 1:
            yield f"window: {sorted(arrived)} of one value were all sent to {NEWEST}"


def wrong_lives(world: ReplayWorld, story: OptionsStory) -> Iterator[str]:
    failed = set(_letters(world))
    for delivery, generation in _lives(world):
        replays = [job for job in story.jobs if job.action != "cancel" and job.covers(delivery)]
        if generation > len(replays):
            yield f"job: {delivery} is in life {generation}, and {len(replays)} jobs may have replayed it"
        elif generation and all(job.only_failed for job in replays) and (delivery, generation - 1) not in failed:
            yield f"job: {delivery} did not fail in life {generation - 1}, and was replayed"


def wrong_jobs(world: ReplayWorld, jobs: Mapping[str, ReplayJob], story: OptionsStory) -> Iterator[str]:
    """At the end."""
    for id, job in jobs.items():
        done, counted = job.progress, job.progress.counted
        took = done.sent + sum(done.skipped.values())
        if done.state == "failed" or (done.state == "stopped" and id not in story.stopped):
            yield f"job: {id} is {done.state}: {done.detail}"
        elif done.state == "done" and (took > (counted or 0) or (took != counted and job.order.action != "cancel")):
            yield f"job: {id} took {took} of {counted}: {done}"
    yield from _not_replayed(world, jobs, story)


def _not_replayed(world: ReplayWorld, jobs: Mapping[str, ReplayJob], story: OptionsStory) -> Iterator[str]:
    """A job that is done has begun another life for each letter that was there before it."""
    newest: Counter[DeliveryId] = Counter()
    letters = _letters(world)
    for delivery, generation in (*_lives(world), *letters):
        newest[delivery] = max(newest[delivery], generation)
    done = [
        job for job in story.jobs if job.action == "replay" and job.id in jobs and jobs[job.id].progress.state == "done"
    ]
    for (delivery, generation), (letter, *_) in letters.items():
        dead = parse_dead_letter(letter.headers)
        for job in done:
            is_its = job.covers(delivery) and letter.timestamp_ms < job.at * 1000 and dead.omitted is None
            is_over = newest[delivery] > generation or dead.reason in ON_PURPOSE or letter.value is None
            if is_its and not is_over and story.erased_at(delivery, story.times[delivery.message_id][0]) is None:
                yield f"job: {job.id} is done, and did not replay {delivery}, which failed in life {generation}"


def _lives(world: ReplayWorld) -> set[Life]:
    hops = [decode_hop(record.headers) for topic in _lanes(world) for record in world.broker.written(topic)]
    return {(hop.delivery, hop.generation) for hop in hops}


def _lanes(world: ReplayWorld) -> list[str]:
    topics = world.topics
    return [topic for lane in world.lanes() for topic in (topics.to_receiver(lane), topics.pending(lane))]


def _letters(world: ReplayWorld) -> Mapping[Life, list[Record]]:
    """Of deliveries; oldest first."""
    found: dict[Life, list[Record]] = defaultdict(list)
    lanes = _lanes(world)
    for letter in world.broker.written(world.topics.failed_messages):
        if parse_dead_letter(letter.headers).stage in lanes:
            hop = decode_hop(letter.headers)
            found[hop.delivery, hop.generation].append(letter)
    return found
