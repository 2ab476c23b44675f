"""What may be written in receivers.yaml about the access token that goes with what is sent."""

from typing import Annotated, Literal

from pydantic import Field

from relay.config.entry import Entry, SomeText
from relay.config.url_text import Url
from relay.domain.egress import OAuth2

Word = Annotated[SomeText, Field(max_length=4096)]


class OAuth2Entry(Entry):
    """Client credentials of OAuth 2."""

    token_url: Url
    """Where access tokens are issued."""
    client_id: Word
    """Id of the relay at that server."""
    client_secret: Word
    """Secret of the relay at that server; a reference such as `${NAME}`."""
    scope: Word | None = None
    """Scope that is asked for; default: what the server gives."""
    audience: Word | None = None
    """Audience that is asked for; some servers want one."""
    auth: Literal["basic", "body"] = "basic"
    """How id and secret are sent: as HTTP Basic authentication, or in the body."""


def oauth2_of(entry: OAuth2Entry | None) -> OAuth2 | None:
    """What an entry without references stands for."""
    return None if entry is None else OAuth2(**entry.model_dump())
