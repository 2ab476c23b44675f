"""The table of phases: every phase can be reached and left, other transitions raise, and the page shows the same
table."""

import ast
from functools import partial
from pathlib import Path
from typing import Final, cast

import pytest

from relay.engine.core import HANDLERS
from relay.engine.lane import Lane
from relay.engine.phases import TRANSITIONS, Event, IllegalTransition, Phase, advance
from relay.engine.work import Work
from relay.log.port import Record

ROOT = Path(__file__).parents[2]
PURE = (
    "admission",
    "attempt",
    "commands",
    "completion",
    "core",
    "decision",
    "lane",
    "order",
    "parked_copy",
    "parked_index",
    "parking",
    "phases",
    "policy",
    "quarantine",
    "settlement",
    "work",
)
"""Modules of the core."""
IMPURE = ("asyncio", "time", "secrets", "random", "os")


def _work(phase: Phase) -> Work:
    work = Work(Record("to_receiver_ci", 3, 41, None, b"", (), 0), None, 0, None, "r:ci")
    work.phase = phase
    return work


def test_every_phase_is_reached_and_all_but_the_last_are_left() -> None:
    reached = {phase for events in TRANSITIONS.values() for phases in events.values() for phase in phases}
    assert reached | {Phase.READ} == set(Phase)
    assert [phase for phase in Phase if not TRANSITIONS[phase]] == [Phase.OVER]
    assert {event for events in TRANSITIONS.values() for event in events} == set(Event)


CAUSED: Final = frozenset({Event.TAKEN_IN, Event.WITHDRAWN, Event.FIRST_LEFT})
"""Events that a handler causes for other works of its lane: it moves these itself."""


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("event", [event for event in Event if event not in CAUSED])
def test_each_event_has_a_handler_in_the_phases_that_have_it_and_raises_in_the_others(
    phase: Phase, event: Event
) -> None:
    handler, work = HANDLERS[phase][event], _work(phase)
    if event in TRANSITIONS[phase]:
        assert not isinstance(handler, partial)
    else:
        with pytest.raises(IllegalTransition) as raised:
            handler(cast(Lane[Work], None), work, None, 0.0)
        assert raised.value.work is work
        assert work.phase is phase


def test_the_engine_has_no_class_on_top_of_another_one() -> None:
    trees = [ast.parse(path.read_text()) for path in (ROOT / "relay" / "engine").glob("*.py")]
    classes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    names = {node.name for node in classes}
    bases = {(node.name, ast.unparse(base).partition("[")[0]) for node in classes for base in node.bases}
    assert {(name, base) for name, base in bases if base in names} == set()


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("event", Event)
def test_what_is_not_in_the_table_raises_and_names_work_phase_and_event(phase: Phase, event: Event) -> None:
    for to in Phase:
        work = _work(phase)
        if to in TRANSITIONS[phase].get(event, ()):
            advance(work, event, to)
            assert work.phase is to
        else:
            with pytest.raises(IllegalTransition) as raised:
                advance(work, event, to)
            assert work.phase is phase
            for named in ("to_receiver_ci/3/41", phase.value, event.value):
                assert named in str(raised.value)


def table() -> list[str]:
    """The rows of the page's table."""
    rows = []
    for phase, events in TRANSITIONS.items():
        for event, phases in events.items():
            after = ", ".join(each.value for each in Phase if each in phases)
            rows.append(f"| {phase.value} | {event.value} | {after} |")
    return rows


def test_the_page_shows_the_table() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text().splitlines()
    start = page.index("| phase | event | leads to |") + 2
    assert page[start : start + len(table())] == table()


def test_the_page_names_every_module_of_the_engine() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    modules = {path.name for path in (ROOT / "relay" / "engine").glob("[a-z]*.py")}
    assert {name for name in modules if f"`{name}`" not in page} == set()


@pytest.mark.parametrize("module", PURE)
def test_the_core_is_pure(module: str) -> None:
    tree = ast.parse((ROOT / "relay" / "engine" / f"{module}.py").read_text())
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert not imported.intersection(IMPURE)
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.Await | ast.AsyncFor | ast.AsyncWith)]
