"""Builds the transport to receivers and callbacks from the settings, and its limit of requests in flight."""

from typing import Final

from relay import __version__
from relay.config.limits import KEPT, check_descriptors, descriptor_limit, most_requests
from relay.config.receiver_entry import ReceiverEntry
from relay.config.redacted_entry import shown_url
from relay.config.references import has_reference
from relay.config.settings import Settings
from relay.delivery.guard import AddressGuard
from relay.delivery.lean_transport import LeanTransport
from relay.delivery.proxy import EgressProxy, proxy_of
from relay.domain.errors import UserError

USER_AGENT: Final = f"relay/{__version__}"


def requests_of(settings: Settings, descriptors: int | None = None) -> int:
    """Maximum number of requests in flight with `descriptors`; None for this process's limit. Raises UserError if there
    are too few."""
    descriptors, wanted = descriptors or descriptor_limit(), settings.max_requests
    check_descriptors(descriptors)
    if wanted is None:
        return most_requests(descriptors)
    if wanted > descriptors - KEPT:
        raise UserError(
            f"RELAY_MAX_REQUESTS: {wanted} requests need more than the {descriptors} descriptors that this process may "
            f"have, of which {KEPT} are kept for Kafka, Redis and the API; raise `ulimit -n`, or leave it out"
        )
    return wanted


def transport_of(settings: Settings, most_open: int) -> LeanTransport:
    """Raises UserError."""
    return LeanTransport(
        guard_of(settings),
        body_cap=settings.answer_body_cap,
        ca_file=str(settings.ca_file) if settings.ca_file else None,
        proxy=egress_proxy_of(settings),
        most_open=most_open,
    )


def guard_of(settings: Settings) -> AddressGuard:
    return AddressGuard(settings.allow_private_networks, bool(settings.allow_http), settings.allow_private_names)


def blocked_endpoint(settings: Settings, entry: ReceiverEntry) -> str | None:
    """Why nothing would be sent to the receiver's URL, judged without DNS; None if nothing is known against it. A proxy
    decides on its own."""
    if settings.egress_proxy is not None or entry.proxy is not None or has_reference(entry.post_endpoint):
        return None
    why = guard_of(settings).check_url(entry.post_endpoint)
    if why is None:
        return None
    return f"with these settings the relay would send nothing to {shown_url(entry.post_endpoint)}: {why}"


def egress_proxy_of(settings: Settings) -> EgressProxy | None:
    """Raises UserError."""
    if settings.egress_proxy is None:
        return None
    try:
        return proxy_of(settings.egress_proxy.get_secret_value(), settings.no_proxy)
    except ValueError as error:
        raise UserError(f"RELAY_EGRESS_PROXY: {error}") from error
