"""`relay history`: shows the history's lag, and rebuilds it from the log."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final, TypedDict, TypeVar
from urllib.parse import quote, urlsplit

import click
from pydantic import SecretStr

from relay.api.shared_port import installation_id
from relay.cli.options import CommandGroup, config_option, confirm, output_option, settings_from
from relay.cli.table import print_json, print_table, show_as
from relay.config.own_address import is_loopback
from relay.config.settings import Settings
from relay.domain.errors import HistoryUnavailable, LogUnavailable, RelayError, UserError
from relay.domain.text import counted
from relay.domain.topics import Topics
from relay.embedded.directory import user_directory
from relay.history.port import History, Size
from relay.log.port import Coordinate, Log, TopicPartition


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


T = TypeVar("T")

ANSWER_S: Final = 60.0
NOTICE_S: Final = 5.0
_PREPARES: Final = (
    "the tables of the history are being prepared; if this release changes them, a large history takes long"
)


class TopicLag(TypedDict):
    """Lag of the history worker in one topic. `behind`: unread records; `behind_s`: age of the oldest one; `lost`:
    records that were deleted before it read them."""

    topic: str
    behind: int
    behind_s: float
    lost: int


@click.group(cls=CommandGroup)
def history() -> None:
    """Show the history's lag, or rebuild it.

    Both connect to the history and to Kafka directly, with RELAY_HISTORY_URL and RELAY_KAFKA_... of this shell.
    """


@history.command()
@config_option
@output_option
def status(config_file: Path | None, output: str) -> None:
    """Show its contents, and its lag for each topic."""
    settings = settings_from(config_file)
    topics, size = _ask(settings, lambda store: _status(settings, store))
    if output == "json":
        print_json({"topics": topics, **size._asdict()})
        return
    print_table(("TOPIC", "BEHIND", "SECONDS", "LOST"), [tuple(map(str, one.values())) for one in topics])
    attempts, stored = counted(size.attempts, "attempt"), "" if size.bytes is None else f"; {size.bytes / 1e6:.1f} MB"
    click.echo(f"{counted(size.messages, 'message')}, {size.deliveries:,} deliveries, {attempts}{stored}")


@history.command()
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
@config_option
@output_option
def rebuild(*, yes: bool, config_file: Path | None, output: str) -> None:
    """Delete everything in it; the worker then fills it again from the topics.

    A running worker notices within seconds; one that starts later begins with that. Data older than the retention of
    the topics is lost.
    """
    settings = settings_from(config_file)
    confirm("Delete the history, and rebuild it from the topics?", yes=yes)
    _ask(settings, lambda store: store.clear())
    done = "It is empty; the worker fills it. Progress: relay history status"
    show_as({"cleared": True}, output, lambda _: click.echo(done))


def _ask(settings: Settings, work: Callable[[History], Awaitable[T]]) -> T:
    """The result of `work` on the store. Raises UserError if there is none, or it does not answer."""
    from relay.run.history_part import opened  # its imports take time, which few commands need

    async def run() -> T:
        store = opened(with_local_history(settings, os.environ))
        if store is None:
            raise UserError(
                "RELAY_HISTORY_URL: no history is configured; `relay dev` has its own, history.db in its data"
            )
        try:
            await _start(store)
            async with asyncio.timeout(ANSWER_S):
                return await work(store)
        except (HistoryUnavailable, TimeoutError) as error:
            why = str(error) or f"no reply within {ANSWER_S:g} s"
            raise RelayError(f"the history does not answer: {why}") from error
        finally:
            await store.close()

    return asyncio.run(run())


async def _start(store: History) -> None:
    """Starts it without a time limit: a migration that is cut off begins again."""
    notice = asyncio.get_running_loop().call_later(NOTICE_S, partial(click.echo, _PREPARES, err=True))
    try:
        await store.start()
    finally:
        notice.cancel()


async def _status(settings: Settings, store: History) -> tuple[list[TopicLag], Size]:
    from relay.run.composition import open_log

    taken, size = await store.next_offsets(), await store.size()
    try:
        async with open_log(settings) as log:
            return await _topics(log, Topics(settings.topic_prefix), taken), size
    except LogUnavailable as error:
        raise RelayError(f"Kafka does not answer: {error}") from error


async def _topics(log: Log, topics: Topics, taken: dict[TopicPartition, int]) -> list[TopicLag]:
    from relay.history.lag import topics_read

    found = {topic: TopicLag(topic=topic, behind=0, behind_s=0.0, lost=0) for topic in topics_read(topics)}
    for span in await log.backlogs(dict.fromkeys(found, topics.group("history"))):
        one, has = found[span.partition.topic], taken.get(span.partition, 0)
        one["behind"] += max(0, span.end - max(has, span.first))
        one["lost"] += max(0, span.first - has) if span.partition in taken else 0
        if max(has, span.first) < span.end:
            [record] = await log.read([(Coordinate(*span.partition, max(has, span.first)), None)])
            if record is not None:
                one["behind_s"] = max(one["behind_s"], round(time.time() - record.timestamp_ms / 1000, 1))
    return list(found.values())
