"""How many bytes of records a process holds, and how its lanes share that."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.config.limits import MOST_MEMORY, fetch_budget, lanes_budget, memory_budget, memory_limit
from relay.config.settings import Settings
from relay.engine.policy import BudgetShare, ByteBudget

GIB = 1024**3


def filled(budget: ByteBudget, shares: list[BudgetShare], size: int) -> None:
    """Each takes records of `size` in its turn, until none may."""
    while takers := [share for share in shares if not share.full]:
        for share in takers:
            if not share.full:
                share.take(size)


@pytest.mark.parametrize("lanes", [1, 2, 5, 50])
def test_lanes_that_take_all_they_get_have_equal_parts_and_leave_one(lanes: int) -> None:
    budget = ByteBudget(1_000_000)
    shares = [BudgetShare(budget) for _ in range(lanes)]
    filled(budget, shares, 100)
    for share in shares:
        assert share.held == pytest.approx(1_000_000 / (lanes + 1), abs=200)
    assert not BudgetShare(budget).full, "one more finds room"


def test_a_lane_without_any_may_take_one_however_full_it_is() -> None:
    budget = ByteBudget(1_000)
    BudgetShare(budget).take(5_000)
    late = BudgetShare(budget)
    assert not late.full
    late.take(1)
    assert late.full
    assert late.room == 0


def test_what_a_lane_gives_back_another_may_take() -> None:
    budget = ByteBudget(1_000)
    one, other = BudgetShare(budget), BudgetShare(budget)
    one.take(900)
    other.take(100)
    assert other.full
    one.take(-900)
    assert not other.full
    assert budget.free == 900


def test_a_lane_that_is_over_holds_nothing_whatever_ends_later() -> None:
    budget = ByteBudget(1_000)
    lane = BudgetShare(budget)
    lane.take(700)
    lane.close()
    lane.take(-700)
    lane.close()
    assert (budget.used, lane.held) == (0, 0)


@given(
    limit=st.integers(1, 1_000),
    moves=st.lists(st.tuples(st.integers(0, 4), st.integers(1, 400), st.booleans()), max_size=80),
)
def test_it_is_never_more_than_the_budget_and_one_record_of_each_lane(
    limit: int, moves: list[tuple[int, int, bool]]
) -> None:
    budget = ByteBudget(limit)
    shares = [BudgetShare(budget) for _ in range(5)]
    held: list[list[int]] = [[] for _ in shares]
    for lane, size, ends in moves:
        if ends and held[lane]:
            shares[lane].take(-held[lane].pop())
        elif not shares[lane].full:
            shares[lane].take(size)
            held[lane].append(size)
        assert budget.used == sum(map(sum, held)) == sum(share.held for share in shares)
        assert budget.used <= limit + sum(max(each, default=0) for each in held)


# how much there is

V2 = "0::/system.slice/relay.service\n"
V1 = "4:memory:/relay\n1:cpu:/relay\n"


def limit_of(tmp_path: Path, own: str, **files: str) -> int:
    (tmp_path / "own").write_text(own)
    for name, text in files.items():
        path = tmp_path / name.replace("__", "/").replace("DOT", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return memory_limit(tmp_path / "own", tmp_path)


MACHINE = memory_limit(Path("/nowhere"), Path("/nowhere"))


def test_without_a_cgroup_it_is_the_machines(tmp_path: Path) -> None:
    assert MACHINE > 0
    assert limit_of(tmp_path, "") == limit_of(tmp_path, V2, memoryDOTmax="max") == MACHINE
    unlimited = {"memory__relay__memoryDOTlimit_in_bytes": "9223372036854771712"}
    assert limit_of(tmp_path, V1, **unlimited) == MACHINE


def test_of_a_cgroup_and_those_around_it_the_least_counts(tmp_path: Path) -> None:
    files = {
        "memoryDOTmax": "max",
        "systemDOTslice__memoryDOTmax": "1000000",
        "systemDOTslice__relayDOTservice__memoryDOTmax": "2000000",
    }
    assert limit_of(tmp_path, V2, **files) == 1_000_000


def test_version_1_and_a_container_that_sees_only_its_own(tmp_path: Path) -> None:
    assert limit_of(tmp_path, V1, memory__relay__memoryDOTlimit_in_bytes="3000000") == 3_000_000
    assert limit_of(tmp_path, "4:memory:/docker/0123\n", memory__memoryDOTlimit_in_bytes="2000000") == 2_000_000
    assert limit_of(tmp_path, "0::/\n", memoryDOTmax="1000000") == 1_000_000


def test_a_quarter_of_it_is_the_budget_unless_it_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(receivers_file=Path("none"))
    for there, budget in ((GIB, GIB // 4), (64 * GIB, MOST_MEMORY)):
        monkeypatch.setattr("relay.config.limits.memory_limit", lambda there=there: there)
        assert memory_budget(settings) == budget
    given_ = Settings.model_validate({"receivers_file": "none", "memory_budget": "64MiB"})
    assert memory_budget(given_) == 64 * 1024**2 == lanes_budget(given_) + fetch_budget(given_)
