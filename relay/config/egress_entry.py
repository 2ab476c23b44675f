"""What may be written in receivers.yaml about how one endpoint is reached."""

from typing import Annotated, Final

from pydantic import AfterValidator, Field

from relay.config.entry import Entry, Text
from relay.config.oauth2_entry import OAuth2Entry, oauth2_of
from relay.config.references import has_reference
from relay.config.tls_entry import TlsEntry, tls_of
from relay.domain.egress import Egress, ProxyChoice
from relay.domain.proxy_address import proxy_address

FILE_ONLY: Final = (("proxy",), ("callback", "proxy"))
"""Places in the entries of receivers and sources of what decides where requests go, whatever the address: it is not for
whoever may only use the API."""


def _proxy(value: str) -> str:
    if value != _NONE and not has_reference(value):
        proxy_address(value)
    return value


_NONE: Final = "none"
Proxy = Annotated[Text, AfterValidator(_proxy), Field(description="Only in the receivers file.")]


class EgressEntry(Entry):
    """Fields of every endpoint; none of them: it is reached as the settings of the relay say."""

    tls: TlsEntry | None = None
    """TLS settings of this endpoint alone: authorities, client certificate, pins."""
    proxy: Proxy | None = None
    """Proxy to reach it through, in place of RELAY_EGRESS_PROXY: `http://[user:password@]host[:port]`, or `none`. Only
    in the receivers file."""
    oauth2: OAuth2Entry | None = None
    """Client credentials for an access token, in place of `bearer_token`."""


def egress_of(entry: EgressEntry) -> Egress | None:
    """What an entry without references stands for; None: nothing of its own."""
    found = Egress(tls_of(entry.tls), _proxy_of(entry.proxy), oauth2_of(entry.oauth2))
    return None if found == Egress() else found


def _proxy_of(written: str | None) -> ProxyChoice | None:
    if written is None:
        return None
    return "none" if written == _NONE else proxy_address(written)
