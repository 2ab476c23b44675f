"""Sends notices about incidents: to the operator, and to owners about their receivers. Nothing waits for them.

A change is published to `IncidentNotices.publish`, which only queues it. Each channel has a queue and a task, so that
one that hangs delays no other. Chat and e-mail get a digest of the changes of a while, and nothing in quiet hours;
PagerDuty, which has schedules of its own, gets each change at once.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from email.message import EmailMessage
from typing import Final, Protocol
from urllib.parse import unquote, urlsplit

import msgspec

from relay.clock import Clock
from relay.delivery.port import Transport
from relay.domain.errors import RelayError, Unavailable, UserError
from relay.domain.exchange import Request, Response
from relay.domain.incident import Incident
from relay.domain.incident_notice import News, QuietHours, gathered, mail, pagerduty_event, slack_message
from relay.domain.own_events import Change
from relay.telemetry.logging import get_logger
from relay.telemetry.metrics import Metrics

MOST: Final = 1_000
"""Changes that wait for a channel; the oldest go first."""
TRIES: Final = 8
"""Within eleven minutes: a mail server may refuse a new sender for five (greylisting)."""
AGAIN_S: Final = 5.0
"""Before the second try; then twice as long each time."""
TIMEOUT_S: Final = 15.0
LAST_S: Final = 2.0
"""For the notices that wait when the process ends."""

_PASSING: Final = frozenset({408, 425, 429})
"""Statuses below 500 of requests that may succeed later."""

SMTP_TIMEOUT_S: Final = 20.0
_PORTS: Final = {"smtp": 587, "smtps": 465}

_log = get_logger("relay.incidents")


class NotSent(RelayError):
    """The notice was not taken; a later try may succeed."""


class NoticeRejected(NotSent):
    """The notice was rejected for good."""


class Channel(Protocol):
    """A service that notices are sent to, such as Slack. `name`: of its metric. `pages`: it gets each change alone and
    at once."""

    @property
    def name(self) -> str: ...

    @property
    def pages(self) -> bool: ...

    async def send(self, digest: Sequence[News]) -> None:
        """Raises NotSent."""
        ...


@dataclass(frozen=True, slots=True)
class Slack:
    """An incoming webhook. `base`: the relay's public URL."""

    url: str = field(repr=False)
    transport: Transport
    base: str | None
    name: str = "slack"
    pages: bool = False

    async def send(self, digest: Sequence[News]) -> None:
        await _post(self.transport, self.url, slack_message(digest, self.base))


@dataclass(frozen=True, slots=True)
class PagerDuty:
    """The Events API v2 at `url`."""

    routing_key: str = field(repr=False)
    url: str
    transport: Transport
    base: str | None
    name: str = "pagerduty"
    pages: bool = True

    async def send(self, digest: Sequence[News]) -> None:
        for one in digest:
            await _post(self.transport, self.url, pagerduty_event(one, self.routing_key, self.base))


@dataclass(frozen=True, slots=True)
class SmtpServer:
    """Sends e-mails, by aiosmtplib, which is an optional dependency. `tls`: from the first byte; otherwise STARTTLS is
    used if the server offers it."""

    host: str
    port: int
    tls: bool
    user: str | None = None
    password: str | None = field(default=None, repr=False)

    async def send(self, message: EmailMessage) -> dict[str, str]:
        """Why recipients were refused, by address, if some were not. Raises OSError if the server did not take it."""
        import aiosmtplib

        try:
            refused, _ = await aiosmtplib.send(
                message,
                hostname=self.host,
                port=self.port,
                use_tls=self.tls,
                start_tls=False if self.tls else None,
                username=self.user,
                password=self.password,
                timeout=SMTP_TIMEOUT_S,
            )
        except (aiosmtplib.SMTPException, ValueError) as error:  # ValueError: no name server knows such a host
            raise OSError(f"{type(error).__name__}: {error}") from error
        return {address: f"{reply.code} {reply.message}" for address, reply in refused.items()}


def smtp_server(url: str) -> SmtpServer:
    """The server of `smtp://[user:password@]host[:port]` or `smtps://...`. Raises UserError if e-mails cannot be
    sent here."""
    try:
        import aiosmtplib  # noqa: F401  only whether it is there
    except ModuleNotFoundError:
        raise UserError(
            "RELAY_NOTICE_SMTP_URL: e-mails need aiosmtplib; install it with: pip install 'webhook-relay[email]'"
        ) from None
    parts = urlsplit(url)
    user, password = (None if text is None else unquote(text) for text in (parts.username, parts.password))
    return SmtpServer(parts.hostname or "", parts.port or _PORTS[parts.scheme], parts.scheme == "smtps", user, password)


@dataclass(frozen=True, slots=True)
class Mail:
    server: SmtpServer
    sender: str
    recipients: Sequence[str]
    base: str | None
    name: str = "email"
    pages: bool = False

    async def send(self, digest: Sequence[News]) -> None:
        try:
            refused = await self.server.send(mail(digest, self.sender, self.recipients, self.base))
        except OSError as error:
            raise NotSent(str(error)) from error
        for address, why in refused.items():
            _log.warning("notice_not_sent", channel=self.name, error=f"{address}: {why}")


