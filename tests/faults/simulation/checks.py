"""Invariants that hold at every moment of a simulation, and at its end. Each check yields violations."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping

from relay.config.limits import lanes_budget
from relay.domain.dead_letter import identity_of, parse_dead_letter
from relay.domain.hop import decode_hop
from relay.domain.identity import DeliveryId
from relay.domain.message import parse_message
from relay.domain.reasons import CANCELLED, DISCARDED
from relay.domain.route import marker_in
from relay.domain.topics import SHARED
from relay.engine.parked_copy import parked_key
from relay.log.port import Record
from relay.state.rows import callback_row, delivery_row
from tests.fakes.state_numbers import Numbers
from tests.fakes.surroundings import most_in
from tests.fakes.world import Process, World
from tests.faults.numbers import holes, wrong_numbers
from tests.faults.simulation.outside import Wire
from tests.faults.simulation.story import Story, value_at
from tests.faults.simulation.timed import ended_early, wrong_letters, wrong_times, wrong_windows
from workers.delivery import can_be_asked

GIVEN_UP = frozenset({"backlog_full", "callback_exhausted"})
GIVEN = frozenset({CANCELLED, DISCARDED, "rejected"})
BATCHED = frozenset({"/batches", "/lists"})
ERASED = None
"""In place of a payload."""
NOBODY = "-"
"""In place of the receiver, in a notice about a message that never got one."""


def wrongs_now(world: World, wire: Wire, story: Story) -> list[str]:
    """Whatever is wrong at this moment."""
    return [
        *_commits(world, wire),
        *_arrivals(world, wire, story),
        *_order(world, wire, story),
        *_numbers(world, wire),
        *_caps(world, wire),
        *_letters(world, story),
        *_results(world, wire),
        *wrong_times(wire, story),
        *wrong_letters(world, wire, story),
        *wrong_windows(wire, story),
    ]


def over_budget(world: World, process: Process) -> Iterator[str]:
    """Memory: the budget, and of each lane one record, and a parked one."""
    held, budget = process.held(), lanes_budget(world.settings)
    if sum(map(sum, held.values())) > budget + sum(2 * max(sizes) for sizes in held.values()):
        yield f"memory: {held} of {budget} bytes"


def over_parked(world: World, story: Story, processes: int) -> Iterator[str]:
    """Each process that looked in the same second may have found the same room; records that are put back after a loss
    need no room."""
    count = sum(tag.parked(owner).retries for tag in world.state._tags for owner in tag.owners())
    if count > processes * world.settings.parked_total and not story.losses:
        yield f"parked: {count} of {world.settings.parked_total}, by {processes} processes"


# I2: each committed record has an acknowledged successor


def _commits(world: World, wire: Wire) -> Iterator[str]:
    successors = _Successors(world, wire)
    for topic, group in _groups(world).items():
        for at in world.broker.partitions_of(topic):
            for record in world.broker[at].written(world.broker.finished(group, at)):
                for missing in successors.missing(topic, record):
                    yield f"I2: {topic}/{record.offset} is committed, and {missing} has no successor"


class _Successors:
    """The records that say what became of others, and the callbacks that did."""

    def __init__(self, world: World, wire: Wire) -> None:
        topics = world.topics
        self._topics = topics
        lanes = world.lanes()
        self._lanes, self._pending = list(map(topics.to_receiver, lanes)), list(map(topics.pending, lanes))
        self._parked = {record.key for record in world.parked_copies()}
        self._of: dict[str, dict[DeliveryId, int]] = {
            topic: _generations(world, topic) for topic in (*self._lanes, *self._pending, topics.to_sender)
        }
        self._dead: dict[tuple[str, str, str], int] = {}
        self._refused: set[tuple[str | None, bytes | None]] = set()
        for letter in world.broker.written(topics.failed_messages):
            self._bury(letter)
        self._called = returned(wire)

    def _bury(self, letter: Record) -> None:
        receiver, _, message = identity_of(letter.value, letter.headers)
        stage = parse_dead_letter(letter.headers).stage
        if stage == self._topics.from_sender:
            self._refused.add((message, letter.value))
        else:
            generation = int(dict(letter.headers)["relay-generation"])
            key = (stage, message or "", receiver or "")
            self._dead[key] = max(self._dead.get(key, 0), generation)

    def missing(self, topic: str, record: Record) -> Iterator[str]:
        """Obligations of this record that nothing fulfils."""
        if topic == self._topics.from_sender:
            yield from self._unrouted(record)
        elif topic == self._topics.to_sender:
            yield from self._uncalled(record)
        elif topic in self._lanes:
            yield from self._undelivered("to_receiver", topic, record, self._pending)
        elif topic in self._pending:
            yield from self._undelivered("pending", topic, record, [])

    def _unrouted(self, record: Record) -> Iterator[str]:
        if marker_in(record.headers) is not None:
            return
        message = parse_message(record.value, record.headers)
        if not self._refused.isdisjoint({(message.message_id, record.value), (message.message_id, ERASED)}):
            return
        for name in message.receivers or ():
            delivery = DeliveryId(name, *message.id)
            if not any(delivery in self._of[lane] for lane in self._lanes):
                yield f"{message.message_id} for {name}"

    def _undelivered(self, stage: str, topic: str, record: Record, further: list[str]) -> Iterator[str]:
        hop = decode_hop(record.headers)
        delivery, generation = hop.delivery, hop.generation
        if parked_key(stage, delivery_row(delivery)) in self._parked:
            return
        reached = [self._of[one].get(delivery, -1) for one in (*further, self._topics.to_sender)]
        reached.append(self._dead.get((topic, delivery.message_id, delivery.receiver), -1))
        replayed = max(self._of[one].get(delivery, -1) for one in self._lanes)
        if max(reached) < generation and replayed <= generation:
            yield f"{delivery.message_id} for {delivery.receiver}"

    def _uncalled(self, record: Record) -> Iterator[str]:
        hop = decode_hop(record.headers)
        row = callback_row(hop.delivery, hop.generation, failed=hop.outcome == "failed")
        called = (hop.delivery.message_id, hop.delivery.receiver, str(hop.generation)) in self._called
        key = (self._topics.to_sender, hop.delivery.message_id, hop.delivery.receiver)
        called = called or self._dead.get(key, -1) >= hop.generation
        if not called and parked_key("to_sender", row) not in self._parked:
            yield f"the callback of {hop.delivery.message_id} for {hop.delivery.receiver}"


def _generations(world: World, topic: str) -> dict[DeliveryId, int]:
    """The highest generation of each delivery in a topic."""
    found: dict[DeliveryId, int] = {}
    for record in world.broker.written(topic):
        hop = decode_hop(record.headers)
        found[hop.delivery] = max(found.get(hop.delivery, 0), hop.generation)
    return found


def returned(wire: Wire) -> set[tuple[str, str, str]]:
    """Message, receiver and generation of each callback."""
    return {
        (headers["relay-message-id"], headers["relay-receiver"], headers["webhook-id"].rpartition("_")[2])
        for headers in wire.callbacks()
    }


def _groups(world: World) -> dict[str, str]:
    topics = world.topics
    groups = {topic: group for topic, group in topics.fixed_groups().items() if topic != topics.failed_messages}
    for lane in world.lanes():
        groups |= topics.lane_groups(lane)
    return groups


# I3 and I4: what arrives, how often, and in which order


def _arrivals(world: World, wire: Wire, story: Story) -> Iterator[str]:
    counted: Counter[tuple[str, str, str]] = Counter()
    for path, headers, body in wire.deliveries():
        message = headers["ce-id"]
        counted[path, message, headers["relay-generation"]] += 1
        if body not in _bodies(path, message, story):
            yield f"{message} arrived at {path} with other bytes"
    asked = {f"/{name}" for name, one in world.known.receivers().items() if can_be_asked(one)}
    for (path, message, generation), copies in counted.items():
        if copies > (1 if path in asked else story.copies(message)):
            yield f"I3: {message} in generation {generation} arrived {copies} times at {path}"


def _bodies(path: str, message: str, story: Story) -> set[bytes]:
    """Bodies that may arrive there. A CI gets requests in its own form; in a batch, blanks behind a payload are
    ignored."""
    payloads = story.payloads(message)
    if path in BATCHED:
        return {payload.rstrip() for payload in payloads}
    branch = json.dumps({"branch": message}, separators=(",", ":"), ensure_ascii=False).encode()
    return {branch} if payloads and path == "/ci" else payloads


def _order(world: World, wire: Wire, story: Story) -> Iterator[str]:
    """First arrivals of a source, or of those with the same value, at a receiver; a replay is none, and a delayed
    message has left the order."""
    newest: dict[tuple[str, str, str | None], int] = {}
    seen: set[tuple[str, str]] = set()
    known = world.known.receivers()
    for path, headers, body in wire.deliveries():
        message, source = headers["ce-id"], headers["ce-source"]
        by = known[path.removeprefix("/")].ordering
        line = path, source, value_at(body, by) if by.startswith("/") else None
        left = headers.get("relay-out-of-order") == "true" or not story.has_order(message, path.removeprefix("/"))
        if headers["relay-generation"] == "0" and (path, message) not in seen and not left:
            seen.add((path, message))
            number = int(message.rpartition("-")[2])
            if number < newest.get(line, -1):
                yield f"I4: {message} arrived at {path} after a later one of its source"
            newest[line] = max(number, newest.get(line, -1))


# I10: numbers of a receiver that gets one message at a time


def _numbered(world: World, wire: Wire) -> Iterator[tuple[str, list[Mapping[str, str]]]]:
    for name, one in world.known.receivers().items():
        if one.ordering == "receiver":
            yield name, [headers for path, headers, _ in wire.deliveries() if path == f"/{name}"]


def _numbers(world: World, wire: Wire) -> Iterator[str]:
    for name, arrived in _numbered(world, wire):
        yield from (f"I10: at {name}, {wrong}" for wrong in wrong_numbers(arrived))


def _holes(world: World, wire: Wire) -> Iterator[str]:
    for name, arrived in _numbered(world, wire):
        owner = f"r:{name}"
        if missing := holes(arrived, world.state._of(owner).rows.numbers.get(owner, Numbers())):
            yield f"I10: {name} misses {sorted(missing)}, which no gap names"


# I9: how many at a time, and how often


def _caps(world: World, wire: Wire) -> Iterator[str]:
    for name, one in world.known.receivers().items():
        post, path = one.post, f"/{name}"
        if wire.most[path] > post.max_in_flight:
            yield f"I9: {wire.most[path]} POSTs were under way at {name}, which takes {post.max_in_flight}"
        most = most_in(wire.starts[path], post.window_size)
        if post.rate_limit is not None and most > post.rate_limit:
            yield f"I9: {most} POSTs to {name} began within {post.window_size:g} s, of {post.rate_limit}"


# I7 and I8: results


def _letters(world: World, story: Story) -> Iterator[str]:
    shared = world.topics.to_receiver(SHARED), world.topics.pending(SHARED)
    for letter in world.broker.written(world.topics.failed_messages):
        receiver, source, message = identity_of(letter.value, letter.headers)
        dead = parse_dead_letter(letter.headers)
        reason, stage = dead.reason, dead.stage
        key = receiver if stage in shared else source
        is_answer = stage == world.topics.to_sender
        if message is None or (not story.holds(message, letter.value) and not is_answer):
            yield f"I7: the dead letter of {message} holds other bytes"
        elif letter.key != (key or "").encode():
            yield f"I7: the dead letter of {message} has another key"
        elif reason in GIVEN_UP and not story.is_bounded:
            yield f"I7: {message} died of {reason}"
        elif reason in GIVEN and not story.allows(reason, message, receiver or ""):
            yield f"I7: {message} for {receiver} died of {reason}, which nobody asked for"


def _results(world: World, wire: Wire) -> Iterator[str]:
    arrived = {(headers["ce-id"], path) for path, headers, _ in wire.deliveries()}
    for headers in wire.callbacks():
        message, receiver = headers["relay-message-id"], headers["relay-receiver"]
        if headers["relay-outcome"] != "failed" and (message, f"/{receiver}") not in arrived:
            yield f"I8: {message} was answered for {receiver}, and never arrived there"


# the end


def wrongs_at_rest(world: World, wire: Wire, story: Story, faultless: Mapping[tuple[str, str], set[str]]) -> list[str]:
    """`faultless`: the ends that the same messages came to when nothing went wrong."""
    ends, given_up, early = wire.results(), _given_up(world), ended_early(world)
    wrong = list(_holes(world, wire))
    wrong += [
        f"{message} for {receiver} ended as {ends.get((message, receiver))} instead of {end}"
        for (message, receiver), end in faultless.items()
        if ends.get((message, receiver)) != end
        and not ((message, receiver) in early and ends.get((message, receiver), {""}) <= end | {"failed"})
        and not (receiver == NOBODY and story.losses)
        and (message, receiver) not in given_up
    ]
    wrong += [f"{message} for {receiver} was never sent" for message, receiver in ends.keys() - faultless.keys()]
    known = returned(wire)
    wrong += [
        f"{message} for {receiver} has no end in generation {generation}"
        for (message, receiver), generation in story.generations.items()
        if (message, receiver, str(generation)) not in known and (message, receiver) not in given_up
    ]
    return wrong


def _given_up(world: World) -> set[tuple[str, str]]:
    """Deliveries that were given up because parking was full."""
    found = set()
    for letter in world.broker.written(world.topics.failed_messages):
        if parse_dead_letter(letter.headers).reason in GIVEN_UP:
            receiver, _, message = identity_of(letter.value, letter.headers)
            found.add((message or "", receiver or NOBODY))
    return found
