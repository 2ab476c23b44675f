"""Types of settings: parses and validates their values, with error texts for users; also those of notices about
incidents."""

import base64
import binascii
import re
from collections.abc import Callable, Iterator
from io import SEEK_END
from ipaddress import AddressValueError, IPv4Network, IPv6Address, IPv6Network, ip_network
from pathlib import Path
from typing import Annotated, Final, Literal
from urllib.parse import SplitResult, parse_qs, urlsplit

import msgspec
from pydantic import BeforeValidator, ByteSize, Field, SecretStr

from relay.config.encryption import KEY_BYTES
from relay.config.entry_types import check_url, checked
from relay.domain.incident_notice import parse_quiet_hours
from relay.domain.jwe import private_keys
from relay.domain.times import parse_duration

LOGO_SUFFIXES: Final = (".svg", ".png", ".webp", ".jpg")
_MOST_LOGO: Final = 64 * 1024
"""Bytes."""
SHORTEST_SESSION_SECRET: Final = 16
"""Characters."""
_REDIS_SCHEMES: Final = {"unix", *(tls + kind for tls in ("redis", "rediss") for kind in ("", "+sentinel", "+cluster"))}
_HOST_NAME = re.compile(r"(\*\.)?[a-z0-9_-]+(\.[a-z0-9_-]+)*|[0-9a-f:.]*:[0-9a-f:.]*:[0-9a-f:.]*")
_PRIVATE_NAME = re.compile(r"([a-z0-9_-]+\.)*(?!(\d+|0x[0-9a-f]*)$)[a-z0-9_-]+")
_SERVER = re.compile(r"([\w-]+(\.[\w-]+)*\.?|\[(?P<ipv6>[^\]]*)\])(:(?P<port>[0-9]{1,5}))?")
_VARIABLES = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\*?|\*")
_ORIGIN = re.compile(r"https?://(([a-z0-9_-]+\.)*[a-z0-9_-]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?")
_TOPIC_PREFIX = re.compile(r"[a-zA-Z0-9._-]{0,100}")


def items_of(value: object, expected: str) -> list[object]:
    """The items of a comma-separated text, or of a list. Raises ValueError that names what was `expected`."""
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    if isinstance(value, list | tuple):
        return list(value)
    raise ValueError(f"not a list of {expected}")


def listed(expected: str, item: Callable[[str], object] = str) -> BeforeValidator:
    """Reads a comma-separated text, or a list, with `item`. `expected`: for the error."""
    return BeforeValidator(lambda value: tuple(item(str(each)) for each in items_of(value, expected)))


def _network(value: str) -> IPv4Network | IPv6Network:
    try:
        return ip_network(value)
    except ValueError as error:
        raise ValueError(f"{error}; write a network as 10.0.0.0/8 or fd00::/8") from error


def _variable_name(text: str) -> str:
    if not _VARIABLES.fullmatch(text):
        raise ValueError(f"{text!r} is neither the name of an environment variable nor a prefix followed by *")
    return text


def _check_logo(value: Path) -> None:
    if value.suffix.lower() not in LOGO_SUFFIXES:
        raise ValueError(f"needs one of the suffixes {', '.join(LOGO_SUFFIXES)}")
    try:
        with value.open("rb") as file:
            size = file.seek(0, SEEK_END)
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror}") from None
    if size > _MOST_LOGO:
        raise ValueError(f"has {size} bytes; {_MOST_LOGO} are allowed")


