"""What the doctor makes of what it sees, and that one check's failure is no other one's."""

import asyncio
import re
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any, get_args

import pytest
from click.testing import CliRunner
from pydantic import SecretStr

from relay.api.health import view_of
from relay.checks.api import judge_key, judge_public_url
from relay.checks.context import (
    Check,
    CheckContext,
    KnownEntries,
    Look,
    Opened,
    Probe,
    ReadyPart,
    ReadyWarning,
    already,
    known_to_file,
)
from relay.checks.entries import Reached, Target, judge_endpoints, judge_entries, judge_history
from relay.checks.host import Disk, inspect_data, judge_descriptors, judge_disk, judge_software
from relay.checks.log import UnreadLag, judge_lag, judge_rights
from relay.checks.runner import CHECKS, examine
from relay.checks.state import inspect_letters
from relay.checks.topics import command_for
from relay.cli import doctor
from relay.cli.group import relay as command_line
from relay.clock import SystemClock
from relay.config.plan import ROLES
from relay.config.settings import Settings
from relay.domain.coordinate import Coordinate
from relay.domain.diagnosis import Checked, Diagnosis, error, fine, warning
from relay.domain.errors import LogUnavailable, StateUnavailable, UserError
from relay.domain.exchange import NoResponse, Response
from relay.domain.rights import rights_of
from relay.domain.topics import Topics
from relay.log.kafka.admin import release_of
from relay.state.port import FailedEntry
from tests.doctor_page import NO_CHECK, rows
from tests.fakes.state import MemoryState

ROOT = Path(__file__).parents[2]
ROWS = rows()


async def _away() -> Any:
    raise LogUnavailable("nobody is there")


async def _gone() -> Any:
    raise StateUnavailable("nobody is there")


async def _nobody() -> KnownEntries:
    return KnownEntries({}, {})


def case(**changes: Any) -> CheckContext:
    """A relay without log and state."""
    parts: dict[str, Any] = {
        "settings": Settings(),
        "roles": frozenset(ROLES),
        "clock": SystemClock(),
        "log": Opened(_away),
        "state": Opened(_gone),
        "known": Opened(_nobody),
    }
    return CheckContext(**(parts | changes))


def saying(*lines: Checked) -> Any:
    async def look(_case: CheckContext) -> Sequence[Checked]:
        return lines

    return look


def probe_of(name: str, look: Look, **more: Any) -> Probe:
    return Check(name, **more)(look)


async def examined(*probes: Probe, of: CheckContext | None = None, within_s: float = 5.0) -> Diagnosis:
    return await examine(of or case(), within_s=within_s, probes=probes)


# --- the examination ------------------------------------------------------------------------------------------------


async def test_a_check_that_crashes_is_its_own_failure_alone() -> None:
    async def crash(_case: CheckContext) -> Sequence[Checked]:
        raise ZeroDivisionError("of ours")

    found = await examined(probe_of("topics", crash, needs=("log",)), probe_of("data", saying(fine("data", "well"))))
    assert [(each.name, each.severity) for each in found.checks] == [("data", "ok"), ("topics", "error")]
    assert "ZeroDivisionError: of ours" in found.checks[1].what


async def test_a_check_that_takes_too_long_is_given_up_and_the_others_are_not() -> None:
    async def hang(_case: CheckContext) -> Sequence[Checked]:
        await asyncio.Event().wait()
        return ()

    found = await examined(probe_of("data", hang), probe_of("log", saying(fine("log", "there"))), within_s=0.05)
    assert [(each.name, each.severity) for each in found.checks] == [("data", "error"), ("log", "ok")]
    assert "no answer within 0.05 s" in found.checks[0].what


async def test_a_login_that_is_rejected_is_corrected_not_waited_for() -> None:
    async def rejected() -> Any:
        raise UserError("Kafka at kafka:9092: it rejects the password of user relay; see RELAY_KAFKA_SASL_PASSWORD")

    found = await examine(case(log=Opened(rejected)))
    [line] = [each for each in found.checks if each.name == "log"]
    assert line.what == "Kafka at kafka:9092: it rejects the password of user relay"
    assert line.todo == "see RELAY_KAFKA_SASL_PASSWORD"


