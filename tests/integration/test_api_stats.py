"""Tests of the statistics of a receiver, over the API and by its command."""

import json
from typing import Any

from click.testing import Result

from relay.cli.receivers import receivers
from relay.domain.exchange import Exchange, NoResponse, Response
from relay.domain.outcome import classify
from relay.domain.statistics import BOUNDS_S, OUTCOMES
from relay.watch.statistics import StatisticsWriter, Tallies
from tests.integration.api_rig import Rig, document, problem, run_command
from tests.integration.api_rig import rig as rig

PATH = "/v1/receivers/ci/stats"
HOUR_S = 3600
REFUSED = NoResponse("refused", "", sent=False)
HOURS = {"2023-11-14T21:00:00.000Z": 3, "2023-11-14T22:00:00.000Z": 1}


async def attempted(rig: Rig, *told: tuple[Exchange, float], teller: str = "one", owner: str = "r:ci") -> None:
    tallies = Tallies(lambda name: rig.directory.receivers[name].post)
    for exchange, seconds in told:
        tallies.count(owner, exchange, classify(exchange, codes={}, now=0), seconds, rig.clock.time())
    await StatisticsWriter(tallies, rig.state, rig.clock, writer=teller).write()


async def an_hour_passes(rig: Rig) -> None:
    rig.clock.now += HOUR_S
    rig.state.advance(HOUR_S)


async def lived(rig: Rig) -> None:
    """Two processes have sent something, in two hours; NOW is in the second."""
    rig.clock.now -= HOUR_S
    rig.state.advance(-HOUR_S)
    await attempted(rig, (Response(200, {}, b"{}"), 0.02), (Response(202, {}, b""), 0.3))
    await attempted(rig, (Response(503, {}, b""), 99.0), teller="another")
    await an_hour_passes(rig)
    await attempted(rig, (REFUSED, 0.0123), teller="a third")


def outcomes(**counts: int) -> dict[str, int]:
    return dict.fromkeys(OUTCOMES, 0) | counts


async def test_a_callback_that_always_fails_is_not_healthy(rig: Rig) -> None:
    await attempted(rig, *[(REFUSED, 0.1)] * 3, owner="s:calls")
    told: Any = document(await rig.get("/v1/sources/calls/callback"))
    assert (told["condition"], told["health"]) == (
        "up",
        {"state": "down", "success_rate": 0.0, "attempts": 3, "last_error": "refused", "oldest_waiting_s": None},
    )


async def test_a_redirect_is_an_error_of_the_health(rig: Rig) -> None:
    await attempted(rig, (Response(307, {}, b""), 0.1))
    told: Any = document(await rig.get("/v1/receivers/ci"))
    assert told["health"]["last_error"] == "307"


async def test_the_command_has_the_health_of_one_that_fails_before_its_breaker_opens(rig: Rig) -> None:
    await attempted(rig, *[(REFUSED, 0.1)] * 3)
    assert (await command(rig, "health", "ci")).output.startswith("ci: down 0.0% (refused); not paused; breaker closed")


async def test_a_receiver_whose_oldest_message_waits_is_not_healthy(rig: Rig) -> None:
    await attempted(rig, *[(Response(200, {}, b""), 0.1)] * 3)
    await rig.state.keep_waiting({"r:ci": rig.clock.now - 90})
    expected = {"state": "degraded", "success_rate": 1.0, "attempts": 3, "last_error": None, "oldest_waiting_s": 90.0}
    for path in ("/v1/receivers/ci", PATH):
        told: Any = document(await rig.get(path))
        assert told["health"] == expected