def lowered(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


def check_topic_prefix(value: str) -> None:
    if not _TOPIC_PREFIX.fullmatch(value):
        raise ValueError(f"{value!r} is not allowed; at most 100 of a-z, A-Z, 0-9 and . _ -")


def url_without_slash(value: str) -> str:
    return check_url(value).rstrip("/")


def _host_name(text: str) -> str:
    name = text.lower().strip("[]")
    if not _HOST_NAME.fullmatch(name):
        raise ValueError(
            f"{text!r} is not a host name; write it without scheme, port and path, as relay.example or *.relay.example"
        )
    return name


def _private_name(text: str) -> str:
    """Normalized like the host of a URL: in lower case, in ASCII (IDNA), without a trailing dot."""
    rest = text.removeprefix("*.")
    try:
        name = rest.removesuffix(".").encode("idna").decode().lower()
    except UnicodeError:
        name = ""
    if not _PRIVATE_NAME.fullmatch(name):
        raise ValueError(
            f"{text!r} is not a host name; write it without scheme, port and path, as ci.internal or *.internal; "
            "addresses belong into RELAY_ALLOW_PRIVATE_NETWORKS"
        )
    return name if rest == text else f"*.{name}"


def check_brokers(value: str) -> None:
    for part in value.split(","):
        if not _is_server(part.strip()):
            raise ValueError(f"{part.strip()!r} is not host:port; write the brokers as kafka-1:9092,kafka-2:9092")


def _is_server(text: str) -> bool:
    """Whether it is a host, perhaps with a port. An IPv6 address has brackets, or no port."""
    match = _SERVER.fullmatch(text)
    try:
        if match is None or match["ipv6"] is not None:
            IPv6Address(text if match is None else match["ipv6"])
    except AddressValueError:
        return False
    return match is None or 1 <= int(match["port"] or 1) <= 65535


def check_redis_url(value: str) -> None:
    parts = urlsplit(value)
    if parts.scheme not in _REDIS_SCHEMES:
        raise ValueError(
            "not the URL of a Redis; write redis://host:6379/0, rediss://... (TLS), unix:///path,"
            " redis+sentinel://host1:26379,host2:26379/<name of the master> or redis+cluster://host1:6379,host2:6379"
        )
    escapes = "in a password write / # ? @ as %2F %23 %3F %40"
    if not _has_ports(parts.netloc):
        raise ValueError(f"a port is not a number up to 65535; write redis://host:6379/0; {escapes}")
    # the client would silently use this machine, and database 0
    if parts.scheme != "unix" and not _has_hosts(parts.netloc):
        raise ValueError(f"a host is missing; write redis://host:6379/0; {escapes}")
    if parts.scheme in ("redis", "rediss") and not (parts.path.strip("/") or "0").isdecimal():
        raise ValueError(f"the database after the host is not a number; write redis://host:6379/0; {escapes}")


def _hosts(netloc: str) -> Iterator[SplitResult]:
    return (urlsplit(f"//{host}") for host in netloc.rpartition("@")[2].split(","))


def _has_hosts(netloc: str) -> bool:
    return all(host.hostname for host in _hosts(netloc))


def _has_ports(netloc: str) -> bool:
    """Whether the port of each host that has one can be a port."""
    try:
        for host in _hosts(netloc):
            _ = host.port
    except ValueError:
        return False
    return True


def _are_ports(text: str) -> bool:
    """Whether each of a list with commas can be a port."""
    return _has_ports(f":{text}".replace(",", ",:"))


def none_if_off(value: object) -> object:
    """None for the word `none`, which turns off the history, including the default one."""
    said = value.get_secret_value() if isinstance(value, SecretStr) else value
    return None if said == "none" else value


def check_history_url(value: str) -> None:
    try:
        parts = urlsplit(value)
        query = parse_qs(parts.query)
        is_file = parts.scheme == "sqlite" and not parts.netloc and len(parts.path) > 1
        is_server = parts.scheme in ("postgresql", "postgres") and bool(parts.hostname or "host" in query)
    except ValueError:
        is_file = is_server = False
    if not is_file and not (is_server and _has_ports(parts.netloc) and all(map(_are_ports, query.get("port", ())))):
        raise ValueError(
            "not the URL of a history; write sqlite:///absolute/path/history.db"
            " or postgresql://user:password@host:5432/database"
        )


def _secrets(value: object) -> object:
    if isinstance(value, str):
        value = value.replace("\n", ",")  # in a file, one per line
    found = tuple(items_of(value, "secrets"))
    if isinstance(value, str) and not found:
        raise ValueError("is empty; leave it out, or give it a value")
    return found


def _check_not_empty(value: str) -> None:
    if not value:
        raise ValueError("is empty; leave it out, or give it a value")


def _check_bearer(value: str) -> None:
    """A header loses the spaces around the key, and clients cannot send a control character."""
    if value != value.strip() or not value.isprintable():
        why = "it begins or ends with a space, or has a control character, such as a line break"
        raise ValueError(f"no request can have this key: {why}")


def _check_length(value: str) -> None:
    """Anybody with a token can test guesses of the secret offline."""
    if len(value) < SHORTEST_SESSION_SECRET:
        raise ValueError(f"shorter than {SHORTEST_SESSION_SECRET} characters; make one with: openssl rand -hex 32")


def _hot_receivers(value: object) -> object:
    return "off" if value is False else lowered(value)  # YAML's off


def _origin(text: str) -> str:
    """The origin in lower case, as browsers send it."""
    if not _ORIGIN.fullmatch(text.lower()):
        raise ValueError(f"{text!r} is not an origin; write scheme, host and port alone, as https://app.example")
    return text.lower()


def key_of(value: str) -> bytes:
    """The 32 bytes of a key in RELAY_SECRETS_KEY. Raises ValueError."""
    try:
        key = base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) != KEY_BYTES:
        raise ValueError(f"not base64 of {KEY_BYTES} bytes; make a key with: openssl rand -base64 {KEY_BYTES}")
    return key


