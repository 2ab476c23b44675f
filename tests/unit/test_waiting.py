"""How commands wait for a cluster that is not ready yet."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from relay.cli.stores import wait_for_cluster
from relay.domain.errors import LogUnavailable, UserError


def failing(
    *reasons: str, error: Callable[[str], Exception] = LogUnavailable
) -> tuple[list[int], Callable[[], Awaitable[str]]]:
    calls, todo = [0], list(reasons)

    async def call() -> str:
        calls[0] += 1
        await asyncio.sleep(0)
        if todo:
            raise error(todo.pop(0))
        return "done"

    return calls, call


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relay.cli.stores.FIRST_PAUSE_S", 0.001)


async def test_it_waits_and_says_each_reason_once(capsys: pytest.CaptureFixture[str]) -> None:
    calls, call = failing("no coordinator", "no coordinator", "no leader")
    assert await wait_for_cluster(lambda: call(), 60.0) == "done"
    assert calls == [4]
    said = capsys.readouterr().err.splitlines()
    assert said == [f"waiting, for up to 1m (RELAY_KAFKA_WAIT): {reason}" for reason in ("no coordinator", "no leader")]


async def test_at_the_limit_it_says_how_long_it_waited() -> None:
    _, call = failing(*["no coordinator"] * 1000)
    with pytest.raises(LogUnavailable, match=r"no coordinator; waited 50ms for it \(RELAY_KAFKA_WAIT\)"):
        await wait_for_cluster(call, 0.05)


async def test_without_a_limit_to_wait_for_it_fails_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    calls, call = failing("no coordinator", "no coordinator")
    with pytest.raises(LogUnavailable, match=r"^no coordinator$"):
        await wait_for_cluster(call, 0.0)
    assert calls == [1]
    assert capsys.readouterr().err == ""


async def test_what_no_wait_helps_against_is_raised_at_once() -> None:
    calls, call = failing("no such right", error=UserError)
    with pytest.raises(UserError):
        await wait_for_cluster(call, 60.0)
    assert calls == [1]
