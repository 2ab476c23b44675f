"""Receivers and senders around a relay under test: they never crash, and remember what they were sent."""

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from relay.delivery.port import Transport
from relay.domain.exchange import Exchange, NoResponse, Request, Response
from relay.domain.requests import PING_TYPE
from tests.fakes.batches import answered_each, is_batch, messages_in

REFUSED = NoResponse("refused", "nobody listens", sent=False)


@dataclass
class Surroundings(Transport):
    """The transport of every process. A POST is remembered before it is answered.

    Behaviour by the URL's path: /answer, /later (202, then an answer after two GETs), /fail (500 for ever),
    /flaky (500 once per message), /slow and below (an answer after `slow_s`), /callback, or any other as /answer.
    `lose_response`: numbers of POSTs (1-based) whose response is lost. `down`: paths where nothing listens.
    `troubles`: by message id, what its next POSTs to a receiver get, which are then not processed.
    """

    posts: list[tuple[str, Mapping[str, str], bytes]] = field(default_factory=list)
    gets: Counter[str] = field(default_factory=Counter)
    asked: Counter[str] = field(default_factory=Counter)
    """Status GETs by message id, also those about messages that never arrived."""
    lose_response: frozenset[int] = frozenset()
    down: set[str] = field(default_factory=set)
    one_for_all: set[str] = field(default_factory=set)
    """Paths of receivers that have one response for all messages of a batch."""
    batches: list[list[str]] = field(default_factory=list)
    """Message ids of each batch that was sent, also of those that were refused."""
    unsent: dict[str, NoResponse] = field(default_factory=dict)
    """By path, or `*` for all: what keeps requests from being made, pings and GETs included."""
    troubles: dict[str, Sequence[Exchange | Exception]] = field(default_factory=dict)
    tried: Counter[str] = field(default_factory=Counter)
    """POSTs to receivers by message id, also those that were refused; no pings."""
    pings: list[tuple[float, str]] = field(default_factory=list)
    """When a throw-away ping came, and to which path; also those that were refused."""
    never_seen: Response = Response(404, {}, b"")
    """What a status GET says of a message that never arrived."""
    ping_status: int = 204
    not_made: Counter[str] = field(default_factory=Counter)
    """Requests that `unsent` kept from being made, by path."""
    slow_s: float = 12.0
    under_way: Counter[str] = field(default_factory=Counter)
    """Requests now, by path."""
    most: Counter[str] = field(default_factory=Counter)
    """The most of them at once."""
    starts: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """When each POST began that is no ping, by path."""
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def start(self) -> None:
        return

    async def close(self) -> None:
        return

    def send(self, request: Request, done: Callable[[Exchange], None]) -> None:
        async def make() -> None:
            done(await self._exchange(request))

        self._raise_bug(dict(request.headers).get("ce-id", ""))
        task = asyncio.get_running_loop().create_task(make())
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _exchange(self, request: Request) -> Exchange:
        path = urlsplit(request.url).path
        self.under_way[path] += 1
        self.most[path] = max(self.most[path], self.under_way[path])
        if request.method == "POST" and dict(request.headers).get("ce-type") != PING_TYPE:
            self.starts[path].append(asyncio.get_running_loop().time())
        try:
            await asyncio.sleep(0.01)
            unsent = self.unsent.get("*") or self.unsent.get(path.split("/")[1])
            if unsent is not None:
                self.not_made[path] += 1
                return unsent
            if dict(request.headers).get("ce-type") == PING_TYPE:
                self.pings.append((asyncio.get_running_loop().time(), path))
                return REFUSED if path.split("/")[1] in self.down else Response(self.ping_status, {}, b"")
            if path.split("/")[1] in self.down:
                self.tried[dict(request.headers).get("ce-id", "")] += 1
                return REFUSED
            if request.method == "GET":
                return self._get(path)
            if is_batch(request):
                self.batches.append([dict(one.headers)["ce-id"] for one in messages_in(request)])
                return await self._batch(path, request)
            return await self._post(path, request)
        finally:
            self.under_way[path] -= 1

    async def _batch(self, path: str, request: Request) -> Exchange:
        """A batch with a message that is in trouble is refused as a whole where one response is for all."""
        one_for_all = path in self.one_for_all
        for one in messages_in(request):
            message = dict(one.headers)["ce-id"]
            trouble = next(iter(self.troubles.get(message, ())), None)
            if one_for_all or (isinstance(trouble, NoResponse) and not trouble.sent):
                refusal = self._refusal(path, message)
                if refusal is not None:
                    return refusal
        if one_for_all:
            for one in messages_in(request):
                self.posts.append((path, dict(one.headers), one.body))
            return Response(204, {}, b"")
        return await answered_each(request, lambda one: self._post(path, one))

    def _get(self, path: str) -> Response:
        _, where, message = path.split("/", 2)
        message = unquote(message)
        self.asked[message] += 1
        if message not in self.arrived(f"/{where}"):
            return self.never_seen
        self.gets[message] += 1
        if where == "later" and self.gets[message] < 2:
            return Response(202, {}, b"")
        return self._answer(message)

    async def _post(self, path: str, request: Request) -> Exchange:
        headers = dict(request.headers)
        message = headers.get("ce-id", "")
        if path != "/callback":
            self.tried[message] += 1
            refusal = self._refusal(path, message)
            if refusal is not None:
                return refusal
        self.posts.append((path, headers, request.body))
        number = len(self.posts)
        if path.split("/")[1] == "slow":
            await asyncio.sleep(self.slow_s)
        if number in self.lose_response:
            return NoResponse("disconnected", "the response was lost", sent=True)
        if path == "/callback":
            return Response(204, {}, b"")
        return Response(202, {}, b"{}") if path == "/later" else self._answer(message)

    def _refusal(self, path: str, message: str) -> Exchange | None:
        if path == "/fail" or (path == "/flaky" and self.tried[message] == 1):
            return Response(500, {}, b"")
        troubles = self.troubles.get(message, ())
        if not troubles:
            return None
        trouble, self.troubles[message] = troubles[0], troubles[1:]
        assert not isinstance(trouble, Exception), "raised before"
        return trouble

    def _raise_bug(self, message: str) -> None:
        """A bug shows in the task that makes the request: no task waits for its later steps."""
        troubles = self.troubles.get(message, ())
        if troubles and isinstance(troubles[0], Exception):
            self.troubles[message] = troubles[1:]
            self.tried[message] += 1
            raise troubles[0]

    @staticmethod
    def _answer(message: str) -> Response:
        body = json.dumps({"built": message}).encode()
        return Response(200, {"content-type": "application/json"}, body)

    def arrived(self, path: str, source: str | None = None) -> list[str]:
        """Message ids in the order they arrived there, of all sources or one."""
        return [
            headers["ce-id"] for at, headers, _ in self.posts if at == path and source in (None, headers["ce-source"])
        ]

    def results(self) -> dict[tuple[str, str], set[str]]:
        """(message, receiver) -> outcomes that reached the sender."""
        found: dict[tuple[str, str], set[str]] = defaultdict(set)
        for _, headers, _ in self._callbacks():
            found[headers["relay-message-id"], headers["relay-receiver"]].add(headers["relay-outcome"])
        return dict(found)

    def reasons(self) -> dict[str, str]:
        """Message id -> reason of its failure notice."""
        return {
            headers["relay-message-id"]: headers["relay-reason"]
            for _, headers, _ in self._callbacks()
            if headers["relay-outcome"] == "failed"
        }

    def _callbacks(self) -> list[tuple[str, Mapping[str, str], bytes]]:
        return [post for post in self.posts if post[0] == "/callback"]


def most_in(starts: Sequence[float], window_s: float) -> int:
    """How many of them, in order of time, there are in the busiest sliding window; at most."""
    most = first = 0
    for last, start in enumerate(starts):
        while starts[first] <= start - window_s:
            first += 1
        most = max(most, last - first + 1)
    return most
