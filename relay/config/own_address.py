"""The address of our own API: how it is written, who reaches it, and what has to be set before others may."""

from ipaddress import IPv6Address, ip_address
from typing import Final

from relay.config.settings import Settings
from relay.domain.api_key import id_of
from relay.domain.errors import UserError

SHORTEST_KEY: Final = 16
"""Characters. Nobody guesses 16 random ones over a network; words of a few letters are tried in minutes."""
_EVERY_ADDRESS: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  what is listened on -> how we reach it


def is_loopback(host: str) -> bool:
    """Whether a host, as in a setting or a Host header (without brackets), is this machine and nobody else's.

    Only what says so by itself: a name that a resolver would have to be asked about could be anybody's.
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
    """Where this machine reaches what listens on `host` and `port`."""
    reached = _EVERY_ADDRESS.get(host, host)
    return f"http://[{reached}]:{port}" if ":" in reached else f"http://{reached}:{port}"


def own_names(settings: Settings) -> tuple[str, ...]:
    """What the API may be called in a Host header, beside the names of loopback: see RELAY_ALLOWED_HOSTS."""
    listening = () if settings.api_host in _EVERY_ADDRESS else (settings.api_host.lower(),)
    return (*settings.allowed_hosts, *listening)


class Exposed(UserError):
    """Others than this machine could use the API, unless there is a key that was made."""


def may_be_open(settings: Settings) -> bool:
    """Whether the API may serve everybody while it has no key."""
    return settings.api_insecure or is_loopback(settings.api_host)


def check_exposure(settings: Settings) -> None:
    """Raises Exposed where others than this machine can reach the API, and the settings have no key for it."""
    if settings.api_key is None and not may_be_open(settings):
        raise Exposed(
            f"RELAY_API_HOST: {settings.api_host} can be reached from outside, RELAY_API_KEY is not set, and no key is"
            " known that was made (relay keys create): anybody could send and read messages; set RELAY_API_KEY"
            " (or RELAY_API_INSECURE=true, if that is what you want)"
        )


def check_key(settings: Settings) -> None:
    """Raises UserError for a key that could be guessed, or is another one's."""
    check_own_key(settings)
    if settings.api_key is not None and len(settings.api_key.get_secret_value()) < SHORTEST_KEY:
        raise UserError(
            f"RELAY_API_KEY: shorter than {SHORTEST_KEY} characters, so it could be guessed;"
            " make one with: openssl rand -hex 32"
        )


def check_own_key(settings: Settings) -> None:
    """Raises UserError where the key of the API is one that was made: with its scopes it is known anyway, and here it
    would be let do everything."""
    if settings.api_key is not None and id_of(settings.api_key.get_secret_value()) is not None:
        raise UserError(
            "RELAY_API_KEY: is a key that was made with `relay keys create`; commands use it to call the API, but a"
            " process of the relay would let it do everything: unset it here, or take another: openssl rand -hex 32"
        )