async def test_what_depends_on_something_that_is_away_is_skipped() -> None:
    found = await examine(case())
    severities = {each.name: each.severity for each in found.checks}
    assert {name: severities[name] for name in ("log", "state", "topics", "rights", "lag", "lanes", "recovery")} == {
        **dict.fromkeys(("log", "state"), "error"),
        **dict.fromkeys(("topics", "rights", "lag", "lanes", "recovery"), "skipped"),
    }
    assert not found.ok
    order = [CHECKS.index(each.name) for each in found.checks]
    assert order == sorted(order)


async def test_what_fails_because_of_an_error_that_another_line_names_is_skipped() -> None:
    async def fail(_case: CheckContext) -> Sequence[Checked]:
        raise StateUnavailable("Redis: DB index is out of range")

    wrong = probe_of("state", saying(error("state", "the URL has a wrong number")))
    found = await examined(wrong, probe_of("parked", fail, needs=("state",)))
    assert {each.name: each.severity for each in found.checks} == {"state": "error", "parked": "skipped"}
    warned = probe_of("state", saying(warning("state", "appendonly is off")))
    found = await examined(warned, probe_of("parked", fail, needs=("state",)))
    assert {each.name: each.severity for each in found.checks} == {"state": "warning", "parked": "error"}


async def test_no_line_shows_a_secret_or_steers_a_terminal() -> None:
    settings = Settings(
        api_key=SecretStr("k3y-of-the-api"), redis_url=SecretStr("redis://user:pa55-word@localhost:6379/0")
    )
    line = error("data", "k3y-of-the-api and\npa55-word \x1b[31m", "use k3y-of-the-api", "pa55-word")
    found = await examined(probe_of("data", saying(line)), of=case(settings=settings))
    [shown] = found.checks
    assert (shown.what, shown.todo) == ("******** and ******** \\x1b[31m", "use ********")
    assert "pa55-word" not in repr(found)


@pytest.mark.parametrize("url", ["postgresql://relay@/relay?host=/run/pg", "postgresql://relay:relay@db/relay"])
async def test_commands_are_shown_even_if_the_history_has_a_user_or_password_of_their_name(url: str) -> None:
    line = error("lanes", "unserved", "relay run")
    found = await examined(probe_of("lanes", saying(line)), of=case(settings=Settings(history_url=SecretStr(url))))
    assert [each.todo for each in found.checks] == ["relay run"]


async def test_a_directory_is_no_secret_even_if_its_name_looks_random() -> None:
    directory = "/srv/a1b2c3d4e5f6g7h8i9j0/relay"
    settings = Settings(history_url=SecretStr(f"sqlite://{directory}/history.db"))
    found = await examined(inspect_data, of=case(settings=settings))
    assert [each.todo for each in found.checks] == [f"mkdir -p {directory}"]


async def test_warnings_alone_are_no_failure() -> None:
    found = await examined(probe_of("data", saying(warning("data", "nearly full"))))
    assert found.ok
    view = view_of(found)
    assert (view["ok"], view["checks"][0]["ok"], view["checks"][0]["severity"]) == (True, False, "warning")


async def test_something_is_opened_once_for_all_and_closed_at_the_end() -> None:
    made: list[str] = []

    async def make() -> str:
        made.append("made")
        return "it"

    async def close(it: str) -> None:
        made.append(f"closed {it}")

    opened = Opened(make, close)
    assert list(await asyncio.gather(opened(), opened())) == ["it", "it"]
    await opened.close()
    assert (made[0], made[-1], len(made)) == ("made", "closed it", 2)
    failing = Opened(_away)
    with pytest.raises(LogUnavailable):
        await failing()
    await failing.close()


