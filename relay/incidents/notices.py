"""Sends notices about incidents: to the operator, and to owners about their receivers. One task; nothing waits for it.

A change is published to `IncidentNotices.publish`, which only queues it. Chat and e-mail get a digest of the changes of
a while, and nothing in quiet hours; PagerDuty, which has schedules of its own, gets each change at once.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from email.message import EmailMessage
from typing import Final, Protocol
from urllib.parse import unquote, urlsplit

import msgspec

from relay.clock import Clock
from relay.delivery.port import Transport
from relay.domain.errors import RelayError, UserError
from relay.domain.exchange import Request, Response
from relay.domain.incident import Incident
from relay.domain.incident_notice import News, QuietHours, gathered, mail, pagerduty_event, slack_message
from relay.domain.own_events import Change
from relay.telemetry.logging import get_logger
from relay.telemetry.metrics import Metrics

MOST: Final = 1_000
"""Changes that wait for a channel; the oldest go first."""
TRIES: Final = 4
AGAIN_S: Final = 5.0
"""Before the second try; then twice as long each time."""
TIMEOUT_S: Final = 15.0

SMTP_TIMEOUT_S: Final = 20.0
_PORTS: Final = {"smtp": 587, "smtps": 465}

_log = get_logger("relay.incidents")


class NotSent(RelayError):
    """The notice was not taken; a later try may succeed."""


class Channel(Protocol):
    """`name`: of its metric. `pages`: it gets each change alone and at once."""

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

    async def send(self, message: EmailMessage) -> None:
        """Raises OSError if the server did not take it."""
        import aiosmtplib

        try:
            await aiosmtplib.send(
                message,
                hostname=self.host,
                port=self.port,
                use_tls=self.tls,
                start_tls=False if self.tls else None,
                username=self.user,
                password=self.password,
                timeout=SMTP_TIMEOUT_S,
            )
        except aiosmtplib.SMTPException as error:
            raise OSError(f"{type(error).__name__}: {error}") from error


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
            await self.server.send(mail(digest, self.sender, self.recipients, self.base))
        except OSError as error:
            raise NotSent(str(error)) from error


async def _post(transport: Transport, url: str, body: object) -> None:
    headers = (("content-type", "application/json"),)
    exchange = await transport.exchange(Request("POST", url, headers, msgspec.json.encode(body), TIMEOUT_S))
    if not isinstance(exchange, Response):
        raise NotSent(f"no response: {exchange.kind}")
    if exchange.status >= 300:
        raise NotSent(f"the response is {exchange.status}")


@dataclass(frozen=True, slots=True)
class Recipient:
    """The operator (`owner` None), who gets all notices, or an owner of receivers, who gets those about these."""

    channels: Sequence[Channel]
    owner: str | None = None
    quiet: QuietHours | None = None
    digest_s: float = 0.0


class _Outbox:
    """The notices that wait for one channel of a recipient."""

    def __init__(self, channel: Channel, recipient: Recipient) -> None:
        self.channel = channel
        self.recipient = recipient
        self.waiting: list[News] = []
        self.due = 0.0
        """Unix seconds."""
        self.tries = 0

    def add(self, news: News) -> None:
        if not self.waiting:
            self.due = news.at + (0.0 if self.channel.pages else self.recipient.digest_s)
        self.waiting = ([*self.waiting, news] if self.channel.pages else gathered(self.waiting, news))[-MOST:]

    def wait_s(self, now: float) -> float | None:
        """Seconds until it is to be sent; None if nothing waits."""
        if not self.waiting:
            return None
        quiet = None if self.channel.pages else self.recipient.quiet
        left_s = 0.0 if quiet is None else quiet.left_s(now)
        return max(0.0, self.due - now, left_s)


@dataclass(eq=False)
class IncidentNotices:
    """`owner_of`: the owner of the party of an incident."""

    recipients: Sequence[Recipient]
    owner_of: Callable[[Incident], str | None]
    clock: Clock
    metrics: Metrics
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._outboxes = [_Outbox(channel, each) for each in self.recipients for channel in each.channels]

    def publish(self, change: Change, incident: Incident) -> None:
        """Queues it; never blocks, never raises."""
        news, owner = News(change, incident, self.clock.time()), self.owner_of(incident)
        for outbox in self._outboxes:
            if outbox.recipient.owner is None or outbox.recipient.owner == owner:
                outbox.add(news)
                self._news.set()

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            now = self.clock.time()
            waits = {outbox: wait_s for outbox in self._outboxes if (wait_s := outbox.wait_s(now)) is not None}
            due = [outbox for outbox, wait_s in waits.items() if wait_s <= 0]
            if due:
                await asyncio.gather(*map(self._send, due))
                continue
            await self.clock.wait(self._news, min(waits.values(), default=None))
            self._news.clear()

    async def _send(self, outbox: _Outbox) -> None:
        digest = list(outbox.waiting)
        if await self._is_sent(outbox.channel.send(digest), outbox):
            del outbox.waiting[: len(digest)]
            outbox.tries = 0

    async def _is_sent(self, sending: Awaitable[None], outbox: _Outbox) -> bool:
        """Also if it is given up."""
        try:
            await sending
        except NotSent as error:
            outbox.tries += 1
            if outbox.tries < TRIES:
                outbox.due = self.clock.time() + AGAIN_S * 2.0 ** (outbox.tries - 1)
                return False
            self.metrics.notices_total.labels(outbox.channel.name, "given_up").inc()
            _log.warning("notice_not_sent", channel=outbox.channel.name, owner=outbox.recipient.owner, error=str(error))
            return True
        self.metrics.notices_total.labels(outbox.channel.name, "sent").inc()
        return True
