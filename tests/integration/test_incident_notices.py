"""Tests of notices by real HTTP and SMTP: to the operator and to owners, batched, held in quiet hours, and retried."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from email import message_from_bytes
from email.message import Message
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from structlog.testing import capture_logs

from relay.delivery.lean_transport import LeanTransport
from relay.domain.errors import LogUnavailable
from relay.domain.incident import Facts, Incident, Observation, Party, new_incident
from relay.domain.incident_notice import News, parse_quiet_hours
from relay.incidents.notices import (
    AGAIN_S,
    LAST_S,
    MOST,
    TRIES,
    IncidentNotices,
    Mail,
    NoticeRejected,
    NotSent,
    PagerDuty,
    Recipient,
    Slack,
    SmtpServer,
)
from relay.telemetry.metrics import Metrics
from tests.browser.dev_relay import DevRelay
from tests.contract.transport_rig import LOOPBACK
from tests.fakes.virtual_time import UNIX_START, LoopClock, OffClock, virtually
from tests.servers.http import serving

BASE = "https://relay.example"


def incident(name: str = "ci") -> Incident:
    facts = Facts(host="ci.example", why="401 Unauthorized", status=401)
    observed = Observation("credentials", Party("receiver", name), UNIX_START, waiting=3, facts=facts)
    return new_incident(observed, UNIX_START)


# --- when they are sent -------------------------------------------------------------------------------------------


@dataclass
class Recorder:
    """A channel. `fails`: so many times. `refuses`: this one of all. `slow_s`: how long it takes."""

    clock: LoopClock
    pages: bool = False
    name: str = "recorder"
    fails: int = 0
    refuses: str | None = None
    slow_s: float = 0.0
    sent: list[tuple[float, list[str]]] = field(default_factory=list)

    async def send(self, digest: Sequence[News]) -> None:
        await asyncio.sleep(self.slow_s)
        if self.fails:
            self.fails -= 1
            raise NotSent("not now")
        if any(one.incident.party.name == self.refuses for one in digest):
            raise NoticeRejected("never")
        changes = [f"{one.change.removeprefix('incident.')} {one.incident.party.name}" for one in digest]
        self.sent.append((self.clock.time() - UNIX_START, changes))


@asynccontextmanager
async def running(*recipients: Recipient, owner: str | None = None) -> AsyncIterator[IncidentNotices]:
    notices = IncidentNotices(recipients, lambda _one: owner, LoopClock(), Metrics("0"))
    task = asyncio.create_task(notices.run())
    try:
        yield notices
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@virtually
async def test_chat_gets_a_digest_and_pages_go_out_at_once() -> None:
    clock = LoopClock()
    chat, pages = Recorder(clock), Recorder(clock, pages=True)
    async with running(Recipient([chat, pages], digest_s=60.0)) as notices:
        notices.publish("incident.opened", incident("ci"))
        await asyncio.sleep(10)
        notices.publish("incident.opened", incident("cd"))
        notices.publish("incident.resolved", incident("ci"))
        await asyncio.sleep(300)
    assert [changes for _, changes in chat.sent] == [["opened cd", "resolved ci"]]
    assert [changes for _, changes in pages.sent] == [["opened ci"], ["opened cd"], ["resolved ci"]]
    assert 59 < chat.sent[0][0] - pages.sent[0][0] < 62


@virtually
async def test_in_quiet_hours_only_pages_are_sent() -> None:
    clock = LoopClock()  # begins at 22:13 UTC
    chat, pages = Recorder(clock), Recorder(clock, pages=True)
    quiet = parse_quiet_hours("22:00-07:00")
    async with running(Recipient([chat, pages], quiet=quiet)) as notices:
        notices.publish("incident.opened", incident("ci"))
        await asyncio.sleep(4 * 3600)
        notices.publish("incident.resolved", incident("ci"))
        await asyncio.sleep(6 * 3600)
    assert [changes for _, changes in pages.sent] == [["opened ci"], ["resolved ci"]]
    [(at, changes)] = chat.sent
    assert changes == ["resolved ci"]
    assert 8 * 3600 < at < 9 * 3600


@virtually
async def test_what_waits_is_sent_when_the_process_ends() -> None:
    clock = LoopClock()
    held, gathered, failing = Recorder(clock), Recorder(clock), Recorder(clock, fails=TRIES)
    quiet = parse_quiet_hours("22:00-07:00")
    async with running(Recipient([held], quiet=quiet), Recipient([gathered, failing], digest_s=60.0)) as notices:
        notices.publish("incident.opened", incident())
        await asyncio.sleep(1)
        await notices.end()
        assert clock.time() - UNIX_START <= 1 + LAST_S
    assert [changes for _, changes in (*held.sent, *gathered.sent)] == [["opened ci"]] * 2
    assert len(failing.sent) == 0


@virtually
async def test_owners_get_those_about_their_receivers() -> None:
    clock = LoopClock()
    operator, mine, other = Recorder(clock), Recorder(clock), Recorder(clock)
    recipients = [Recipient([operator]), Recipient([mine], "acme"), Recipient([other], "beta")]
    async with running(*recipients, owner="acme") as notices:
        notices.publish("incident.opened", incident())
        await asyncio.sleep(1)
    assert (len(operator.sent), len(mine.sent), len(other.sent)) == (1, 1, 0)


@pytest.mark.parametrize(("fails", "sent"), [(TRIES - 1, 1), (TRIES, 0)])
def test_what_is_not_taken_is_tried_again_a_few_times(fails: int, sent: int) -> None:
    @virtually
    async def run() -> None:
        channel = Recorder(LoopClock(), fails=fails)
        async with running(Recipient([channel])) as notices:
            notices.publish("incident.opened", incident())
            await asyncio.sleep(AGAIN_S * 2**TRIES)
        assert len(channel.sent) == sent

    run()


@virtually
async def test_what_waits_is_bounded() -> None:
    channel = Recorder(LoopClock(), pages=True)
    async with running(Recipient([channel])) as notices:
        for number in range(MOST + 10):
            notices.publish("incident.opened", incident(f"r{number}"))
        await asyncio.sleep(1)
    assert len(channel.sent) == MOST


@virtually
async def test_what_changes_while_a_notice_is_sent_is_sent_afterwards() -> None:
    chat = Recorder(LoopClock(), slow_s=15.0)
    async with running(Recipient([chat], digest_s=60.0)) as notices:
        notices.publish("incident.opened", incident("ci"))
        await asyncio.sleep(70)
        notices.publish("incident.resolved", incident("ci"))
        await asyncio.sleep(300)
    assert [changes for _, changes in chat.sent] == [["opened ci"], ["resolved ci"]]


@virtually
async def test_a_slow_channel_delays_no_page() -> None:
    clock = LoopClock()
    mails, pages = Recorder(clock, slow_s=300.0), Recorder(clock, pages=True)
    async with running(Recipient([mails, pages])) as notices:
        notices.publish("incident.opened", incident("ci"))
        await asyncio.sleep(1)
        notices.publish("incident.opened", incident("cd"))
        await asyncio.sleep(1)
        assert [changes for _, changes in pages.sent] == [["opened ci"], ["opened cd"]]


@virtually
async def test_a_page_that_is_refused_takes_no_other_with_it() -> None:
    pages = Recorder(LoopClock(), pages=True, refuses="ci")
    async with running(Recipient([pages])) as notices:
        notices.publish("incident.opened", incident("ci"))
        notices.publish("incident.opened", incident("cd"))
        await asyncio.sleep(1)
        assert [changes for _, changes in pages.sent] == [["opened cd"]]


@virtually
async def test_a_mail_server_may_refuse_the_first_tries_for_minutes() -> None:
    clock = LoopClock()
    mails = Recorder(clock)

    class Greylisting(Recorder):
        async def send(self, digest: Sequence[News]) -> None:
            if clock.time() < UNIX_START + 300:
                raise NotSent("450 try again in 300 s")
            await mails.send(digest)

    async with running(Recipient([Greylisting(clock)])) as notices:
        notices.publish("incident.opened", incident("ci"))
        await asyncio.sleep(700)
    assert [changes for _, changes in mails.sent] == [["opened ci"]]


@virtually
async def test_a_clock_that_is_set_back_delays_no_notice() -> None:
    clock = OffClock(3_600.0)
    chat = Recorder(clock)
    notices = IncidentNotices([Recipient([chat], digest_s=60.0)], lambda _one: None, clock, Metrics("0"))
    task = asyncio.create_task(notices.run())
    notices.publish("incident.opened", incident("ci"))
    await asyncio.sleep(1)
    clock.off_s = 0.0
    notices.publish("incident.opened", incident("cd"))
    await asyncio.sleep(70)
    assert [changes for _, changes in chat.sent] == [["opened ci", "opened cd"]]
    task.cancel()
    await asyncio.wait([task])


@virtually
async def test_an_incident_whose_owner_cannot_be_read_now_is_told_to_the_operator() -> None:
    def owner_of(_one: Incident) -> str | None:
        raise LogUnavailable("the index of receivers is being rebuilt")

    pages, owners = Recorder(LoopClock(), pages=True), Recorder(LoopClock(), pages=True)
    recipients = [Recipient([pages]), Recipient([owners], "team-42")]
    notices = IncidentNotices(recipients, owner_of, LoopClock(), Metrics("0"))
    task = asyncio.create_task(notices.run())
    notices.publish("incident.opened", incident("ci"))
    await asyncio.sleep(1)
    assert [changes for _, changes in pages.sent] == [["opened ci"]]
    assert owners.sent == []
    task.cancel()
    await asyncio.wait([task])


# --- by HTTP and SMTP ---------------------------------------------------------------------------------------------


class Hook:
    """Takes JSON, as the webhook of a chat does."""

    def __init__(self) -> None:
        self.bodies: list[Any] = []
        self.came = asyncio.Event()
        self.url = ""

    def texts(self) -> list[str]:
        return [body["text"] for body in self.bodies]

    async def post(self, request: web.Request) -> web.Response:
        self.bodies.append(await request.json())
        self.came.set()
        return web.Response(text="ok")


@asynccontextmanager
async def hook() -> AsyncIterator[Hook]:
    one, app = Hook(), web.Application()
    app.router.add_post("/hook", one.post)
    async with serving(app) as url:
        one.url = f"{url}/hook"
        yield one


class MailServer:
    """Takes e-mails, as an SMTP server does. `refuses`: the reply to this recipient is 550."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.recipients: list[str] = []
        self.refuses = ""
        self.came = asyncio.Event()
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example ESMTP\r\n")
        while line := (await reader.readline()).decode().strip():
            verb = line.split(" ")[0].upper()
            if verb == "DATA":
                writer.write(b"354 go on\r\n")
                data = await reader.readuntil(b"\r\n.\r\n")
                self.messages.append(message_from_bytes(data.removesuffix(b".\r\n")))
                self.came.set()
            if verb == "RCPT":
                self.recipients.append(line.partition("<")[2].partition(">")[0])
            refused = verb == "RCPT" and f"<{self.refuses}>" in line
            writer.write(b"550 no such user\r\n" if refused else b"221 bye\r\n" if verb == "QUIT" else b"250 ok\r\n")
            if verb == "QUIT":
                break
        await writer.drain()
        writer.close()


