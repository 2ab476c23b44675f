"""Sends e-mails to an SMTP server, by aiosmtplib, which is an optional dependency."""

from dataclasses import dataclass, field
from email.message import EmailMessage
from typing import Final
from urllib.parse import unquote, urlsplit

from relay.domain.errors import UserError

TIMEOUT_S: Final = 20.0
_PORTS: Final = {"smtp": 587, "smtps": 465}


@dataclass(frozen=True, slots=True)
class SmtpServer:
    """`tls`: from the first byte; otherwise STARTTLS is used if the server offers it."""

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
                timeout=TIMEOUT_S,
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
