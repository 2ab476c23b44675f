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
    client_id: Word
    client_secret: Word
    scope: Word | None = None
    audience: Word | None = None
    auth: Literal["basic", "body"] = "basic"


def oauth2_of(entry: OAuth2Entry | None) -> OAuth2 | None:
    """What an entry without references stands for."""
    return None if entry is None else OAuth2(**entry.model_dump())