@asynccontextmanager
async def mail_server() -> AsyncIterator[MailServer]:
    one = MailServer()
    server = await asyncio.start_server(one.serve, "127.0.0.1", 0)
    one.port = server.sockets[0].getsockname()[1]
    try:
        yield one
    finally:
        server.close()


@asynccontextmanager
async def transport() -> AsyncIterator[LeanTransport]:
    one = LeanTransport(LOOPBACK)
    await one.start()
    try:
        yield one
    finally:
        await one.close()


NEWS = [News("incident.opened", incident(), UNIX_START)]


async def test_chat_and_pagerduty_are_sent_json() -> None:
    async with hook() as chat, hook() as pages, transport() as sender:
        await Slack(chat.url, sender, BASE).send(NEWS)
        await PagerDuty("a-key", pages.url, sender, BASE).send(NEWS)
        assert f"{BASE}/ui/incidents/{incident().id}" in chat.bodies[0]["text"]
        assert (pages.bodies[0]["routing_key"], pages.bodies[0]["dedup_key"]) == ("a-key", incident().id)


async def test_a_chat_that_refuses_or_is_away_has_not_been_sent_it() -> None:
    async with hook() as chat, transport() as sender:
        with pytest.raises(NoticeRejected, match="404"):
            await Slack(chat.url + "s", sender, BASE).send(NEWS)
        with pytest.raises(NotSent, match="refused"):
            await Slack("http://127.0.0.1:9/", sender, BASE).send(NEWS)


