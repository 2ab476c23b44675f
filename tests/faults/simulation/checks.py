"""Invariants that hold at every moment of a simulation, and at its end. Each check yields violations."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping

from relay.config.limits import lanes_budget
from relay.domain.dead_letter import identity_of, parse_dead_letter
from relay.domain.hop import Hop, decode_hop
from relay.domain.identity import DeliveryId
from relay.domain.message import parse_message
from relay.domain.reasons import CANCELLED, DISCARDED
from relay.domain.route import marker_in
from relay.domain.topics import SHARED
from relay.engine.parked_copy import life_key, parked_key
from relay.log.port import Coordinate, Record
from relay.state.rows import callback_row, delivery_row
from tests.fakes.state_numbers import Numbers
from tests.fakes.surroundings import most_in
from tests.fakes.world import Process, World
from tests.faults.numbers import holes, wrong_numbers
from tests.faults.simulation.outside import Wire
from tests.faults.simulation.story import Story, value_at
from tests.faults.simulation.timed import NO_ROOM, ended_early, wrong_letters, wrong_times, wrong_windows
from workers.delivery import can_be_asked

GIVEN_UP = frozenset({NO_ROOM, "callback_exhausted"})
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
        *_caps(world, wire, story),
        *_letters(world, wire, story),
        *_results(world, wire, story),
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
    most, each = world.settings.parked_total, world.settings.parked_per_receiver
    parked = {owner: tag.parked(owner).retries for tag in world.state._tags for owner in tag.owners()}
    over = {owner: count for owner, count in parked.items() if owner.startswith("r:") and count > processes * each}
    if (over or sum(parked.values()) > processes * most) and not story.losses:
        yield f"parked: {parked}, of {most} and {each} of each receiver, by {processes} processes"


# I2: each committed record has an acknowledged successor


def _commits(world: World, wire: Wire) -> Iterator[str]:
    successors = _Successors(world, wire)
    groups = _groups(world)
    for at in world.broker.ends():
        if at.topic in groups:
            for record in world.broker[at].written(world.broker.finished(groups[at.topic], at)):
                for missing in successors.missing(at.topic, record):
                    yield f"I2: {at.topic}/{record.offset} is committed, and {missing} has no successor"


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
        hops = [decode_hop(record.headers) for record in world.broker.written(topics.to_sender)]
        self._noticed = {(hop.delivery, hop.generation) for hop in hops if hop.outcome == "failed"}

    def _bury(self, letter: Record) -> None:
        receiver, _, message = identity_of(letter.value, letter.headers)
        stage = parse_dead_letter(letter.headers).stage
        if stage == self._topics.from_sender:
            self._refused.add((message, letter.value))
        else:
            generation = int(_generation(letter))
            key = (stage, message or "", receiver or "")
            self._dead[key] = max(self._dead.get(key, 0), generation)

    def missing(self, topic: str, record: Record) -> Iterator[str]:
        """Obligations of this record that nothing fulfils."""
        if topic == self._topics.from_sender:
            yield from self._unrouted(record)
        elif topic == self._topics.to_sender:
            yield from self._uncalled(record)
        elif topic == self._topics.failed_messages:
            yield from self._unnoticed(record)
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
        row = delivery_row(delivery)
        if not self._parked.isdisjoint({parked_key(stage, row), life_key(stage, row, generation)}):
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

    def _unnoticed(self, letter: Record) -> Iterator[str]:
        receiver, source, message = identity_of(letter.value, letter.headers)
        dead, generation = parse_dead_letter(letter.headers), int(_generation(letter))
        name = None if dead.reason == "id_conflict" else receiver
        delivery = DeliveryId(name or NOBODY, source or "", message or "")
        if dead.stage != self._topics.to_sender and (delivery, generation) not in self._noticed:
            yield f"the notice that {message} failed for {receiver}"


def _generations(world: World, topic: str) -> dict[DeliveryId, int]:
    """The highest generation of each delivery in a topic."""
    found: dict[DeliveryId, int] = {}
    for record in world.broker.written(topic):
        hop = decode_hop(record.headers)
        found[hop.delivery] = max(found.get(hop.delivery, 0), hop.generation)
    return found


def _generation(letter: Record) -> str:
    return dict(letter.headers).get("relay-generation", b"0").decode()


def returned(wire: Wire) -> set[tuple[str, str, str]]:
    """Message, receiver and generation of each callback."""
    return {
        (headers["relay-message-id"], headers["relay-receiver"], headers["webhook-id"].rpartition("_")[2])
        for headers in wire.callbacks()
    }


def _groups(world: World) -> dict[str, str]:
    topics = world.topics
    groups = dict(topics.fixed_groups())
    for lane in world.lanes():
        groups |= topics.lane_groups(lane)
    return groups


# I3 and I4: what arrives, how often, and in which order


def _arrivals(world: World, wire: Wire, story: Story) -> Iterator[str]:
    counted, attempts = Counter[tuple[str, str, str]](), Counter[tuple[str, str, str, str]]()
    for path, headers, body in wire.deliveries():
        message = headers["ce-id"]
        counted[path, message, headers["relay-generation"]] += 1
        attempts[path, message, headers["relay-generation"], headers["relay-attempt"]] += 1
        if body not in _bodies(path, message, story):
            yield f"{message} arrived at {path} with other bytes"
    asked = _asked(world)
    for (path, message, generation, attempt), copies in attempts.items():
        if copies > 1 and not story.losses:
            yield f"I3: {message} in generation {generation} arrived {copies} times at {path} as attempt {attempt}"
    for (path, message, generation), copies in counted.items():
        if copies > (1 if path in asked and message not in story.hurried else story.copies(message)):
            yield f"I3: {message} in generation {generation} arrived {copies} times at {path}"


def _asked(world: World) -> set[str]:
    """Paths of the receivers that can be asked whether they have a message."""
    return {f"/{name}" for name, one in world.known.receivers().items() if can_be_asked(one)}


def _bodies(path: str, message: str, story: Story) -> set[bytes]:
    """Bodies that may arrive there. A CI gets requests in its own form; in a batch, blanks behind a payload are
    ignored."""
    payloads = story.payloads(message)
    if path in BATCHED:
        return {payload.rstrip() for payload in payloads}
    branch = json.dumps({"branch": message}, separators=(",", ":"), ensure_ascii=False).encode()
    return {branch} if payloads and path == "/ci" else payloads


def _order(world: World, wire: Wire, story: Story) -> Iterator[str]:
    """First arrivals of a source, or of those with the same value, at a receiver: in their first lives as they were
    sent, and in all lives as they are in a partition of their lane. A delayed message has left the order."""
    newest: dict[tuple[object, ...], int] = {}
    known, places, seen = world.known.receivers(), _places(world), set[tuple[str, str, int]]()
    for path, headers, body in wire.deliveries():
        message, name, generation = headers["ce-id"], path.removeprefix("/"), int(headers["relay-generation"])
        left = headers.get("relay-out-of-order") == "true" or not story.has_order(message, name)
        if left or (name, message, generation) in seen:
            continue
        seen.add((name, message, generation))
        by = known[name].ordering
        line = path, headers["ce-source"], value_at(body, by) if by.startswith("/") else None
        at = places[name, message, generation]
        steps: list[tuple[tuple[object, ...], int]] = []
        if at is not None:
            steps.append(((*line, at.topic, at.partition), at.offset))
        if not generation:
            steps.append((line, int(message.rpartition("-")[2])))
        for each, number in steps:
            if number < newest.get(each, -1):
                yield f"I4: {message} in generation {generation} arrived at {path} after a later one of its source"
            newest[each] = max(number, newest.get(each, -1))


def _places(world: World) -> dict[tuple[str, str, int], Coordinate | None]:
    """By receiver, message and generation: its first record in its lane; None if it has one in another partition."""
    found: dict[tuple[str, str, int], Coordinate | None] = {}
    for lane in world.lanes():
        for record in world.broker.written(world.topics.to_receiver(lane)):
            hop, at = decode_hop(record.headers), record.coordinate
            key = hop.delivery.receiver, hop.delivery.message_id, hop.generation
            first = found.setdefault(key, at)
            if first is not None and first[:2] != at[:2]:
                found[key] = None
    return found


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


def _caps(world: World, wire: Wire, story: Story) -> Iterator[str]:
    """Until the state's clock is turned forward."""
    if story.hurried:
        return
    for name, one in world.known.receivers().items():
        post, path = one.post, f"/{name}"
        if wire.most[path] > post.max_in_flight:
            yield f"I9: {wire.most[path]} POSTs were under way at {name}, which takes {post.max_in_flight}"
        most = most_in(wire.starts[path], post.window_size)
        if post.rate_limit is not None and most > post.rate_limit:
            yield f"I9: {most} POSTs to {name} began within {post.window_size:g} s, of {post.rate_limit}"


