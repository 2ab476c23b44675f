"""Contract tests of the state port: when each API key was last used, until the state loses its memory."""

from tests.contract.state_contract import Rig


class KeyUseContract:
    async def test_the_last_use_of_each_key_is_known_and_of_others_none(self, rig: Rig) -> None:
        await rig.state.use_keys({"a": 0.0, "b": 30.0})
        await rig.elapse(10)
        assert await rig.state.keys_used(["b", "c", "a"]) == [40.0, None, 10.0]

    async def test_what_is_told_late_does_not_hide_a_later_use(self, rig: Rig) -> None:
        await rig.state.use_keys({"a": 5.0})
        await rig.state.use_keys({"a": 50.0})
        assert await rig.state.keys_used(["a"]) == [5.0]
        await rig.state.use_keys({"a": 1.0})
        assert await rig.state.keys_used(["a"]) == [1.0]

    async def test_a_key_that_is_not_used_for_long_is_forgotten(self, rig: Rig) -> None:
        await rig.state.use_keys({"a": 0.0})
        await rig.elapse(399 * 86_400)
        assert await rig.state.keys_used(["a"]) == [399 * 86_400.0]
        await rig.elapse(86_400)
        assert await rig.state.keys_used(["a"]) == [None]

    async def test_nothing_is_told_and_asked_about_nothing(self, rig: Rig) -> None:
        await rig.state.use_keys({})
        assert await rig.state.keys_used([]) == []

    async def test_it_works_while_the_state_is_not_ready_and_is_lost_with_it(self, rig: Rig) -> None:
        await rig.state.use_keys({"a": 0.0})
        await rig.lose()
        assert await rig.state.keys_used(["a"]) == [None]
        await rig.state.use_keys({"a": 0.0})
        assert await rig.state.keys_used(["a"]) == [0.0]