Secret = Annotated[SecretStr, checked(_check_not_empty)]
BearerKey = Annotated[Secret, checked(_check_bearer)]
Secrets = Annotated[tuple[Secret, ...], BeforeValidator(_secrets)]
Keys = Annotated[tuple[Annotated[SecretStr, checked(key_of)], ...], BeforeValidator(_secrets)]
SessionSecrets = Annotated[tuple[Annotated[SecretStr, checked(_check_length)], ...], BeforeValidator(_secrets)]
HotReceiverMode = Annotated[Literal["move", "tell", "off"], BeforeValidator(_hot_receivers)]
Origins = Annotated[tuple[str, ...], listed("origins, as https://app.example", _origin)]
Port = Annotated[int, Field(ge=0, le=65_535)]
LogoFile = Annotated[Path, checked(_check_logo)]
Size = Annotated[ByteSize, Field(ge=1)]
HostNames = Annotated[tuple[str, ...], listed("host names, as relay.example,relay-api", _host_name)]
VariableNames = Annotated[tuple[str, ...], listed("environment variables, as CI_SECRET,GITHUB_*", _variable_name)]
PrivateNames = Annotated[tuple[str, ...], listed("host names, as ci.internal,*.svc.cluster.local", _private_name)]
Networks = Annotated[tuple[IPv4Network | IPv6Network, ...], listed("networks, as 10.0.0.0/8", _network)]
HostsAndNetworks = Annotated[tuple[str, ...], listed("hosts and networks, as ci.internal,10.0.0.0/8")]


PrivateJwk = Annotated[SecretStr, checked(private_keys)]
HistoryUrl = Annotated[Annotated[SecretStr, checked(check_history_url)] | None, BeforeValidator(none_if_off)]


_SCHEMES: Final = ("smtp://", "smtps://")


class OwnerNotices(msgspec.Struct, forbid_unknown_fields=True):
    """Where an owner gets notices about its receivers. `digest`: seconds, or as `5m`; None: as the operator's."""

    slack_url: str | None = None
    email_to: tuple[str, ...] = ()
    pagerduty_key: str | None = None
    quiet_hours: str | None = None
    digest: str | float | None = None

    @property
    def digest_s(self) -> float | None:
        return None if self.digest is None else parse_duration(self.digest)


_decode_owners: Final = msgspec.json.Decoder(dict[str, OwnerNotices]).decode


def owners_of(value: SecretStr | None) -> dict[str, OwnerNotices]:
    """The owners of the setting. Raises ValueError."""
    return {} if value is None else _owners_in(value.get_secret_value())


def _owners_in(text: str) -> dict[str, OwnerNotices]:
    try:
        owners = _decode_owners(text)
        for one in owners.values():
            _check(one)
    except msgspec.MsgspecError as error:
        raise ValueError(f'not JSON such as {{"team-42": {{"slack_url": "https://..."}}}}: {error}') from None
    return owners


def _check(one: OwnerNotices) -> None:
    if one.slack_url is not None:
        check_url(one.slack_url)
    if one.quiet_hours is not None:
        parse_quiet_hours(one.quiet_hours)
    for address in one.email_to:
        _address(address)
    parse_duration(one.digest or 0)


def _check_smtp(url: str) -> None:
    try:
        parts = urlsplit(url)
        is_valid = url.startswith(_SCHEMES) and bool(parts.hostname) and parts.port != 0
    except ValueError:  # not passed on: its text may have a part of the password
        is_valid = False
    if not is_valid:
        raise ValueError("not the URL of an SMTP server; write smtp://[user:password@]host[:port], or smtps:// (TLS)")


def _address(text: str) -> str:
    name, at, host = text.rpartition("@")
    if not (name and at and host) or not text.isprintable() or " " in text:
        raise ValueError(f"{text!r} is not an e-mail address")
    return text


WebhookUrl = Annotated[Secret, checked(check_url)]
SmtpUrl = Annotated[Secret, checked(_check_smtp)]
Addresses = Annotated[tuple[str, ...], listed("e-mail addresses, as ops@example.com", _address)]
Hours = Annotated[str, checked(parse_quiet_hours)]
Owners = Annotated[Secret, checked(_owners_in)]