# --- the table ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("environ", "is_hinted"), [({}, True), ({"RELAY_REDIS_URL": "redis://127.0.0.1:9"}, False)])
def test_a_relay_of_another_folder_is_hinted_at_where_no_servers_are_set(
    environ: dict[str, str], is_hinted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def looked(*_: object) -> Diagnosis:
        return Diagnosis(0.0, (Checked("log", "error", "no broker answers", "start Kafka"),))

    monkeypatch.setattr(doctor, "_looked", looked)
    ended = CliRunner().invoke(command_line, ["doctor"], env={"XDG_DATA_HOME": str(tmp_path), **environ})
    assert ended.exit_code == 1
    assert ("any relay with --api URL" in ended.stderr) is is_hinted
    assert "note:" not in ended.stdout


def test_the_page_has_a_row_for_each_check_in_the_order_of_the_report() -> None:
    assert [row.name for row in ROWS] == list(CHECKS), "the table of docs/doctor.md, and its order"
    assert [row.name for row in ROWS if not (row.looks_at and row.severities and row.todo)] == []


def test_the_page_has_the_severities_that_a_check_reports() -> None:
    severities = {row.name: row.severities for row in ROWS}
    reported = set[tuple[str, str]]()
    for module in (ROOT / "relay" / "checks").glob("*.py"):
        reported |= set(re.findall(r'\b(error|warning)\(\s*"([a-z-]+)"', module.read_text()))
    assert len(reported) > 25
    missing = [each for each in sorted(reported) if each[0] not in severities.get(each[1], ())]
    assert missing == [], "the third column of docs/doctor.md"


def test_every_name_on_readyz_belongs_to_a_check_or_says_why_not() -> None:
    ready = {name for row in ROWS for name in row.ready}
    without = {name for name, why in NO_CHECK.items() if why.startswith("on /readyz")}
    names = {*get_args(ReadyPart), *get_args(ReadyWarning), "process"}
    assert ready | without == names, "`NAME` on `/readyz` in the last column of docs/doctor.md, or NO_CHECK"
    assert not ready & without


STEPS = {
    "connect to the log": "log",
    "check the rights": "rights",
    "check the topics": "topics",
    "connect to the state": "state",
    "check the state's server": "state",
    "ask the state for the time": "clock",
}
"""What a process does before it works, by the check that it makes with it."""
BEFORE = {"settings", "descriptors", "api-key"}
"""Made when the process is put together; a mistake ends it at once."""
AFTER = {"answer-urls", "recovery", "entries"}
"""Made when the receivers are known, or by a service of the process."""


def test_a_start_makes_the_checks_that_are_declared_so() -> None:
    process = (ROOT / "relay" / "run" / "process.py").read_text()
    [connect] = re.findall(r"async def _connect.*?(?=\n    async def )", process, re.DOTALL)
    assert set(re.findall(r'until_done\("([^"]+)"', connect)) == set(STEPS)
    declared = {row.name for row in ROWS if row.at_start}
    assert declared == {*STEPS.values(), *BEFORE, *AFTER}


# --- judgements -----------------------------------------------------------------------------------------------------


def unread(before: int, after: int, committed: int, oldest_s: float, retention_s: int | None = None) -> UnreadLag:
    return UnreadLag("relay.from-sender", "from_sender", before, after, committed, oldest_s, retention_s)


@pytest.mark.parametrize(
    ("lag", "severity", "words"),
    [
        (unread(5, 9, 100, oldest_s=3.0), "ok", "9 records are unread"),
        (unread(900, 500, 400, oldest_s=300.0), "ok", "the oldest has waited for 5m"),
        (unread(500, 900, 40, oldest_s=300.0), "warning", "grows by 200 a second"),
        (unread(500, 500, 0, oldest_s=300.0), "warning", "none was finished"),
        (unread(5, 5, 0, oldest_s=400_000.0, retention_s=604_800), "error", "deleted unread"),
    ],
)
def test_a_backlog_is_judged_by_its_age_and_where_it_goes(lag: UnreadLag, severity: str, words: str) -> None:
    [line] = judge_lag([lag])
    assert line.severity == severity
    assert words in line.what


def test_a_right_that_is_needed_later_is_a_warning() -> None:
    topics = Topics()
    from_sender = next(each for each in rights_of(topics, ["from-sender"]) if each.name == "from_sender")
    later = from_sender.only(("Create",))
    found = judge_rights([from_sender, later], topics, frozenset({"from-sender"}))
    assert [each.severity for each in found] == ["error", "warning"]
    assert {each.todo for each in found} == {"relay rights --role from-sender"}
    assert "may not Read" in found[0].what


def test_what_a_topic_lacks_is_a_command() -> None:
    assert command_for("is missing; run `relay topics apply`", ["a"]) == "relay topics apply"
    named = command_for("cleanup.policy is delete: it goes; set cleanup.policy=compact", ["t.a", "t.b"])
    assert named is not None
    assert named.endswith("--entity-name t.a --add-config cleanup.policy=compact (likewise for 1 more)")
    assert command_for("it has 3 partitions, expected 10", ["a"]) is None


def test_descriptors_disk_and_versions() -> None:
    assert judge_descriptors(Settings(), 1_024).severity == "ok"
    assert judge_descriptors(Settings(), 256).severity == "warning"
    directory, gib = Path("data"), 1024**3
    sizes = [Disk(100 * gib, free) for free in (50 * gib, 5 * gib, gib // 20)]
    found = [judge_disk(directory, disk, "it stops") for disk in sizes]
    assert [each.severity for each in found] == ["ok", "warning", "error"]
    assert found[-1].what.endswith("are free on its disk: it stops")
    today = date(2026, 11, 22)
    assert [each.severity for each in judge_software((3, 11), (3, 0), today)] == ["ok"]
    assert [each.severity for each in judge_software((3, 11), (1, 1), date(2028, 1, 1))] == ["warning", "warning"]


def test_endpoints_are_judged_by_where_they_fail() -> None:
    targets = [Target(f"r{n}", f"https://r{n}.example/", None) for n in range(4)]
    found: dict[Target, Reached] = {
        targets[0]: 90 * 86_400.0,
        targets[1]: NoResponse("dns", "r1.example: no such name", sent=False),
        targets[2]: NoResponse("refused", "refused", sent=False),
    }
    lines = {(each.name, each.severity, each.subject) for each in judge_endpoints(found, 4)}
    assert lines == {
        ("dns", "error", "r1"),
        ("connection", "warning", "r2"),
        ("address", "ok", None),
        ("tls", "ok", None),
        ("connection", "skipped", None),
    }
    [left_out] = [each.what for each in judge_endpoints(found, 4) if each.severity == "skipped"]
    assert left_out.startswith("1 of 4 endpoints")


@pytest.mark.parametrize(("url", "severity"), [("http://127.0.0.1:8080", "ok"), ("https://relay.example", "warning")])
def test_a_public_url_of_this_machine_leads_no_other_one_to_an_api_without_a_key(url: str, severity: str) -> None:
    [line] = judge_key(Settings(public_url=url), KnownEntries({}, {}), 0.0)
    assert line.severity == severity


def test_the_public_url_has_to_lead_to_this_relay() -> None:
    version = Response(200, {}, b'{"name": "relay", "version": "0"}')
    assert judge_public_url("https://r", version, Response(404, {}, b"")).severity == "error"
    assert judge_public_url("https://r", version, Response(410, {}, b"")).severity == "warning"
    assert judge_public_url("https://r", Response(200, {}, b"[]"), None).severity == "error"
    assert judge_public_url("https://r", Response(200, {}, b"[" * 200_000), None).severity == "error"
    moved = judge_public_url("http://r", Response(308, {"location": "https://r/version"}, b""), None)
    assert (moved.severity, moved.todo) == ("error", "give the final URL as RELAY_PUBLIC_URL")


def test_entries_and_history() -> None:
    known = known_to_file(None, {})
    assert judge_entries(known)[0].ok
    assert judge_entries(KnownEntries({}, {}, {"receivers.ci": "no"}, refused_more=3))[1].what.startswith("3 more")
    assert [judge_history(each).severity for each in (None, 5.0, 500.0)] == ["warning", "ok", "warning"]


def test_a_release_of_kafka_is_known_by_what_it_takes() -> None:
    assert [release_of(version) for version in (4, 11, 14, 99)] == [
        "older than 2.0",
        "2.3 or newer",
        "3.1 or newer",
        "4.1 or newer",
    ]


async def test_new_dead_letters_are_seen_behind_any_number_of_old_ones() -> None:
    state, now = MemoryState(), SystemClock().time()
    await state.start()
    ages_s = {**{f"a{number}": 7_200.0 for number in range(60)}, "zz": 60.0}
    for number, (name, age_s) in enumerate(ages_s.items()):
        at = Coordinate("failed_messages", 0, number)
        await state.index_failed([FailedEntry(name, at, now - age_s, "exhausted", "shop", f"m{number}")])
    [found] = await inspect_letters.look(case(state=already(state)))
    assert (found.severity, found.subject) == ("warning", "zz")
