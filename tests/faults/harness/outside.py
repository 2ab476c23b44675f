"""The world outside the relay, as a process of its own that never crashes: all receivers, and the senders' callbacks.

`python -m tests.faults.harness.outside --ledger FILE --receivers SPEC.json` prints `{"port": N}` as its first line.

`POST /r/<name>` is a delivery, `GET /r/<name>/<message id or webhook id>` its status endpoint: 200 with the answer, 202
while it is worked on, 404 for what never arrived. `GET /r/<name>/item/<message id>` and then `/build/<build>` are the
two steps in which a CI is asked. `POST /callback` takes results, and so does each other name that begins like that.
`PUT /control/<name>` changes how a receiver or callback behaves. Each arrival is in the ledger before it is answered.
Signatures are not looked at. Message ids are expected to be unique over all sources.
"""

import argparse
import asyncio
import math
import random
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final, Literal, NamedTuple
from urllib.parse import unquote

import msgspec
import uvloop

from relay.domain.exchange import Request
from relay.domain.hop import NO_RECEIVER
from relay.domain.requests import BATCH_HEADER
from tests.fakes.batches import messages_in
from tests.faults.harness.history import NOTHING, Arrival, Asked, Peak, Ping, Returned, Unheard, answer_to, digest_of
from tests.faults.harness.ledger import Ledger
from tests.faults.harness.serving import Connection, Incoming, listen

Mode = Literal["answer", "slow", "later", "builds", "hang", "fail", "lossy", "flaky"]
CALLBACK: Final = "callback"
"""How the callback is called in the spec and in `PUT /control/<name>`, where there may be more whose names begin like
that: no receiver may have such a name."""

_PING: Final = "relay.ping"
_BEAT_S: Final = 0.005