# I7 and I8: results


def _letters(world: World, wire: Wire, story: Story) -> Iterator[str]:
    sent = {(path, message, "0") for _, path, message in wire.begun}
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
        elif reason == NO_ROOM and (f"/{receiver}", message, _generation(letter)) in sent and not story.losses:
            yield f"I7: {message} was sent to {receiver}, and given up for lack of room"
        elif reason in GIVEN and not story.allows(reason, message, receiver or ""):
            yield f"I7: {message} for {receiver} died of {reason}, which nobody asked for"


def _results(world: World, wire: Wire, story: Story) -> Iterator[str]:
    """An answer follows the arrival of its own life; where the receiver can be asked, also of an earlier one."""
    asked, brought, came = _asked(world), story.brought, Counter[tuple[str, str]]()
    arrived: dict[tuple[str, str], set[int]] = defaultdict(set)
    for path, headers, body in wire.posts:
        if path != "/callback":
            arrived[path, headers["ce-id"]].add(int(headers["relay-generation"]))
            continue
        message, name, id = headers["relay-message-id"], headers["relay-receiver"], headers["webhook-id"]
        came[message, id] += 1
        if headers["relay-outcome"] == "failed":
            continue
        receiver = f"/{name}"
        generation, lives = int(id.rpartition("_")[2]), arrived[receiver, message]
        is_known = receiver in asked and any(life < generation for life in lives)
        if generation not in lives and not is_known and (message, name) not in brought:
            yield f"I8: {message} was answered for {receiver} in generation {generation}, and never arrived there"
        if receiver != "/ci" and json.dumps({"built": message})[1:-1].encode() not in body:
            yield f"I8: {message} was answered for {receiver} with {body!r}"
    for (message, id), times in came.items():
        if times > 1 + story.faults + story.resent[message]:
            yield f"I8: {id} of {message} came {times} times"


