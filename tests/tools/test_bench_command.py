"""Tests of `relay bench`: it needs a checkout, and checks its arguments before it starts anything."""

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from bench.cases import Case
from bench.results import CaseResult
from relay.cli.group import relay
from relay.domain.errors import UserError


def test_without_a_checkout_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bench", None)  # as if there were no such folder
    monkeypatch.delitem(sys.modules, "bench.command", raising=False)
    result = CliRunner().invoke(relay, ["bench", "--quick"])
    assert isinstance(result.exception, UserError)
    assert "needs a checkout" in str(result.exception)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--phases", "drain,sleep"], "drain, sustain, latency"),
        (["--embedded", "--via", "kafka"], "--embedded has neither"),
        (["--case", "nothing"], "'base'"),
        (["--rates", "100,many"], "comma-separated numbers"),
        (["--rates", "100,0"], "at least 0.1"),
        (["--rates", ","], "at least 0.1"),
        (["--history", "some"], "'off', 'log'"),
        (["--case", "in-flight", "--receivers", "5"], "--receivers: a case that holds"),
        (["--against", "plain"], "--against runs at --rates"),
        (["--against", "plain", "--rates", "100", "--via", "http"], "takes messages from Kafka"),
    ],
)
def test_a_mistake_is_told_at_once(arguments: list[str], told: str) -> None:
    result = CliRunner().invoke(relay, ["bench", *arguments])
    assert result.exit_code == 2
    assert told in result.output


def test_receivers_are_those_of_the_case_or_so_many(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ran: list[Case] = []

    async def run_case(case: Case, *_: object) -> CaseResult:
        ran.append(case)
        return CaseResult(case.name, case.about)

    monkeypatch.setattr("bench.command.run_case", run_case)
    for arguments in ([], ["--receivers", "1000"]):
        result = CliRunner().invoke(relay, ["bench", "--out", str(tmp_path), *arguments])
        assert result.exit_code == 0, result.output
    assert [(case.name, case.receivers, case.lane) for case in ran] == [
        ("base", 16, "dedicated"),
        ("base, 1,000 receivers", 1_000, "dedicated"),
    ]


def test_help_is_that_of_the_benchmark() -> None:
    result = CliRunner().invoke(relay, ["bench", "--help"])
    assert result.exit_code == 0
    assert "--receiver-processes" in result.output