class Behaviour(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How POSTs are met. In every mode at most `rate` a second (null: any number) are; those above it get 429.

    `answer`, `slow`: 200 with the answer, after `seconds`. `later`: 202, and the status endpoint has the answer
    `seconds` after that. `builds`: 202 with the name of its item, which has a build after half of `seconds`; the build
    has the answer after `seconds`. `hang`: nothing, and nothing is processed. `fail`: 500, not processed. `lossy`: with
    the probability `chance` processed, and the connection closed without an answer; else as `answer`. `flaky`: likewise
    with one of a lost answer, a connection closed before anything is done, a 500 and a 503. `status`: whether there is
    a status endpoint; it also answers while POSTs hang or fail.
    """

    mode: Mode = "answer"
    seconds: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    rate: Annotated[float, msgspec.Meta(gt=0)] | None = None
    status: bool = True
    chance: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.5


class Reaction(NamedTuple):
    """What one POST meets. `status` None: no answer; then the connection hangs, or is closed when `cut`."""

    status: int | None
    processed: bool
    after_s: float = 0.0
    cut: bool = False
    retry_after_s: int | None = None


_LOST: Final = Reaction(None, processed=True, cut=True)
_FLAWS: Final = (
    _LOST,
    Reaction(None, processed=False, cut=True),
    Reaction(500, processed=False),
    Reaction(503, processed=False, retry_after_s=1),
)


class Pace:
    """At most so many in any second; in any 1/rate seconds one, for a rate below one."""

    def __init__(self) -> None:
        self._starts: deque[float] = deque()

    def wait_s(self, rate: float, now: float) -> float:
        """0 for one that may come now, and then counts; else how long until one may. `now`: monotonic seconds."""
        window_s = max(1.0, 1 / rate)
        starts = self._starts
        while starts and starts[0] <= now - window_s:
            starts.popleft()
        if len(starts) >= max(1, int(rate * window_s)):
            return starts[0] + window_s - now
        starts.append(now)
        return 0.0


def reaction(behaviour: Behaviour, chance: Callable[[], float]) -> Reaction:
    """What a POST meets, but for the rate. `chance` returns uniform samples of [0, 1)."""
    healthy = Reaction(200, processed=True, after_s=behaviour.seconds)
    match behaviour.mode:
        case "answer" | "slow":
            return healthy
        case "later" | "builds":
            return Reaction(202, processed=True)
        case "hang":
            return Reaction(None, processed=False)
        case "fail":
            return Reaction(500, processed=False)
        case "lossy":
            return _LOST if chance() < behaviour.chance else healthy
        case "flaky":
            return _FLAWS[int(chance() * len(_FLAWS))] if chance() < behaviour.chance else healthy


class Party:
    """A receiver, or the callback."""

    def __init__(self, behaviour: Behaviour, chance: Callable[[], float]) -> None:
        self.behaviour = behaviour
        self._chance = chance
        self._pace = Pace()
        self._answers: dict[str, tuple[float, bytes]] = {}
        self._under_way = self._peak = 0

    def begun(self) -> None:
        self._under_way += 1

    def ended(self) -> None:
        self._under_way -= 1

    def new_peak(self) -> int | None:
        """How many POSTs are under way, where those are more than ever before."""
        if self._under_way <= self._peak:
            return None
        self._peak = self._under_way
        return self._peak

    def meet(self, *, counts: bool) -> Reaction:
        """What the next POST meets. `counts`: towards the rate."""
        if counts and self.behaviour.rate is not None:
            wait_s = self._pace.wait_s(self.behaviour.rate, time.monotonic())
            if wait_s > 0:
                return Reaction(429, processed=False, retry_after_s=math.ceil(wait_s))
        return reaction(self.behaviour, self._chance)

    def work(self, names: tuple[str, ...], answer: bytes) -> None:
        """Process a message, which its status endpoint knows by `names` from now on. Its answer stays what it was."""
        takes_s = self.behaviour.seconds if self.behaviour.mode in ("later", "builds") else 0.0
        for name in filter(None, names):
            self._answers.setdefault(name, (time.monotonic() + takes_s, answer))

    def status_of(self, name: str) -> tuple[int, bytes]:
        """What its status endpoint says."""
        if not self.behaviour.status:
            return 405, b""
        ready_at, answer = self._answers.get(name, (math.inf, b""))
        if ready_at <= time.monotonic():
            return 200, answer
        return (404, b"") if ready_at == math.inf else (202, b"")

    def item_of(self, name: str) -> tuple[int, bytes]:
        """What the item of a message says, the first step: 404 for what never arrived."""
        if name not in self._answers:
            return 404, b""
        has_build = self._answers[name][0] - self.behaviour.seconds / 2 <= time.monotonic()
        return 200, msgspec.json.encode({"build": name} if has_build else {})


class Pulse:
    """Says since when this process may have stood still: what it reads now may have come right after that."""

    def __init__(self) -> None:
        self._last = self._before = time.monotonic()

    def late_s(self) -> float:
        """Since the beat before the last: after a standstill a loop has timers run before it reads."""
        return time.monotonic() - self._before

    async def run(self) -> None:
        while True:
            self._before, self._last = self._last, time.monotonic()
            await asyncio.sleep(_BEAT_S)


class Outside:
    """All parties, behind one port."""

    def __init__(self, spec: Mapping[str, Behaviour], ledger: Ledger, random_: random.Random) -> None:
        self._ledger = ledger
        self._pulse = Pulse()
        self._parties = {name: Party(behaviour, random_.random) for name, behaviour in spec.items()}
        self._parties.setdefault(CALLBACK, Party(Behaviour(), random_.random))

    async def beat(self) -> None:
        """For ever."""
        await self._pulse.run()

    def handle(self, request: Incoming, connection: Connection) -> None:
        """A request, whatever it wants."""
        match (request.method, *request.path.strip("/").split("/")):
            case ("POST", "r", name) if name in self._parties and not name.startswith(CALLBACK):
                self._deliver(name, request, connection)
            case ("POST", name) if name in self._parties and name.startswith(CALLBACK):
                self._take_back(name, request, connection)
            case ("GET", "r", name, *step, asked_for) if name in self._parties and step in ([], ["item"], ["build"]):
                party = self._parties[name]
                status, body = (party.item_of if step == ["item"] else party.status_of)(unquote(asked_for))
                self._ledger.write(Asked(time.time(), name, unquote(asked_for), status))
                connection.answer(status, body)
            case ("PUT", "control", name) if name in self._parties:
                connection.answer(*self._control(name, request.body))
            case _:
                connection.answer(404)

    def _deliver(self, name: str, request: Incoming, connection: Connection) -> None:
        party, headers = self._parties[name], request.headers
        is_ping = unquote(headers.get("ce-type", "")) == _PING
        met = party.meet(counts=not is_ping)
        if is_ping:
            self._ledger.write(Ping(time.time(), name, met.status))
            _react(met, b"", connection)
            return
        self._begin(name, connection)
        if BATCH_HEADER in headers:
            self._deliver_batch(name, request, connection, met)
            return
        arrival = _arrival(name, request, met, self._pulse.late_s())
        answer = answer_to(arrival.key, arrival.digest)
        self._ledger.write(arrival)
        if met.processed:
            party.work((arrival.message_id, headers.get("webhook-id", "")), answer)

        def unheard() -> None:
            post = (name, arrival.source, arrival.message_id, arrival.attempt, arrival.generation)
            self._ledger.write(Unheard(time.time(), *post))

        item = msgspec.json.encode({"item": arrival.message_id}) if party.behaviour.mode == "builds" else b""
        _react(met, answer if met.status == 200 else item, connection, unheard)

    def _deliver_batch(self, name: str, request: Incoming, connection: Connection, met: Reaction) -> None:
        """All of a batch meet the same; what is answered is a list of all answers."""
        party, late_s, listed, arrivals = self._parties[name], self._pulse.late_s(), [], []
        for one in messages_in(Request("POST", request.path, tuple(request.headers.items()), request.body)):
            headers = dict(one.headers)
            arrival = _arrival(name, request._replace(headers=headers, body=one.body), met, late_s)
            answer = answer_to(arrival.key, arrival.digest)
            self._ledger.write(arrival)
            if met.processed:
                party.work((arrival.message_id, headers["webhook-id"]), answer)
            listed.append({"id": arrival.message_id, "status": 200, "body": msgspec.Raw(answer)})
            arrivals.append(arrival)

        def unheard() -> None:
            for each in arrivals:
                post = (name, each.source, each.message_id, each.attempt, each.generation)
                self._ledger.write(Unheard(time.time(), *post))

        _react(met, msgspec.json.encode(listed) if met.status == 200 else b"", connection, unheard)

    def _begin(self, name: str, connection: Connection) -> None:
        party = self._parties[name]
        party.begun()
        connection.ended = party.ended
        asyncio.get_running_loop().call_soon(self._note_peak, name)  # behind the ends that came together with it

    def _note_peak(self, name: str) -> None:
        peak = self._parties[name].new_peak()
        if peak is not None:
            self._ledger.write(Peak(time.time(), name, peak))

    def _take_back(self, name: str, request: Incoming, connection: Connection) -> None:
        """A result that is not processed is none; a ping of a callback neither."""
        is_ping = unquote(request.headers.get("ce-type", "")) == _PING
        met = self._parties[name].meet(counts=not is_ping)
        if is_ping:
            self._ledger.write(Ping(time.time(), name, met.status))
        else:
            self._begin(name, connection)
            if met.processed:
                self._ledger.write(_returned(name, request, met.status))
        _react(met, b"", connection)

    def _control(self, name: str, body: bytes) -> tuple[int, bytes]:
        """Change what `body`, a JSON object, names of the behaviour; the rest stays."""
        party = self._parties[name]
        try:
            changes = msgspec.json.decode(body, type=dict[str, object])
            party.behaviour = msgspec.convert({**msgspec.to_builtins(party.behaviour), **changes}, Behaviour)
        except msgspec.MsgspecError as error:
            return 400, msgspec.json.encode({"error": str(error)})
        return 200, msgspec.json.encode(party.behaviour)


def _react(met: Reaction, body: bytes, connection: Connection, unheard: Callable[[], None] = lambda: None) -> None:
    """Answer as `met` says; `unheard` is called when the connection is gone by then."""
    status = met.status
    if status is None:
        if met.cut:
            connection.close()
        return

    def answer() -> None:
        if connection.is_open:
            connection.answer(status, body, retry_after_s=met.retry_after_s)
        else:
            unheard()

    if met.after_s:
        asyncio.get_running_loop().call_later(met.after_s, answer)
    else:
        answer()


def _arrival(receiver: str, request: Incoming, met: Reaction, late_s: float) -> Arrival:
    headers = request.headers
    sequence = headers.get("relay-sequence")
    return Arrival(
        at=time.time(),
        receiver=receiver,
        source=unquote(headers.get("ce-source", "")),
        message_id=unquote(headers.get("ce-id", "")),
        attempt=int(headers.get("relay-attempt", 1)),
        generation=int(headers.get("relay-generation", 0)),
        sequence=None if sequence is None else int(sequence),
        digest=digest_of(request.body),
        status=met.status,
        processed=met.processed,
        seen_late_s=late_s,
    )


def _returned(callback: str, request: Incoming, status: int | None) -> Returned:
    headers = request.headers
    returned = Returned(
        at=time.time(),
        result_id=headers.get("webhook-id", ""),
        source=unquote(headers.get("relay-source", "")),
        message_id=unquote(headers.get("relay-message-id", "")),
        receiver=headers.get("relay-receiver", ""),
        outcome=headers.get("relay-outcome", ""),
        digest=digest_of(request.body),
        status=status,
        callback=callback,
    )
    is_notice = returned.outcome == "failed" and _is_about(request.body, returned)
    return replace(returned, digest=NOTHING) if is_notice else returned


def _is_about(body: bytes, returned: Returned) -> bool:
    """Whether a failure notice says the same in its body as in its headers: nothing of a receiver is in it then."""
    try:
        notice = msgspec.json.decode(body, type=_Notice)
    except msgspec.MsgspecError:
        return False
    told = (notice.source_id, notice.message_id, notice.receiver or NO_RECEIVER)
    return told == (returned.source, returned.message_id, returned.receiver)


class _Notice(msgspec.Struct):
    source_id: str
    message_id: str
    receiver: str | None


async def serve(spec: Mapping[str, Behaviour], ledger: Ledger, random_: random.Random) -> None:
    """Until this process is ended."""
    outside = Outside(spec, ledger, random_)
    server = await listen(outside.handle)
    sys.stdout.write(f'{{"port": {server.sockets[0].getsockname()[1]}}}\n')
    sys.stdout.flush()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(outside.beat())
        tasks.create_task(server.serve_forever())


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.harness.outside", description=__doc__)
    parser.add_argument("--ledger", type=Path, required=True, help="where each arrival is written to")
    parser.add_argument("--receivers", type=Path, required=True, help="JSON: name -> behaviour")
    parser.add_argument("--seed", type=int, default=0, help="of what is left to chance")
    options = parser.parse_args()
    try:
        spec = msgspec.json.decode(options.receivers.read_bytes(), type=dict[str, Behaviour])
    except (OSError, msgspec.MsgspecError) as error:
        parser.error(f"--receivers: {error}")
    with Ledger(options.ledger) as ledger, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(spec, ledger, random.Random(options.seed)))


if __name__ == "__main__":
    main()