async def test_an_e_mail_is_sent_by_smtp() -> None:
    async with mail_server() as server:
        channel = Mail(SmtpServer("127.0.0.1", server.port, tls=False), "relay@example.com", ["ops@example.com"], BASE)
        await channel.send(NEWS)
        [message] = server.messages
        assert message["Subject"] == "[relay] ci: The receiver rejected our credentials (401)"
        assert server.recipients == ["ops@example.com"]
        assert "3 messages wait." in str(message.get_payload())
        server.refuses = "ops@example.com"
        with pytest.raises(NotSent, match="550"):
            await channel.send(NEWS)


@pytest.mark.parametrize("host", ["mail..example", "m" * 64 + ".example"])
async def test_a_mail_server_whose_name_cannot_be_looked_up_ends_nothing(host: str) -> None:
    with pytest.raises(NotSent, match="label"):
        await Mail(SmtpServer(host, 25, tls=False), "relay@example.com", ["ops@example.com"], BASE).send(NEWS)


async def test_an_e_mail_that_one_recipient_does_not_get_is_logged() -> None:
    async with mail_server() as server:
        server.refuses = "gone@example.com"
        recipients = ["ops@example.com", "gone@example.com"]
        channel = Mail(SmtpServer("127.0.0.1", server.port, tls=False), "relay@example.com", recipients, BASE)
        with capture_logs() as lines:
            await channel.send(NEWS)
        assert len(server.messages) == 1
        assert [(line["event"], line["error"]) for line in lines] == [
            ("notice_not_sent", "gone@example.com: 550 no such user")
        ]


