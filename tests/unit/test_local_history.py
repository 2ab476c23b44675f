"""A relay whose servers are all on this machine has a history without being asked for one, and commands wait for it."""

import asyncio
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner

from relay.cli.history import history, with_local_history
from relay.config.setting_layers import load_settings
from relay.config.settings import Settings
from tests.fakes.history import MemoryHistory


def url_of(settings: Settings) -> str | None:
    return None if settings.history_url is None else settings.history_url.get_secret_value()


def local(tmp_path: Path, **environ: str) -> str | None:
    settings = load_settings({}, {f"RELAY_{name.upper()}": value for name, value in environ.items()})
    return url_of(with_local_history(settings, {"XDG_DATA_HOME": str(tmp_path)}))


@pytest.mark.parametrize("redis", ["redis://localhost:6379/0", "redis://user:pass@127.0.0.1:6379", "unix:///run/redis"])
def test_one_machine_that_runs_all_keeps_it_in_sqlite(tmp_path: Path, redis: str) -> None:
    url = local(tmp_path, kafka_bootstrap_servers="127.0.0.1:9092, localhost:9093", redis_url=redis)
    assert url is not None
    path = Path(urlsplit(url).path)
    assert path.parent.is_dir()
    assert path.is_relative_to(tmp_path)


@pytest.mark.parametrize(
    ("brokers", "redis"),
    [
        ("kafka:9092", "redis://localhost"),
        ("localhost:9092,kafka-2:9092", "redis://localhost"),
        ("localhost:9092", "redis://redis:6379"),
        ("localhost:9092", "redis+cluster://localhost:7000,other:7000"),
    ],
)
def test_where_other_machines_may_take_part_there_is_none(tmp_path: Path, brokers: str, redis: str) -> None:
    assert local(tmp_path, kafka_bootstrap_servers=brokers, redis_url=redis) is None


def test_two_installations_on_one_machine_have_one_each(tmp_path: Path) -> None:
    assert local(tmp_path) == local(tmp_path) != local(tmp_path, topic_prefix="staging.")


def test_what_is_set_stays(tmp_path: Path) -> None:
    assert local(tmp_path, history_url="sqlite:///var/lib/relay/history.db") == "sqlite:///var/lib/relay/history.db"
    assert local(tmp_path, history_url="none") is None


def test_without_a_place_for_it_there_is_none() -> None:
    assert url_of(with_local_history(Settings(), {"XDG_DATA_HOME": "/dev/null"})) is None


class Migrating(MemoryHistory):
    async def start(self) -> None:
        await asyncio.sleep(0.4)


def test_a_command_waits_for_a_migration_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relay.cli.history.ANSWER_S", 0.2)
    monkeypatch.setattr("relay.cli.history.NOTICE_S", 0.1)
    monkeypatch.setattr("relay.run.history_part.opened", lambda _settings: Migrating())
    done = CliRunner(env={"RELAY_HISTORY_URL": "none"}).invoke(history, ["rebuild", "--yes"])
    assert done.exception is None, done
    assert done.stderr.startswith("the tables of the history are being prepared")
    assert done.stdout.startswith("It is empty")


class Silent(MemoryHistory):
    async def clear(self) -> None:
        await asyncio.Event().wait()


def test_a_command_says_how_long_it_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relay.cli.history.ANSWER_S", 0.1)
    monkeypatch.setattr("relay.run.history_part.opened", lambda _settings: Silent())
    done = CliRunner(env={"RELAY_HISTORY_URL": "none"}).invoke(history, ["rebuild", "--yes"])
    assert str(done.exception) == "the history does not answer: no reply within 0.1 s"
