"""All receivers and senders' callbacks, in a separate process that never crashes.

`python -m tests.faults.harness.outside --ledger FILE --receivers SPEC.json` prints `{"port": N}` as its first line.

`POST /r/<name>` is a delivery, `GET /r/<name>/<message id or webhook id>` its status endpoint: 200 with the answer, 202
while it is worked on, 404 for a message that never arrived. `GET /r/<name>/item/<message id>` and then `/build/<build>`
are the two status steps of a CI. `POST /callback`, and every other name with that prefix, takes results. `PUT
/control/<name>` changes how a receiver or callback behaves. Each arrival is in the ledger before the response.
Signatures are not checked. Message ids have to be unique over all sources.
"""

import argparse
import asyncio
import random
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final
from urllib.parse import unquote

import aiohttp
import msgspec
import uvloop

from relay.domain.exchange import Request
from relay.domain.hop import NO_RECEIVER
from relay.domain.numbering import gaps_in
from relay.domain.requests import BATCH_HEADER, PAYLOAD_URL_HEADER
from tests.fakes.batches import messages_in
from tests.faults.harness.history import NOTHING, Arrival, Asked, Peak, Ping, Returned, Unheard, answer_to, digest_of
from tests.faults.harness.ledger import Ledger
from tests.faults.harness.party import Behaviour, Party, Reaction
from tests.faults.harness.serving import Connection, Incoming, listen

CALLBACK: Final = "callback"
"""Name of the callback in the spec and in `PUT /control/<name>`, and prefix of the names of further callbacks: no
receiver may have such a name."""

_PING: Final = "relay.ping"
_BEAT_S: Final = 0.005
_READ: Final = aiohttp.ClientTimeout(total=1.5)


class Pulse:
    """Since when this process may have been stopped: data that it reads now may have arrived right after that."""

    def __init__(self) -> None:
        self._last = self._before = time.monotonic()

    def late_s(self) -> float:
        """The last beat but one, because after a stop the event loop runs timers before it reads."""
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
        self._reading: set[asyncio.Future[None]] = set()
        self._parties.setdefault(CALLBACK, Party(Behaviour(), random_.random))

    async def beat(self) -> None:
        """For ever."""
        await self._pulse.run()

    def handle(self, request: Incoming, connection: Connection) -> None:
        """Handles any request."""
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
        if (url := request.headers.get(PAYLOAD_URL_HEADER)) is not None:
            reading = asyncio.ensure_future(self._deliver_thin(url, name, request, connection, met))
            self._reading.add(reading)
            reading.add_done_callback(self._reading.discard)
            return
        self._deliver_one(name, request, connection, met)

    async def _deliver_thin(
        self, url: str, name: str, request: Incoming, connection: Connection, met: Reaction
    ) -> None:
        """A POST without its payload, as when the process that has the payload was just killed, counts as not
        arrived."""
        try:
            async with aiohttp.ClientSession(timeout=_READ) as session, session.get(url) as response:
                response.raise_for_status()
                payload = await response.read()
        except (aiohttp.ClientError, TimeoutError):
            connection.answer(503)
            return
        self._deliver_one(name, request._replace(body=payload), connection, met)

    def _deliver_one(self, name: str, request: Incoming, connection: Connection, met: Reaction) -> None:
        party, headers = self._parties[name], request.headers
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
        """All messages of a batch get the same treatment; the response is a list of their answers."""
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
        asyncio.get_running_loop().call_soon(self._note_peak, name)  # after the ends that arrived in the same iteration

    def _note_peak(self, name: str) -> None:
        peak = self._parties[name].new_peak()
        if peak is not None:
            self._ledger.write(Peak(time.time(), name, peak))

    def _take_back(self, name: str, request: Incoming, connection: Connection) -> None:
        """A result that is not processed does not count; neither does a ping of a callback."""
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
        """Change the fields of the behaviour that `body`, a JSON object, names."""
        party = self._parties[name]
        try:
            changes = msgspec.json.decode(body, type=dict[str, object])
            party.behaviour = msgspec.convert({**msgspec.to_builtins(party.behaviour), **changes}, Behaviour)
        except msgspec.MsgspecError as error:
            return 400, msgspec.json.encode({"error": str(error)})
        return 200, msgspec.json.encode(party.behaviour)


def _react(met: Reaction, body: bytes, connection: Connection, unheard: Callable[[], None] = lambda: None) -> None:
    """Send the response in `met`; `unheard` is called if the connection was closed before."""
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
        gaps=tuple((gap.first, gap.last) for gap in gaps_in(headers.get("relay-gap", ""))),
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
    """Whether the body and the headers of a failure notice agree. Then it has no content of a receiver."""
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
    """Serve until this process is ended."""
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
