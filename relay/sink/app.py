"""The sink's web server: POST /hooks, GET /hooks/{message_id}, and those of `add_control`."""

import base64
import json
import random
import secrets
import socket
import struct
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Final, Unpack, assert_never
from urllib.parse import quote, unquote

from aiohttp import ClientError, ClientSession, ClientTimeout, web

from relay.clock import set_within
from relay.domain.http_message import verify_message
from relay.domain.jwe import MEDIA_TYPE, decrypt, private_keys
from relay.domain.requests import PAYLOAD_URL_HEADER, VERIFICATION_TYPE
from relay.domain.signing import verify_standard
from relay.domain.verification import answer_signature
from relay.sink.arrival import (
    WHOLE,
    CallbackSent,
    Poll,
    ReceivedPost,
    arrival_of,
    arrivals_in,
    is_batch,
    listed,
    verdicts,
)
from relay.sink.behaviour import Behaviour, Knobs, Mode, SinkJob, is_processed, new_job, reaction, time_to_respond
from relay.sink.server import ReceivingServer, add_control

_MOST_JOBS: Final = 200_000
"""Older jobs are dropped, so that a sink can run for days."""
_LARGEST_BODY: Final = 32 * 1024 * 1024
_JSON: Final = "application/json"
_TIMEOUT: Final = ClientTimeout(total=10)


