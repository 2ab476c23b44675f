"""Contract tests of the state port: messages counted against quotas."""

import pytest

from relay.domain.receiver import Quota
from relay.state.port import Balance, Charge
from tests.contract.state_contract import Rig

FIVE = Quota(5, 60)


def charge(messages: int = 1, name: str = "s:github", quota: Quota = FIVE) -> Charge:
    return Charge(name, messages, quota)


class QuotasContract:
    async def test_a_quota_holds_for_a_window_from_the_first_message_on(self, rig: Rig) -> None:
        assert await rig.state.charge([charge(3)]) == [Balance(True, 2, 60.0)]
        await rig.elapse(20)
        assert await rig.state.charge([charge(2)]) == [Balance(True, 0, 40.0)]
        assert await rig.state.charge([charge()]) == [Balance(False, 0, 40.0)]
        await rig.elapse(39)
        assert await rig.state.charge([charge()]) == [Balance(False, 0, 1.0)]
        await rig.elapse(1)
        assert await rig.state.charge([charge()]) == [Balance(True, 4, 60.0)]

    async def test_what_does_not_fit_counts_nothing(self, rig: Rig) -> None:
        assert await rig.state.charge([charge(4)]) == [Balance(True, 1, 60.0)]
        assert await rig.state.charge([charge(2)]) == [Balance(False, 1, 60.0)]
        assert await rig.state.charge([charge(1)]) == [Balance(True, 0, 60.0)]

    async def test_charges_of_one_call_count_one_after_the_other(self, rig: Rig) -> None:
        charges = [charge(3), charge(3), charge(2), charge(5, "s:other"), charge(1)]
        found = await rig.state.charge(charges)
        assert [(one.granted, one.left) for one in found] == [(True, 2), (False, 2), (True, 0), (True, 0), (False, 0)]

    async def test_another_quota_of_the_same_window_goes_on_from_the_same_count(self, rig: Rig) -> None:
        await rig.state.charge([charge(4)])
        assert await rig.state.charge([charge(1, quota=Quota(2, 60))]) == [Balance(False, 0, 60.0)]
        assert await rig.state.charge([charge(3, quota=Quota(8, 60))]) == [Balance(True, 1, 60.0)]
        assert await rig.state.charge([charge(2, quota=Quota(2, 61))]) == [Balance(True, 0, 61.0)]

    @pytest.mark.parametrize("name", ["s:" + "é" * 128, "s:{1} :\n\0", "k:"])
    async def test_names_are_any_text(self, rig: Rig, name: str) -> None:
        assert await rig.state.charge([charge(1, name), charge(5, name + "x")]) == [
            Balance(True, 4, 60.0),
            Balance(True, 0, 60.0),
        ]

    async def test_it_works_while_the_state_is_not_ready_and_forgets_with_it(self, rig: Rig) -> None:
        await rig.state.charge([charge(5)])
        await rig.lose()
        assert await rig.state.charge([charge(1)]) == [Balance(True, 4, 60.0)]
