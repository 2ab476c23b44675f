"""The default history of a relay whose brokers and Redis are all on this machine: in SQLite."""

from collections.abc import Mapping
from urllib.parse import quote, urlsplit

from pydantic import SecretStr

from relay.api.shared_port import installation_id
from relay.config.own_address import is_loopback
from relay.config.settings import Settings
from relay.embedded.directory import user_directory


def with_local_history(settings: Settings, environ: Mapping[str, str]) -> Settings:
    """The settings, with a history in this user's data directory if none is set and one machine runs everything.

    All processes of the installation find the same one. If that directory cannot be created there is none.
    """
    if "history_url" in settings.model_fields_set or not all(
        is_loopback(host) for hosts in hosts_of_stores(settings) for host in hosts
    ):
        return settings
    servers = settings.kafka_bootstrap_servers.split(",")
    directory = user_directory(environ) / f"run-{installation_id(servers, settings.topic_prefix)[:12]}"
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return settings
    url = SecretStr(f"sqlite://{quote(str(directory / 'history.db'))}")
    return settings.model_copy(update={"history_url": url})


def hosts_of_stores(settings: Settings) -> tuple[list[str], list[str]]:
    """Hosts of the brokers, and of Redis; none for a socket of this machine."""
    redis = urlsplit(settings.redis_url.get_secret_value())
    brokers, servers = settings.kafka_bootstrap_servers, redis.netloc.rpartition("@")[2]
    return _hosts(brokers), [] if redis.scheme == "unix" else _hosts(servers)


def _hosts(servers: str) -> list[str]:
    return [urlsplit(f"//{server.strip()}").hostname or "" for server in servers.split(",")]