# the end


def wrongs_at_rest(world: World, wire: Wire, story: Story, faultless: Mapping[tuple[str, str], set[str]]) -> list[str]:
    """`faultless`: the ends that the same messages came to when nothing went wrong."""
    ends, known, early = defaultdict(set, wire.results()), returned(wire), ended_early(world)
    for hop in _not_called(world):
        ends[hop.delivery.message_id, hop.delivery.receiver].add(hop.outcome or "")
        known.add((hop.delivery.message_id, hop.delivery.receiver, str(hop.generation)))
    wrong = [*_holes(world, wire), *_not_returned(wire, story)]
    if intents := world.state.intents():
        wrong.append(f"{intents} intents to park are left")
    wrong += [f"{message} for {receiver} was never sent" for message, receiver in ends.keys() - faultless.keys()]
    for (message, receiver), end in faultless.items():
        may_be = end | ({"failed"} if (message, receiver) in early else set())
        may_be |= {"answered"} if (message, receiver) in story.brought else set()
        is_forgotten = receiver == NOBODY and story.losses
        if not (ends[message, receiver] and ends[message, receiver] <= may_be) and not is_forgotten:
            wrong.append(f"{message} for {receiver} ended as {ends[message, receiver]} instead of {end}")
    wrong += [
        f"{message} for {receiver} has no end in generation {generation}"
        for (message, receiver), generation in story.generations.items()
        if (message, receiver, str(generation)) not in known
    ]
    return wrong


def _not_returned(wire: Wire, story: Story) -> Iterator[str]:
    """Answers that the relay took, and the sender did not get; those that came after another one may differ."""
    came: dict[tuple[str, str], list[bytes]] = defaultdict(list)
    for path, headers, body in wire.posts:
        if path == "/callback" and headers["relay-outcome"] == "answered":
            came[headers["relay-message-id"], headers["relay-receiver"]].append(body)
    for (receiver, _, message), answer, first in story.given:
        bodies = came[message, receiver]
        if not bodies or (first and answer not in bodies and not story.losses):
            yield f"I8: the answer {answer!r} of {receiver} to {message} was taken, and not returned"


def _not_called(world: World) -> Iterator[Hop]:
    """Results that were given up because too many were parked."""
    for letter in world.broker.written(world.topics.failed_messages):
        if parse_dead_letter(letter.headers).stage == world.topics.to_sender:
            yield decode_hop(letter.headers)