class Sink(ReceivingServer):
    """A test receiver. After `start`, `url` accepts POSTs; `received`, `polls` and `callbacks` record the requests.

    `secret`: verifies signatures (Standard Webhooks, or RFC 9421); an invalid one is recorded, not rejected. `jwk`:
    private JWK, or JWK Set, that decrypts bodies. `fetch`: payloads of thin events are fetched, from any URL that a
    request names. `on_arrival` is called for each POST. `chance` returns uniform samples of [0, 1). A stopped sink can
    be restarted, also on the same port, and keeps its jobs.
    """

    def __init__(
        self,
        mode: Mode = "answer",
        *,
        secret: str | None = None,
        jwk: str | None = None,
        fetch: bool = False,
        on_arrival: Callable[[ReceivedPost], None] | None = None,
        chance: Callable[[], float] = random.random,
        **knobs: Unpack[Knobs],
    ) -> None:
        super().__init__(on_arrival)
        self.behaviour = Behaviour(mode, **knobs)
        self.callbacks: list[CallbackSent] = []
        self.handshakes: list[str] = []
        """Kinds of the handshakes that were answered."""
        self.posts = 0
        self.redirects_followed = 0
        self._secrets = [secret] if secret else []
        self._keys = private_keys(jwk) if jwk else ()
        self._fetch = fetch
        self._chance = chance
        self._jobs: dict[str, SinkJob] = {}
        self._job_count = 0

    def app(self) -> web.Application:
        app = web.Application(client_max_size=_LARGEST_BODY)
        app.router.add_post("/hooks", self._post)
        app.router.add_get("/hooks", self._get_by_query)
        app.router.add_options("/hooks", self._options)
        app.router.add_get("/hooks/{message_id:.+}", self._get_by_path)
        app.router.add_route("*", "/elsewhere", self._elsewhere)
        add_control(app, self)
        return app

    @property
    def url(self) -> str:
        """The `post_endpoint`."""
        return f"{self.origin}/hooks"

    @property
    def status_url_template(self) -> str:
        """The `status_endpoint`; if sources share message ids, use `{webhook_id}` instead of `{message_id}`."""
        return f"{self.origin}/hooks/{{message_id}}"

    def become(self, mode: Mode | None = None, **knobs: Unpack[Knobs]) -> None:
        """Change the behaviour from the next request on; other knobs stay. Restarts the count of `fail_first`."""
        self.behave(replace(self.behaviour, mode=mode or self.behaviour.mode, **knobs))

    def behave(self, behaviour: Behaviour) -> None:
        self.behaviour = behaviour
        self.posts = 0

    def knows(self, message_id: str) -> bool:
        """Whether the receiver has processed the message with this `message_id` or `webhook_id`."""
        return message_id in self._jobs

    # --- POST ---

    async def _post(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        if self.behaviour.handshakes and is_verification(request.headers) and self._verified(request, body):
            answer = signed_answer(body, self._secrets[0], secrets.token_urlsafe(24))
            return self._handshaken(
                "hmac", _json(400, b'{"error": "no nonce"}') if answer is None else _json(200, answer)
            )
        behaviour = self.behaviour
        if is_batch(request.headers):
            return await self._post_batch(request, body, behaviour)
        self.posts += 1
        met = reaction(behaviour, nth=self.posts, chance=self._chance())
        met, wait_s = time_to_respond(behaviour, met, request.headers.get("prefer", ""))
        arrival = arrival_of(request, body, met, behaviour.status_of(met), self._verified(request, body))
        arrival = replace(arrival, payload=await self._payload(arrival))
        if is_processed(behaviour, met):
            self._process(behaviour, arrival)
        self.arrived(arrival)
        await self._pause(wait_s)
        return await self._react(request, behaviour, arrival)

    async def _post_batch(self, request: web.Request, body: bytes, behaviour: Behaviour) -> web.StreamResponse:
        """One response for all messages, or with `verdicts` a list with a status of each."""
        met = reaction(behaviour, nth=self.posts + 1, chance=0.0 if behaviour.verdicts else self._chance())
        whole = arrival_of(request, body, met, behaviour.status_of(met), self._verified(request, body))
        try:
            arrivals = arrivals_in(whole)
        except (ValueError, KeyError, TypeError):
            return _json(400, b'{"error": "no batch"}')
        each = behaviour.verdicts and behaviour.mode not in WHOLE
        if each:
            arrivals = verdicts(behaviour, arrivals, before=self.posts, chance=self._chance)
        self.posts += len(arrivals) if each else 1
        for arrival in arrivals:
            if is_processed(behaviour, arrival.met):
                self._process(behaviour, arrival)
            self.arrived(arrival)
        await self._pause(behaviour.delay_s)
        if not each:
            return await self._react(request, behaviour, arrivals[0] if len(arrivals) == 1 else whole)
        jobs = {key: self._jobs[key] for key in map(_job_key, arrivals) if key in self._jobs}
        states = {key: job.document("pending" if job.polls_left else "success") for key, job in jobs.items()}
        return _json(207, listed(arrivals, states))

    def _verified(self, request: web.Request, body: bytes) -> bool | None:
        if not self._secrets:
            return None
        headers, now = request.headers, time.time()
        if verify_standard(self._secrets, headers, body, now):
            return True
        url = f"{request.scheme}://{request.host}{request.raw_path}"
        return verify_message(self._secrets, method=request.method, url=url, headers=headers, body=body, now=now)

    async def _payload(self, arrival: ReceivedPost) -> bytes | None:
        if self._keys and arrival.headers.get("content-type") == MEDIA_TYPE:
            with suppress(ValueError):
                return decrypt(self._keys, arrival.body)[0]
        if self._fetch and (url := arrival.headers.get(PAYLOAD_URL_HEADER)):
            with suppress(ClientError, TimeoutError):
                async with ClientSession(timeout=_TIMEOUT) as session, session.get(url) as response:
                    return await response.read() if response.status == 200 else None
        return None

    def _process(self, behaviour: Behaviour, arrival: ReceivedPost) -> None:
        """Process a message once, however often it arrives. Status GETs find it under both of its ids."""
        key = _job_key(arrival)
        if key in self._jobs:
            return
        self._job_count += 1
        message_id = arrival.message_id or key
        job = new_job(behaviour, arrival.met, number=self._job_count, message_id=message_id, now=arrival.t_monotonic)
        self._jobs[key] = self._jobs[message_id] = job
        while len(self._jobs) > _MOST_JOBS:
            del self._jobs[next(iter(self._jobs))]
        if behaviour.callback and (url := arrival.headers.get("relay-answer-url")):
            self.begin(self._call_back(url, job, behaviour))

    async def _react(self, request: web.Request, behaviour: Behaviour, arrival: ReceivedPost) -> web.StreamResponse:
        match arrival.met:
            case "answer" | "later" if _job_key(arrival) not in self._jobs:  # a batch
                return _json(behaviour.status_of(arrival.met) or 200, b'{"state": "received"}', _retry_after(behaviour))
            case "answer":
                return await _answer(request, behaviour, self._jobs[_job_key(arrival)])
            case "ok":
                return web.Response(status=204)
            case "later":
                return self._accepted(behaviour, self._jobs[_job_key(arrival)])
            case "echo":
                content_type = arrival.headers.get("content-type", _JSON)
                return web.Response(body=arrival.body, headers={"content-type": content_type})
            case "fail":
                return _json(behaviour.fail_status, b'{"error": "failed"}', _retry_after(behaviour))
            case "reject":
                return _json(422, b'{"error": "rejected"}')
            case "redirect":
                return _json(307, b"", {"location": f"{self.origin}/elsewhere"})
            case "hang":
                await self.stopping.wait()
                return _reset(request)
            case "reset":
                return _reset(request)
            case _:
                assert_never(arrival.met)

    def _accepted(self, behaviour: Behaviour, job: SinkJob) -> web.Response:
        headers = _retry_after(behaviour)
        if behaviour.location:
            headers["location"] = f"{self.url}/{quote(job.message_id, safe='')}"
        return _json(202, job.document("pending"), headers)

    async def _call_back(self, url: str, job: SinkJob, behaviour: Behaviour) -> None:
        await self._pause(behaviour.answer_after_s)
        body = job.document("success", behaviour.answer_size)
        status: int | None = None
        with suppress(ClientError, TimeoutError):
            async with (
                ClientSession(timeout=_TIMEOUT) as session,
                session.post(url, data=body, headers={"content-type": _JSON}) as response,
            ):
                status = response.status
        self.note(self.callbacks, CallbackSent(job.message_id, status))

    async def _pause(self, seconds: float) -> None:
        """Wait, but only while the sink is running."""
        if seconds > 0:
            await set_within(self.stopping, seconds)

    # --- GET ---

    async def _get_by_path(self, request: web.Request) -> web.StreamResponse:
        # from the raw path: an id may contain an encoded slash
        return await self._status(request, unquote(request.rel_url.raw_path.removeprefix("/hooks/")))

    async def _get_by_query(self, request: web.Request) -> web.StreamResponse:
        challenge = request.query.get("challenge")
        if challenge is not None and self.behaviour.handshakes:
            return self._handshaken("challenge", web.Response(text=challenge))
        message_id = request.query.get("message_id")
        if message_id is None:
            return _json(400, b'{"error": "message_id is missing"}')
        return await self._status(request, message_id)

    async def _status(self, request: web.Request, message_id: str) -> web.StreamResponse:
        job = self._jobs.get(message_id)
        now = time.monotonic()
        status = 404 if job is None else 200 if job.poll(now) else 202
        self.note(self.polls, Poll(message_id, status, now))
        if job is None:
            return _json(404, b'{"error": "unknown"}')
        if status == 202:
            return _json(202, job.document("pending"), _retry_after(self.behaviour))
        return await _answer(request, self.behaviour, job)

    # --- handshakes ---

    async def _options(self, request: web.Request) -> web.Response:
        if not self.behaviour.handshakes:
            return _json(405, b'{"error": "only POST is allowed"}')
        asked = {name.lower(): value for name, value in request.headers.items()}
        return self._handshaken("cloudevents", web.Response(status=200, headers=consent(asked)))

    def _handshaken(self, kind: str, response: web.Response) -> web.Response:
        self.note(self.handshakes, kind)
        return response

    async def _elsewhere(self, request: web.Request) -> web.Response:
        self.redirects_followed += 1
        return _json(200, b'{"error": "a redirect was followed"}')


def _job_key(arrival: ReceivedPost) -> str:
    return arrival.webhook_id or arrival.message_id


async def _answer(request: web.Request, behaviour: Behaviour, job: SinkJob) -> web.StreamResponse:
    body = job.document("success", behaviour.answer_size)
    if not behaviour.truncate:
        return _json(200, body)
    response = web.StreamResponse(headers={"content-type": _JSON})
    response.content_length = 2 * len(body)
    await response.prepare(request)
    await response.write(body)
    if request.transport is not None:
        request.transport.close()  # after the written data
    return response


def _json(status: int, body: bytes, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.Response(status=status, body=body, headers={"content-type": _JSON, **(headers or {})})


def _retry_after(behaviour: Behaviour) -> dict[str, str]:
    return {} if behaviour.retry_after is None else {"retry-after": str(behaviour.retry_after)}


def _reset(request: web.Request) -> web.Response:
    """Reset the connection instead of closing it. The returned response is not sent."""
    transport = request.transport
    if transport is not None:
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()
    return web.Response(status=503)


# --- handshakes -----------------------------------------------------------------------------------------------------


def is_verification(headers: Mapping[str, str]) -> bool:
    """Whether a POST is a verification handshake."""
    return headers.get("ce-type") == VERIFICATION_TYPE


def signed_answer(body: bytes, secret: str, own_nonce: str) -> bytes | None:
    """The answer to such a POST, whose own signature is valid; None for an invalid body."""
    try:
        nonce = json.loads(body)["nonce"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    if not isinstance(nonce, str):
        return None
    signature = base64.b64encode(answer_signature(secret, nonce, own_nonce)).decode()
    return json.dumps({"nonce": own_nonce, "signature": signature}).encode()


def consent(headers: Mapping[str, str]) -> dict[str, str]:
    """Response headers that consent to an OPTIONS request. `headers`: the request's, with lower-case names."""
    asked = headers.get("webhook-request-origin")
    if asked is None:
        return {"allow": "GET, POST, OPTIONS"}
    rate = headers.get("webhook-request-rate", "*")
    return {"allow": "GET, POST, OPTIONS", "webhook-allowed-origin": asked, "webhook-allowed-rate": rate}
