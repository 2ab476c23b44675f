"""Encryption of payloads for receivers, by a public key of the entry, or of a JWK Set that is fetched and cached."""

import asyncio
from asyncio import Future
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from relay.domain.directory import Directory
from relay.domain.exchange import Exchange, NoResponse, Request, Response
from relay.domain.hop import SEALED, Hop
from relay.domain.jwe import MEDIA_TYPE, UsableKey, encrypt, usable_key
from relay.domain.receiver import Encryption, Receiver
from relay.domain.requests import DEFAULT_CONTENT_TYPE
from relay.engine.decision import Call, Dead, Decision, Later, Step
from relay.log.port import Flaw, Record
from relay.state.attempts import Change
from workers.delivery import Delivery
from workers.dependencies import Dependencies

Encrypted = Callable[[bytes, str], bytes]
"""From a body and its content type to the body that is sent."""

FRESH_S: Final = 300.0
"""A key set that is older is fetched again while it is still in use."""
USABLE_S: Final = 3_600.0
"""A key set that is older is not used: the receiver may have withdrawn a key."""
FETCHING_S: Final = 0.2
FAILED_S: Final = 5.0
NO_KEY: Final = Later(FAILED_S, "its encryption key cannot be read here", Change.RELEASED, pause_s=FAILED_S)
_TIMEOUT_S: Final = 10.0
_MOST_BYTES: Final = 64 * 1024
_KEPT: Final = 4_096
ENCRYPTED_AT_ONCE: Final = 128 * 1024
"""Bytes of a payload; a larger one is encrypted in a thread, because it would block the event loop for
milliseconds."""


@dataclass(slots=True, eq=False)
class _KeySet:
    """A fetched key set. `key`: found once for all messages, because the search may be slow: its publisher
    decides how large the set is. Times are Unix seconds."""

    body: bytes | None = None
    key: UsableKey | None = None
    fetched_at: float = 0.0
    asked_at: float = float("-inf")
    fetching: bool = False
    failure: str = ""


class PayloadEncryption:
    """Encrypts payloads in one process. A key set is fetched like any request to a receiver: with the address guard,
    and without following redirects."""

    def __init__(self, dependencies: Dependencies) -> None:
        self._transport = dependencies.transport
        self._clock = dependencies.clock
        self._headers = (
            ("user-agent", dependencies.user_agent),
            ("accept", "application/jwk-set+json, application/json"),
        )
        self._sets: dict[str, _KeySet] = {}

    def wait(self, work: Delivery) -> Later | None:
        """The wait of a delivery until there is a key; None if there is one, or if none is needed."""
        key = self._key_for(work)
        return key if isinstance(key, Later) else None

    def post(self, work: Delivery, made: Callable[[Encrypted | None], Call[Exchange] | Dead]) -> Step:
        """The POST of a delivery. `made`: makes it, given what encrypts the payload."""
        key = self._key_for(work)
        if key is None:
            return made(None)
        if isinstance(key, Later):
            return key
        if len(work.record.value or b"") <= ENCRYPTED_AT_ONCE:
            return made(partial(encrypt, key))
        return _in_thread(partial(made, partial(encrypt, key)))

    def sealed(self, record: Record, receiver: Receiver, hop: Hop, directory: Directory) -> Record:
        """The record of a dead letter: with the payload encrypted, or without it, if its receiver gets it encrypted."""
        known = receiver if receiver.post.url else directory.removed(receiver.name)
        if known is None or known.encrypt is None or hop.sealed or not record.value:
            return record
        key = self.key(known.encrypt)
        if isinstance(key, Later):
            flaw = Flaw("invalid", "the payload could not be encrypted", omitted=f"value={len(record.value)}")
            return record.changed(value=b"", flaw=flaw)
        value = encrypt(key, record.value, hop.content_type or DEFAULT_CONTENT_TYPE)
        kept = tuple(pair for pair in record.headers if pair[0] != "content-type")
        headers = (*kept, ("content-type", MEDIA_TYPE.encode()), SEALED)
        return record.changed(value=value, headers=headers)

    def _key_for(self, work: Delivery) -> str | Later | None:
        encryption = work.receiver.encrypt
        return None if encryption is None or work.hop.sealed else self.key(encryption)

    def key(self, encryption: Encryption) -> str | Later:
        """The key with which to encrypt now, or the wait until there is one; nothing may be sent before."""
        if encryption.url is None:
            return encryption.keys[0] if encryption.keys else NO_KEY
        held, now = self._held(encryption.url), self._clock.time()
        pause_s = FRESH_S if held.body is not None and not held.failure else FAILED_S
        if not held.fetching and now >= held.asked_at + pause_s:
            self._fetch(encryption.url, held, now)
        if held.body is None or now >= held.fetched_at + USABLE_S:
            return _wait(held)
        if held.key is None or now >= held.key.until:
            try:
                held.key = usable_key(held.body, now)
            except ValueError as error:
                held.body, held.key, held.failure = None, None, str(error)
                return _wait(held)
        return held.key.text

    def _held(self, url: str) -> _KeySet:
        held = self._sets.pop(url, None) or _KeySet()
        if len(self._sets) >= _KEPT:
            del self._sets[next(iter(self._sets))]
        self._sets[url] = held
        return held

    def _fetch(self, url: str, held: _KeySet, now: float) -> None:
        held.fetching, held.asked_at = True, now
        request = Request("GET", url, self._headers, timeout_s=_TIMEOUT_S)
        self._transport.send(request, partial(self._fetched, held))

    def _fetched(self, held: _KeySet, exchange: Exchange) -> None:
        held.fetching = False
        now = self._clock.time()
        try:
            body = _body_of(exchange)
            held.key = usable_key(body, now)
        except ValueError as error:
            held.failure = str(error)
        else:
            held.body, held.fetched_at, held.failure = body, now, ""


def _body_of(exchange: Exchange) -> bytes:
    match exchange:
        case NoResponse(_, detail):
            raise ValueError(detail)
        case Response(200, _, body, False) if len(body) <= _MOST_BYTES:
            return body
        case Response(200):
            raise ValueError(f"it has more than {_MOST_BYTES} bytes, or was cut")
        case Response(status):
            raise ValueError(f"status {status}")


def _wait(held: _KeySet) -> Later:
    if held.fetching and not held.failure:
        return Later(FETCHING_S, "its encryption keys are being fetched", Change.RELEASED, pause_s=FETCHING_S)
    why = f"its encryption keys (encrypt.jwks_url) cannot be used: {held.failure}"
    return Later(FAILED_S, why, Change.RELEASED, pause_s=FAILED_S)


def _in_thread(make: Callable[[], Call[Exchange] | Dead]) -> Call[Exchange]:
    """The call that `make` returns, which runs in a thread. What it raises is a failure of this process's own."""
    made: list[Call[Exchange] | Dead | Later] = []

    def start(replied: Callable[[Exchange], None]) -> None:
        def begin(future: Future[Call[Exchange] | Dead]) -> None:
            error = future.exception()
            detail = f"the payload could not be encrypted: {error}"
            call = future.result() if error is None else Later(FAILED_S, "failed", Change.RELEASED, detail=detail)
            made.append(call)
            if isinstance(call, Call):
                call.start(replied)
            else:
                replied(NoResponse("failed", "nothing was sent", sent=False))

        asyncio.get_running_loop().run_in_executor(None, make).add_done_callback(begin)

    def decide(exchange: Exchange) -> Decision:
        [call] = made
        return call.decide(exchange) if isinstance(call, Call) else call

    return Call(start, decide)