async def test_what_all_processes_have_counted_by_the_hour_and_over_all(rig: Rig) -> None:
    await lived(rig)
    told: Any = document(await rig.get(PATH))
    assert (told["name"], told["attempts"], told["success_rate"]) == ("ci", 4, 0.5)
    assert told["outcomes"] == outcomes(delivered=1, accepted=1, not_now=1, not_processed=1)
    assert (told["p50_ms"], told["p99_ms"], told["buckets_ms"]) == (500, None, [bound * 1000 for bound in BOUNDS_S])
    assert told["last_response"] == {
        "at": "2023-11-14T22:13:20.000Z",
        "status": None,
        "failure": "refused",
        "duration_ms": 12.3,
    }
    hours = told["hours"]
    assert (len(hours), hours[0]["hour"]) == (24, "2023-11-13T23:00:00.000Z")
    assert {hour["hour"]: hour["attempts"] for hour in hours if hour["attempts"]} == HOURS
    assert hours[-1]["outcomes"] == outcomes(not_processed=1)
    assert (hours[-1]["success_rate"], hours[-1]["p50_ms"]) == (0, None)


async def test_of_a_receiver_that_was_sent_nothing(rig: Rig) -> None:
    rig.directory.refused["bad"] = "a variable is not set"
    for name in ("ci", "bad"):
        told = document(await rig.get(f"/v1/receivers/{name}/stats"))
        assert (told["attempts"], told["success_rate"], told["p50_ms"], told["last_response"]) == (0, None, None, None)
        assert len(told["hours"]) == 24


async def test_the_clock_of_the_state_may_be_ahead(rig: Rig) -> None:
    rig.state.advance(HOUR_S)
    await attempted(rig, (Response(200, {}, b""), 0.02))
    told = document(await rig.get(PATH))
    assert [hour["attempts"] for hour in told["hours"]] == [0] * 23 + [1]


async def test_who_cannot_be_told_of(rig: Rig) -> None:
    problem(await rig.get("/v1/receivers/nobody/stats"), 404, "not-found")
    problem(await rig.get(f"{PATH}?hours=3"), 400, "invalid-request")


async def test_the_command_shows_what_the_route_gives(rig: Rig) -> None:
    assert "last response: none within a day" in (await command(rig, "stats", "ci")).output
    await lived(rig)
    told = (await command(rig, "stats", "ci")).output
    assert "last response: none (refused), in 12.3 ms, at 2023-11-14T22:13:20.000Z" in told
    assert [line.split()[:3] for line in told.splitlines()[2:]] == [
        ["2023-11-14T21:00:00.000Z", "3", "66.7%"],
        ["2023-11-14T22:00:00.000Z", "1", "0.0%"],
        ["24", "hours", "4"],
    ]
    assert json.loads((await command(rig, "stats", "ci", "-o", "json")).output) == document(await rig.get(PATH))


async def command(rig: Rig, *words: str) -> Result:
    return await run_command(rig.url, receivers, *words)


LAST = "/v1/receivers/ci/last-response"


async def test_the_last_response_with_its_headers_and_body(rig: Rig) -> None:
    problem(await rig.get(LAST), 404, "not-found")
    headers = {"location": "https://ci.example/1?token=abc", "set-cookie": "s=1", **{f"x-{n}": "y" for n in range(40)}}
    await attempted(rig, (Response(201, headers, b'{"build": 1}'), 0.1), (REFUSED, 0.1))
    told: Any = document(await rig.get(LAST))
    assert (told["name"], told["at"], told["status"], told["truncated"]) == (
        "ci",
        "2023-11-14T22:13:20.000Z",
        201,
        False,
    )
    assert json.loads(told["body"]) == {"build": 1}
    assert told["headers"]["location"] == "https://ci.example/1?token=********"
    assert told["headers"]["set-cookie"] == "********"
    assert len(told["headers"]) == 32

    await attempted(rig, (Response(500, {}, b"\xff" * 5_000), 0.1), teller="another")
    told = document(await rig.get(LAST))
    assert (told["status"], told["truncated"], len(told["body"].encode()) <= 4_096) == (500, True, True)


async def test_of_a_receiver_that_there_is_not_no_response_is_told(rig: Rig) -> None:
    problem(await rig.get("/v1/receivers/nobody/last-response"), 404, "not-found")
