"""How many offsets a lane reserves at a time."""

from relay.engine.quarantine import FEW, MOST, NO_OFFSET, USED_UP_S, Quarantine, ReservationResult

NOTHING = ReservationResult(None, 0)


def reservations(quarantine: Quarantine, count: int, *, seconds: float, offset: int = 0, now: float = 0.0) -> list[int]:
    """The numbers of offsets that it reserves, one reservation after the other, each used up in `seconds`."""
    found = []
    for _ in range(count):
        before = quarantine.to_reserve(offset, now)
        assert before is not None
        quarantine.reserved(before, NOTHING, now)
        found.append(before - offset - 1)
        offset, now = before, now + seconds
    return found


def test_a_slow_lane_reserves_few_offsets_because_its_next_owner_suspects_all_of_them() -> None:
    assert reservations(Quarantine(), 3, seconds=USED_UP_S) == [FEW] * 3


def test_a_fast_lane_reserves_more_each_time_so_that_it_has_few_calls() -> None:
    quarantine = Quarantine()
    assert reservations(quarantine, 4, seconds=USED_UP_S / 2) == [FEW, 4 * FEW, MOST, MOST]
    assert reservations(quarantine, 3, seconds=USED_UP_S, offset=10_000, now=60.0) == [MOST // 4, FEW, FEW]


def test_what_is_reserved_may_be_read() -> None:
    quarantine = Quarantine()
    quarantine.reserved(40, NOTHING, 0.0)
    assert quarantine.to_reserve(39, 1.0) is None
    assert quarantine.to_reserve(NO_OFFSET, 1.0) is None
    assert quarantine.to_reserve(40, 1.0) == 41 + FEW
