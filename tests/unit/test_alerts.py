"""Alerts: each says what it is, has a page that says what to do, and a test in which it fires and one in which it does
not, by Prometheus's own tool."""

import re
from pathlib import Path

import pytest
import yaml

from relay.cli.group import relay
from relay.domain.reasons import REASONS
from relay.telemetry.metrics import Metrics
from release.reference.log_events import meanings
from tests.doctor_page import NO_CHECK, rows
from tests.prometheus.files import ROOT, RULES, SCRAPES, TESTS, Asked, alerts, asked, promtool, rules
from tests.unit.test_documentation import check_arguments

ALERTS = alerts()
BOOKS = ROOT / "docs" / "runbooks"
COMMAND = re.compile(r"`relay ([^`]+)`")
FAMILIES = {family.name: family for family in Metrics("").families}
SNAKE = re.compile(r"`([a-z]+(?:_[a-z]+)+)")
PLACEHOLDERS = {"SOURCE": "s", "MESSAGE_ID": "m", "NAME": "ci", "WHY": "why", "N": "2"}


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_says_what_it_is_and_what_to_do(name: str) -> None:
    rule = ALERTS[name]
    assert rule["labels"]["severity"] in ("critical", "warning")
    checks = [row.name for row in rows() if name in row.alerts]
    about = {"summary", "description", "runbook"}
    link = rule["annotations"].get("incidents", "/ui/incidents").partition("?")[0]
    assert link == "/ui/incidents"
    assert set(rule["annotations"]) - {"incidents"} == (about | {"checks"} if checks else about)
    assert rule["annotations"].get("checks", "") == ", ".join(checks), "annotation `checks`: by docs/doctor.md"
    page = ROOT / rule["annotations"]["runbook"]
    assert page == BOOKS / f"{name}.md"
    text = page.read_text()
    assert ("`/ui/incidents`" in text) == ("incidents" in rule["annotations"])
    begin = f"# {name}\n\nSeverity: {rule['labels']['severity']}. {_checks_line(name, checks)}\n"
    assert text[: len(begin)] == begin
    assert re.findall(r"^## (.*)$", text, re.M) == ["What it means", "Where to look", "What to do"]


def test_every_alert_belongs_to_a_check_or_says_why_not() -> None:
    of_checks = {alert for row in rows() for alert in row.alerts}
    without = {name for name in NO_CHECK if name.startswith("Relay")}
    assert of_checks | without == set(ALERTS), "a link in the last column of docs/doctor.md, or NO_CHECK"
    assert not of_checks & without


def test_no_page_is_left_over() -> None:
    assert {page.stem for page in BOOKS.glob("*.md")} - {"README"} == set(ALERTS)


@pytest.mark.parametrize("page", sorted(BOOKS.glob("Relay*.md")), ids=lambda page: page.stem)
def test_what_a_page_tells_to_run_exists(page: Path) -> None:
    for line in COMMAND.findall(page.read_text()):
        words = [PLACEHOLDERS.get(word, word) for word in line.split()]
        check_arguments(relay, words)


@pytest.mark.parametrize("page", sorted(BOOKS.glob("Relay*.md")), ids=lambda page: page.stem)
def test_what_a_page_tells_to_look_at_exists(page: Path) -> None:
    text = page.read_text()
    assert set(re.findall(r"`(/ui/[^`]*)`", text)) <= set(re.findall(r"`(/ui/[^`]*)`", _of("pages.md")))
    assert set(re.findall(r"\brelay_\w+", text)) <= {family.name for family in Metrics("").families}
    settings = set(re.findall(r"`(RELAY_\w+)`", _of("reference/settings.md")))
    assert set(re.findall(r"\bRELAY_\w+", text)) <= settings


@pytest.mark.parametrize("page", sorted(BOOKS.glob("Relay*.md")), ids=lambda page: page.stem)
def test_what_a_page_quotes_of_the_log_exists(page: Path) -> None:
    lines = [line for line in page.read_text().splitlines() if line.startswith("- The log")]
    assert set(re.findall(SNAKE, "\n".join(lines))) <= {*meanings(), *_fields()}


