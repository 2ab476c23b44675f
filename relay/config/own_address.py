"""The API's own address: its URL and host names, and the checks before it is exposed beyond this machine."""

from ipaddress import IPv6Address, ip_address
from typing import Final

from relay.config.settings import Settings
from relay.domain.api_key import id_of
from relay.domain.errors import UserError

SHORTEST_KEY: Final = 16
"""Characters. 16 random ones cannot be guessed over a network; short words can within minutes."""
_EVERY_ADDRESS: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  listening address -> address to connect to


def is_loopback(host: str) -> bool:
    """Whether a host, as in a setting or a Host header (without brackets), is a loopback address or `localhost`.

    Other names are not resolved: they could lead to any machine.
    """
    name = host.rstrip(".").lower()
    if name == "localhost":
        return True
    try:
        address = ip_address(name)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_loopback


def own_url(host: str, port: int) -> str:
    """The URL at which this machine reaches a server that listens on `host` and `port`."""
    reached = _EVERY_ADDRESS.get(host, host)
    return f"http://[{reached}]:{port}" if ":" in reached else f"http://{reached}:{port}"


def own_names(settings: Settings) -> tuple[str, ...]:
    """Host names that the API accepts in a Host header, beside loopback: see RELAY_ALLOWED_HOSTS."""
    listening = () if settings.api_host in _EVERY_ADDRESS else (settings.api_host.lower(),)
    return (*settings.allowed_hosts, *listening)


class Exposed(UserError):
    """Other machines could use the API without a key, unless an API key was created."""


def may_be_open(settings: Settings) -> bool:
    """Whether the API may be served without any key."""
    return settings.api_insecure or is_loopback(settings.api_host)


def check_exposure(settings: Settings) -> None:
    """Raises Exposed if other machines can reach the API and the settings have no key for it."""
    if settings.api_key is None and not may_be_open(settings):
        raise Exposed(
            f"RELAY_API_HOST: {settings.api_host} can be reached from outside, RELAY_API_KEY is not set, and no API key"
            " was created (relay keys create): anyone could send and read messages; set RELAY_API_KEY"
            " (or RELAY_API_INSECURE=true to allow this)"
        )


def check_key(settings: Settings) -> None:
    """Raises UserError if RELAY_API_KEY could be guessed, or is a created API key."""
    check_own_key(settings)
    if settings.api_key is not None and len(settings.api_key.get_secret_value()) < SHORTEST_KEY:
        raise UserError(
            f"RELAY_API_KEY: shorter than {SHORTEST_KEY} characters, so it could be guessed;"
            " make one with: openssl rand -hex 32"
        )


def check_own_key(settings: Settings) -> None:
    """Raises UserError if RELAY_API_KEY is a created API key: that is valid anyway, with its own scopes, and here it
    would have all permissions."""
    if settings.api_key is not None and id_of(settings.api_key.get_secret_value()) is not None:
        raise UserError(
            "RELAY_API_KEY: is a key that was created with `relay keys create`. Commands may use it to call the API,"
            " but a process of the relay would give it all permissions: unset it here, or set another one"
        )
