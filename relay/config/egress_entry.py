"""What may be written in receivers.yaml about how one endpoint is reached."""

from relay.config.entry import Entry
from relay.config.tls_entry import TlsEntry, tls_of
from relay.domain.egress import Egress


class EgressEntry(Entry):
    """Fields of every endpoint; none of them: it is reached as the settings of the relay say."""

    tls: TlsEntry | None = None


def egress_of(entry: EgressEntry) -> Egress | None:
    """What an entry without references stands for; None: nothing of its own."""
    found = Egress(tls_of(entry.tls))
    return None if found == Egress() else found
