"""The queries of docker/prometheus and docker/grafana; and promtool, which evaluates rules."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
import yaml

ROOT: Final = Path(__file__).parents[2]
RULES: Final = ROOT / "docker" / "prometheus" / "relay-rules.yml"
SCRAPES: Final = ROOT / "docker" / "prometheus" / "prometheus.yml"
DASHBOARD: Final = ROOT / "docker" / "grafana" / "dashboards" / "relay.json"
TESTS: Final = ROOT / "tests" / "prometheus" / "alerts.yml"
FROM_PROMETHEUS: Final = frozenset({"instance", "job"})
"""Labels that it adds itself."""

_NAME: Final = re.compile(r"(?<![\w:$\"])((?:relay|process|python)_\w+)(\{[^}]*\})?")
_MATCHER: Final = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"")
_GROUPING: Final = re.compile(r"\b(?:by|without|on|ignoring)\s*\(([^)]*)\)")


class Asked(NamedTuple):
    """What one expression asks: of each metric the labels that it has to have; and those that some of them has to."""

    where: str
    metrics: dict[str, frozenset[str]]
    of_some: frozenset[str]


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def alerts() -> dict[str, dict[str, Any]]:
    return {rule["alert"]: rule for rule in rules() if "alert" in rule}


def expressions() -> Iterator[tuple[str, str]]:
    """All, each with where it is."""
    for rule in rules():
        yield rule.get("alert") or rule["record"], rule["expr"]
    board = json.loads(DASHBOARD.read_text())
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            name, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]["query"]).groups()  # type: ignore[union-attr]
            yield variable["name"], f'{name}{{{label}=""}}'


def asked() -> list[Asked]:
    """By each expression; `le` is what every histogram has."""
    found = []
    for where, expression in expressions():
        metrics: dict[str, frozenset[str]] = {}
        for name, matchers in _NAME.findall(expression):
            metrics[name] = metrics.get(name, frozenset()) | set(_MATCHER.findall(matchers)) - FROM_PROMETHEUS
        groupings = (label.strip() for names in _GROUPING.findall(expression) for label in names.split(","))
        found.append(Asked(where, metrics, frozenset(groupings) - FROM_PROMETHEUS - {"le", ""}))
    return found


def promtool(*arguments: str, cwd: Path | None = None) -> str:
    """What it prints. Fails where it ends with an error; skips where it cannot be had: it is not built here, as that
    takes minutes."""
    places = (os.environ.get("GOBIN", ""), str(Path(os.environ.get("GOPATH", Path.home() / "go")) / "bin"))
    found = shutil.which("promtool") or shutil.which("promtool", path=os.pathsep.join(filter(None, places)))
    if found is None:
        pytest.skip("no promtool on PATH or in GOBIN: CONTRIBUTING.md says how it is built")
    done = subprocess.run([found, *arguments], cwd=cwd, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