async def test_a_relay_sends_notices_about_a_receiver_that_rejects_it(tmp_path: Path) -> None:
    async with hook() as operator, hook() as owner, mail_server() as mails:
        environ = {
            "RELAY_NOTICE_SLACK_URL": operator.url,
            "RELAY_NOTICE_EMAIL_TO": "ops@example.com",
            "RELAY_NOTICE_EMAIL_FROM": "relay@example.com",
            "RELAY_NOTICE_SMTP_URL": f"smtp://127.0.0.1:{mails.port}",
            "RELAY_NOTICE_DIGEST": "0s",
            "RELAY_NOTICE_OWNERS": json.dumps({"acme": {"slack_url": owner.url}}),
            "RELAY_PUBLIC_URL": BASE,
        }
        async with DevRelay(tmp_path, environ) as dev:
            await dev.receiver("ci", "https://10.11.12.13/hooks", owner="acme", retry={"max_attempts": 1})
            await dev.send("shop", "m-1", to="ci")
            for hooked in (operator, owner):
                await _until_said(hooked.came, hooked.texts)
            await _until_said(mails.came, lambda: [str(message.get_payload()) for message in mails.messages])
        assert all(f"<{BASE}/ui/incidents/inc_" in body["text"] for body in (*operator.bodies, *owner.bodies))


async def _until_said(came: asyncio.Event, texts: Callable[[], list[str]]) -> None:
    """Until one of them is about the blocked address."""
    async with asyncio.timeout(60):
        while not any("The address is blocked" in text for text in texts()):
            came.clear()
            await came.wait()