def test_what_an_operator_sees_at_a_failure_exists() -> None:
    rows = [line.split(" | ") for line in _of("guarantees.md").splitlines() if line.startswith("| ")]
    seen = {word for row in rows if len(row) == 4 for word in re.findall(SNAKE, row[2])}
    assert len(seen) > 50
    assert seen <= {*meanings(), *FAMILIES, *REASONS, *_fields(), "waiting_for", "work_event"}


def test_what_proves_a_promise_exists() -> None:
    named = set(re.findall(r"`((?:tests/[\w/]*)?\w+\.py)`", _of("guarantees.md")))
    assert len(named) > 50
    paths = [f"/{path.relative_to(ROOT)}" for path in ROOT.glob("tests/**/*.py")]
    assert {name for name in named if not any(path.endswith(f"/{name}") for path in paths)} == set()


@pytest.mark.parametrize("page", ["guarantees.md", "operating.md", "doctor.md"])
def test_metrics_on_a_page_exist(page: str) -> None:
    assert set(re.findall(r"`(relay_[a-z_]+)", _of(page))) <= set(FAMILIES)


def test_every_alert_fires_in_one_test_and_does_not_in_another() -> None:
    fires: set[str] = set()
    is_quiet: set[str] = set()
    for test in yaml.safe_load(TESTS.read_text())["tests"]:
        for case in test["alert_rule_test"]:
            (fires if case["exp_alerts"] else is_quiet).add(case["alertname"])
    assert (set(ALERTS) - fires, set(ALERTS) - is_quiet) == (set(), set()), "tests/prometheus/alerts.yml"
    assert fires | is_quiet <= set(ALERTS)


def test_what_is_expected_of_an_alert_has_its_annotations() -> None:
    """Prometheus's own tool compares the values, where it is installed."""
    for test in yaml.safe_load(TESTS.read_text())["tests"]:
        for case in test["alert_rule_test"]:
            rule = ALERTS[case["alertname"]]["annotations"]
            fixed = {name: text for name, text in rule.items() if "{{" not in text}
            for expected in case["exp_alerts"]:
                annotations = expected["exp_annotations"]
                assert set(annotations) == set(rule)
                assert {name: annotations[name] for name in fixed} == fixed


def test_rules_are_recorded_before_they_are_used() -> None:
    known: set[str] = set()
    for rule in rules():
        assert set(re.findall(r"\brelay:[\w:]+", rule["expr"])) <= known
        known.add(rule.get("record", ""))


@pytest.mark.parametrize("one", asked(), ids=lambda one: one.where)
def test_what_is_asked_of_a_metric_is_what_it_has(one: Asked) -> None:
    """tests/integration/test_metrics.py checks that /metrics has them: this test names the mistake faster."""
    ours = {name: labels for name, labels in one.metrics.items() if name.startswith("relay_")}
    for name, labels in ours.items():
        family = FAMILIES[re.sub(r"_(bucket|sum|count)$", "", name)]
        assert labels <= {*family.label_names, "le"}, name


@pytest.mark.thorough
def test_prometheus_takes_the_rules_and_the_configuration(tmp_path: Path) -> None:
    promtool("check", "rules", "--lint=all", "--lint-fatal", str(RULES))
    config = yaml.safe_load(SCRAPES.read_text())
    for one in config["scrape_configs"]:
        one.pop("dns_sd_configs", None)  # a promtool built in minutes has no service discovery
    copy = tmp_path / SCRAPES.name
    copy.write_text(yaml.safe_dump(config))
    promtool("check", "config", "--syntax-only", str(copy))  # files of secrets are in the container alone


@pytest.mark.thorough
def test_the_alerts_fire_when_they_should() -> None:
    assert "SUCCESS" in promtool("test", "rules", TESTS.name, cwd=TESTS.parent)


def _checks_line(alert: str, checks: list[str]) -> str:
    if not checks:
        return f"No check of [`relay doctor`](../doctor.md): it is {NO_CHECK[alert]}."
    return f"Checks of [`relay doctor`](../doctor.md): {', '.join(f'`{name}`' for name in checks)}."


def _fields() -> set[str]:
    """Of all events of the log."""
    rows = [line.split(" | ") for line in _of("reference/log-events.md").splitlines() if line.startswith("| `")]
    return {field for row in rows for field in re.findall(r"`(\w+)`", row[2])}


def _of(page: str) -> str:
    return (ROOT / "docs" / page).read_text()
