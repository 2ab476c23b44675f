"""What `relay top` shows, from what the API says."""

import io
from typing import Any

from rich.cells import cell_len
from rich.console import Console

from relay.cli.top import MOST_ATTENTION, TopSnapshot, busiest, page


def receiver(name: str, attempts: int, **other: Any) -> Any:
    last = {"at": None, "status": 200, "failure": None, "duration_ms": 3.0}
    health = {"state": "healthy", "success_rate": 1.0, "attempts": 20, "last_error": None, "oldest_waiting_s": None}
    numbers = {"health": health, "success_rate": 0.991, "p50_ms": 5.0, "p99_ms": 250.0}
    return {"name": name, "attempts": attempts, **numbers, "last_response": last} | other


STAGES = [
    {"name": "from_sender", "lag": 3, "oldest_s": 3_900.0, "rate": 3.25, "come": 4.0, "parked": None, "unserved": 0},
    {"name": "to_receiver", "lag": 0, "oldest_s": None, "rate": 100.0, "come": None, "parked": 1, "unserved": 2},
]
ITEM = {"kind": "no_worker", "subject": "to_receiver_ci", "detail": "nobody serves it\x1b[2J", "action": None}


def shown(seen: TopSnapshot, width: int = 80) -> str:
    out = io.StringIO()
    Console(file=out, width=width, markup=False, highlight=False).print(page(seen))
    return out.getvalue()


def test_stages_receivers_and_what_needs_attention() -> None:
    failures = {"count": 3, "by": [{"receiver": "ci", "reason": "no_\x1b_answer", "count": 3}]}
    overview: Any = {"rates": None, "stages": STAGES, "attention": [ITEM], "failures": failures}
    rows = shown(TopSnapshot(overview, [receiver("ci", 1_000)], more=False)).splitlines()
    assert rows[0].split() == ["STAGE", "IN/S", "DONE/S", "LAG", "OLDEST", "PARKED", "UNSERVED"]
    assert rows[1].split() == ["from_sender", "4", "3.2", "3", "1", "h", "5", "min", "-", "0"]
    assert rows[2].split() == ["to_receiver", "-", "100", "0", "-", "1", "2"]
    assert rows[5].split() == ["ci", "healthy", "1000", "99.1%", "<=", "5", "ms", "<=", "250", "ms", "200"]
    assert r"3 DEAD LETTERS, 1 H: ci no \x1b answer 3" in rows
    assert rows[-1] == r"no worker to_receiver_ci: nobody serves it\x1b[2J"


def test_it_fits_a_terminal_and_says_what_it_leaves_out() -> None:
    failed = {"at": None, "status": None, "failure": "timeout\x1b", "duration_ms": 3.0}
    long = receiver("r" * 63, 5, success_rate=None, p50_ms=None, p99_ms=None, last_response=failed)
    overview: Any = {"stages": STAGES, "attention": [ITEM] * 15, "failures": {"count": 0, "by": []}}
    seen = TopSnapshot(overview, [long, receiver("new", 0, last_response=None)], more=True)
    found = shown(seen)
    assert all(cell_len(row) <= 80 for row in found.splitlines())
    assert found.isprintable() or "\x1b" not in found
    assert f"and {15 - MOST_ATTENTION} more" in found
    assert "--receiver NAME shows others" in found


def test_a_long_name_gives_way_to_the_figures() -> None:
    name, *figures = shown(TopSnapshot(None, [receiver("r" * 63, 1_000)], more=False)).splitlines()[-1].split()
    assert name.startswith("r" * 20)
    assert figures == ["healthy", "1000", "99.1%", "<=", "5", "ms", "<=", "250", "ms", "200"]


def test_without_an_overview_there_are_the_receivers() -> None:
    assert "ci" in shown(TopSnapshot(None, [receiver("ci", 1)], more=False))


def test_those_with_most_to_do_come_first() -> None:
    names = [one["name"] for one in busiest([receiver("a", 1), receiver("c", 5), receiver("b", 5)])]
    assert names == ["b", "c", "a"]
