"""Tests of /metrics of a relay with traffic: it has all series that alerts and the dashboard use.

With its counters, the alerts fire that should, and no others.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest
import yaml
from aiohttp import ClientSession
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from relay.telemetry.metrics import Metrics
from tests.browser.dev_relay import DevRelay
from tests.integration.test_history_dev import saying
from tests.prometheus.files import RULES, TESTS, alerts, asked, promtool
from tests.servers.asking import until

MESSAGES: Final = 6
LABELS: Final = {family.name: family.label_names for family in Metrics("").families}


class Scraped:
    """One exposition."""

    def __init__(self, text: str) -> None:
        families = list(text_string_to_metric_families(text))
        self.samples = [sample for family in families for sample in family.samples]
        self.names = {sample.name for sample in self.samples}
        self.announced = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE ")}

    def value(self, name: str, **labels: str) -> float:
        """The sum of the series with these labels."""
        return sum(
            sample.value for sample in self.samples if sample.name == name and labels.items() <= sample.labels.items()
        )

    def labels_of(self, name: str) -> set[str]:
        return {label for sample in self.samples if sample.name == name for label in sample.labels}


async def scrape(dev: DevRelay) -> Scraped:
    async with ClientSession() as client, client.get(f"{dev.url}/metrics") as response:
        return Scraped(await response.text())


@asynccontextmanager
async def busy(directory: Path) -> AsyncIterator[DevRelay]:
    """A receiver that answers, one that fails, one whose breaker is open, one that answers later and is asked, and
    senders of which one takes nothing."""
    never = {"base": 60, "factor": 1, "cap": 60}
    async with (
        saying(200) as good,
        saying(401) as wrong,
        saying(202, 200) as later,
        saying(500) as refusing,
        DevRelay(directory) as dev,
    ):
        await dev.source("shop", callback={"url": good})
        await dev.source("deaf", callback={"url": refusing, "retry": {"base": 0.1, "factor": 1, "cap": 0.1}})
        await dev.receiver("good", good)
        await dev.receiver("later", later, status_endpoint=later, poll={"base": 0.1, "factor": 1, "cap": 0.1})
        await dev.receiver(
            "bad",
            wrong,
            retry={"base": 0.1, "factor": 1, "cap": 0.1, "max_attempts": 1},
            breaker={"failures": 1_000},
            ordering="none",
        )
        await dev.receiver(
            "down", wrong, lane="dedicated", retry=never, breaker={"failures": 1, "open_for": 600}, ordering="none"
        )
        for number in range(MESSAGES):
            for receiver in ("good", "bad", "down"):
                await dev.send("shop", f"{receiver}-{number}", to=receiver)
        await dev.send("shop", "later", to="later")
        await dev.send("deaf", "deaf", to="good")
        yield dev


async def until_all_is_seen(dev: DevRelay) -> Scraped:
    found: list[Scraped] = []

    async def is_there() -> bool:
        now = await scrape(dev)
        found[:] = [now]
        return (
            now.value("relay_failed_total", receiver="bad", reason="exhausted") >= MESSAGES
            and now.value("relay_end_to_end_seconds_count", receiver="good", leg="to_sender") >= MESSAGES
            and now.value("relay_answers_total", receiver="later", via="poll") == 1
            and now.value("relay_callback_attempts_total", outcome="retry")
            + now.value("relay_callback_attempts_total", outcome="doubt")
            >= 2
            and now.value("relay_endpoints_held", receiver="down", why="breaker") == 1
            and now.value("relay_consumer_lag", receiver="down", role="to-receiver") >= 1
            and now.value("relay_waiting_records", role="to-receiver", reason="breaker") >= 1
            and "relay_history_behind_seconds" in now.names
        )

    try:
        await until(is_there)
    except TimeoutError:
        shown = [s for s in found[0].samples if s.name.startswith("relay_") and s.value and "bucket" not in s.name]
        pytest.fail("\n".join(map(str, shown)))
    return found[0]


async def test_all_that_is_asked_for_is_there_and_alerts_fire_by_it(tmp_path: Path) -> None:
    async with busy(tmp_path) as dev:
        one = await until_all_is_seen(dev)
        await asyncio.to_thread(fires_by, tmp_path, one)
    for where, metrics, of_some in asked():
        of_all: set[str] = set()
        for name, labels in metrics.items():
            family = name if name in one.announced else name.rpartition("_")[0]
            assert family in one.announced, f"{where}: {name}"
            has = one.labels_of(name) if name in one.names else {*LABELS[family]}
            assert labels <= has, f"{where}: {name} has {sorted(has)}"
            of_all |= has
        if metrics:
            assert of_some <= of_all, where


def fires_by(directory: Path, now: Scraped) -> None:
    """The relay's counters make these alerts fire, and no others. That of failing callbacks depends on chance."""
    expected = {
        "RelayDeadLetters": 'receiver="bad"',
        "RelayReceiverFails": 'receiver="bad"',
        "RelayEndpointHeld": 'receiver="down",why="breaker"',
    }
    others = "|".join(sorted(alerts().keys() - expected.keys() - {"RelayCallbacksRefused", "RelayTargetDown"}))
    cases = [(f'alertname="{name}",{labels}', ONE) for name, labels in expected.items()]
    cases += [(f'receiver=~"good|later",alertname!="{name}"', []) for name in expected]
    cases.append((f'alertname=~"{others}"', []))
    test = {
        "interval": "1m",
        "input_series": [_series(sample) for sample in now.samples if "_bucket" not in sample.name],
        "promql_expr_test": [
            {"expr": f'count(ALERTS{{alertstate="firing",{which}}})', "exp_samples": wanted, "eval_time": "90m"}
            for which, wanted in cases
        ],
    }
    order = yaml.safe_load(TESTS.read_text())["group_eval_order"]
    file = directory / "of-a-relay.yml"
    file.write_text(
        yaml.safe_dump(
            {"rule_files": [str(RULES)], "evaluation_interval": "1m", "group_eval_order": order, "tests": [test]}
        )
    )
    assert "SUCCESS" in promtool("test", "rules", str(file))


ONE: Final = [{"labels": "{}", "value": 1}]


def _series(sample: Sample) -> dict[str, str]:
    """An hour of nothing, and half an hour in which counters go on as they have, as much in every minute."""
    labels = ",".join(
        f'{name}="{value}"' for name, value in {**sample.labels, "instance": "dev", "job": "relay"}.items()
    )
    grows = sample.name.endswith(("_total", "_count", "_sum"))
    values = f"0x60 {sample.value}+{sample.value}x30" if grows else f"{sample.value}x90"
    return {"series": f"{sample.name}{{{labels}}}", "values": values}
