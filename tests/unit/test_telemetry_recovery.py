"""What logs and metrics say of a lost state and its recovery."""

from collections import Counter

from relay.engine.observer import Recovered, StateMemory
from relay.state.port import Restored
from relay.state.rows import TAGS
from tests.unit.test_outages import Rig, rig

__all__ = ["rig"]

ALL = frozenset(range(TAGS))
NONE: frozenset[int] = frozenset()


def recovered(memory: StateMemory, tags: frozenset[int] = ALL, doubt_until: float | None = None) -> Recovered:
    found = {"r:ci": Counter({Restored.PUT_BACK: 3, Restored.FINISHED: 1, Restored.THERE: 2})}
    return Recovered(tags, memory, found, 1.25, doubt_until)


def test_a_loss_in_the_middle_of_work(rig: Rig) -> None:
    rig.observer.not_ready(NONE, NONE)
    for _ in range(3):
        rig.observer.not_ready(ALL, ALL)
    assert rig.value("relay_state_tags_not_ready") == 64
    rig.observer.recovery_begun(ALL, ALL)
    rig.observer.recovered(recovered(StateMemory.LOST, doubt_until=1_700_000_000.0))
    assert [(line["level"], line["event"]) for line in rig.lines()] == [
        ("warning", "state_not_ready"),
        ("info", "recovery_begun"),
        ("warning", "state_recovered"),
    ]
    assert rig.lines()[0] | {"tags": "all", "memory": "missing"} == rig.lines()[0]
    told = {"tags": "all", "memory": "lost", "after_loss": True, "in_doubt_until": "2023-11-14T22:13:20+00:00"}
    told |= {"parked": 6, "put_back": 3, "tombstones": 1, "seconds": 1.25}
    assert rig.lines()[2] | told == rig.lines()[2]
    assert rig.value("relay_state_tags_not_ready") == 0
    assert rig.value("relay_state_recoveries_total") == 1
    assert rig.value("relay_parked_put_back_total") == 3
    assert rig.value("relay_state_recovery_seconds_sum") == 1.25


def test_the_first_start_and_a_restart_are_no_warning(rig: Rig) -> None:
    rig.observer.not_ready(frozenset({3, 1}), NONE)
    rig.observer.recovered(recovered(StateMemory.KEPT, frozenset({3, 1})))
    (line,) = rig.lines()
    assert (line["level"], line["tags"], line["memory"], line["after_loss"]) == ("info", "1,3", "kept", False)
    assert line["in_doubt_until"] is None


def test_a_state_of_another_time_or_cluster_is_a_warning_with_advice(rig: Rig) -> None:
    rig.observer.state_outdated()
    rig.observer.other_cluster()
    assert [(line["level"], line["event"]) for line in rig.lines()] == [
        ("warning", "state_outdated"),
        ("warning", "other_cluster"),
    ]
    assert all("RELAY_REDIS_URL" in line["problem"] for line in rig.lines())


def test_the_very_first_start_is_no_news_at_all(rig: Rig) -> None:
    rig.observer.not_ready(ALL, ALL)
    rig.observer.recovery_begun(ALL, ALL)
    rig.observer.recovered(recovered(StateMemory.NEW))
    assert rig.lines() == []


def test_a_loss_that_another_process_heals_ends_here_too(rig: Rig) -> None:
    rig.observer.not_ready(ALL, ALL)
    rig.observer.not_ready(NONE, NONE)
    assert rig.value("relay_state_tags_not_ready") == 0
    rig.observer.not_ready(ALL, NONE)
    assert [line["level"] for line in rig.lines()] == ["warning"]


def test_a_check_speaks_only_of_what_was_wrong(rig: Rig) -> None:
    rig.observer.recovered(Recovered(NONE, StateMemory.KEPT, {"r:ci": Counter({Restored.THERE: 9})}, 0.1, None))
    assert rig.lines() == []
    rig.observer.recovered(recovered(StateMemory.KEPT, NONE))
    (line,) = rig.lines()
    assert (line["level"], line["event"], line["put_back"]) == ("warning", "parked_references_missing", 3)
    assert rig.value("relay_state_recoveries_total") == 0