async def _post(transport: Transport, url: str, body: object) -> None:
    headers = (("content-type", "application/json"),)
    exchange = await transport.exchange(Request("POST", url, headers, msgspec.json.encode(body), TIMEOUT_S))
    if not isinstance(exchange, Response):
        raise NotSent(f"no response: {exchange.kind}")
    if exchange.status >= 300:
        is_final = exchange.status < 500 and exchange.status not in _PASSING
        raise (NoticeRejected if is_final else NotSent)(f"the response is {exchange.status}")


@dataclass(frozen=True, slots=True)
class Recipient:
    """The operator (`owner` None), who gets all notices, or an owner of receivers, who gets those about these."""

    channels: Sequence[Channel]
    owner: str | None = None
    quiet: QuietHours | None = None
    digest_s: float = 0.0


class _Outbox:
    """The notices that wait for one channel of a recipient. Times are monotonic."""

    def __init__(self, channel: Channel, recipient: Recipient, clock: Clock, metrics: Metrics) -> None:
        self.recipient = recipient
        self._channel = channel
        self._clock = clock
        self._metrics = metrics
        self._digest_s = 0.0 if channel.pages else recipient.digest_s
        self._waiting: list[News] = []
        self._due = 0.0
        self._tries = 0
        self._news = asyncio.Event()
        self._ending = False
        self.empty = asyncio.Event()
        self.empty.set()

    def hurry(self) -> None:
        """Send what waits now: the process ends, and takes it along."""
        self._ending, self._due = True, self._clock.monotonic()
        self._news.set()

    def add(self, news: News) -> None:
        self.empty.clear()
        if not self._waiting:
            self._due = self._clock.monotonic() + self._digest_s
        self._waiting = ([*self._waiting, news] if self._channel.pages else gathered(self._waiting, news))[-MOST:]
        self._news.set()

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            wait_s = self._wait_s()
            if wait_s is None or wait_s > 0:
                await self._clock.wait(self._news, wait_s)
                self._news.clear()
            else:
                await self._send()

    def _wait_s(self) -> float | None:
        """Seconds until the next notice is to be sent; None if nothing waits."""
        if not self._waiting:
            self.empty.set()
            return None
        quiet = None if self._channel.pages or self._ending else self.recipient.quiet
        left_s = 0.0 if quiet is None else quiet.left_s(self._clock.time())
        return max(0.0, self._due - self._clock.monotonic(), left_s)

    async def _send(self) -> None:
        digest = self._waiting[:1] if self._channel.pages else self._waiting
        try:
            await self._channel.send(digest)
        except NotSent as error:
            self._tries += 1
            if self._tries < TRIES and not isinstance(error, NoticeRejected):
                self._due = self._clock.monotonic() + AGAIN_S * 2.0 ** (self._tries - 1)
                return
            self._count("given_up")
            owner = self.recipient.owner
            _log.warning("notice_not_sent", channel=self._channel.name, owner=owner, error=str(error))
        else:
            self._count("sent")
        done = set(map(id, digest))  # what was added in the meantime stays, also if it replaced one of these
        self._waiting = [one for one in self._waiting if id(one) not in done]
        self._due = self._clock.monotonic() + self._digest_s
        self._tries = 0

    def _count(self, outcome: str) -> None:
        self._metrics.notices_total.labels(self._channel.name, outcome).inc()


@dataclass(eq=False)
class IncidentNotices:
    """Sends notices about incidents to operators and owners. `owner_of`: the owner of the party of an incident. It may
    raise Unavailable: then only the operator gets it."""

    recipients: Sequence[Recipient]
    owner_of: Callable[[Incident], str | None]
    clock: Clock
    metrics: Metrics

    def __post_init__(self) -> None:
        self._outboxes = [
            _Outbox(channel, each, self.clock, self.metrics) for each in self.recipients for channel in each.channels
        ]

    def publish(self, change: Change, incident: Incident) -> None:
        """Queues it; never blocks, never raises."""
        news, owner = News(change, incident, self.clock.time()), self._owner_of(incident)
        for outbox in self._outboxes:
            if outbox.recipient.owner is None or outbox.recipient.owner == owner:
                outbox.add(news)

    def _owner_of(self, incident: Incident) -> str | None:
        try:
            return self.owner_of(incident)
        except Unavailable:  # the index of receivers is being rebuilt
            return None

    async def run(self) -> None:
        """Runs until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for outbox in self._outboxes:
                tasks.create_task(outbox.run())

    async def end(self) -> None:
        """Sends what waits, also for a digest or in quiet hours, within `LAST_S`: no other process knows of it."""
        for outbox in self._outboxes:
            outbox.hurry()
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_S):
                for outbox in self._outboxes:
                    await outbox.empty.wait()
