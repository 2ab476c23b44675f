"""Tests of `relay messages`, `relay attempts` and the timeline of `relay status`, with and without a history."""

import json

import click
import pytest
from click.testing import Result

from relay.cli.group import relay
from relay.cli.messages import attempts, messages
from relay.cli.replay import replay
from relay.cli.status import status
from relay.client import ApiError
from relay.domain.errors import RelayError, UserError
from tests.contract.history_facts import NOON, arrival, attempt, put
from tests.integration.api_rig import Rig, run_command, running_api
from tests.integration.history_world import World
from tests.integration.history_world import at as at
from tests.integration.test_api_keys import ADMIN, SETTING

HOSTILE = "evil\u202e"
LONG = "too busy " * 30 + "today"


async def called(rig: Rig, command: click.Command, *words: str) -> Result:
    return await run_command(rig.url, command, *words, key=SETTING)


def lines(result: Result) -> list[str]:
    assert result.exception is None, result
    return [" ".join(line.split()) for line in result.stdout.splitlines()]


# --- messages -------------------------------------------------------------------------------------------------------


async def test_messages_are_listed_with_what_became_of_them(at: World) -> None:
    head, *rows = lines(await called(at.rig, messages))
    assert head.split() == ["RECEIVED", "SOURCE", "MESSAGE", "TYPE", "STATE", "SIZE", "DELIVERIES"]
    assert rows == [
        "2026-09-21T12:00:04.000Z other m-4 - queued 100 -",
        "2026-09-21T12:00:03.000Z other m-3 push failed 100 ci failed (exhausted, HTTP 200)",
        "2026-09-21T12:00:02.000Z github m-2 pull_request.opened queued 2000 deploy queued",
        "2026-09-21T12:00:01.000Z github m-1 push failed 100 ci returned (HTTP 200); "
        "deploy failed (rejected, HTTP 422)",
    ]


async def test_a_selection_by_a_source_of_which_no_message_is_known_is_refused(at: World) -> None:
    unknown = await called(at.rig, replay, "--source", "github", "--source", "nobody")
    assert type(unknown.exception) is RelayError
    assert str(unknown.exception) == "--source: there is no source named 'nobody', and no message of one"
    assert lines(await called(at.rig, replay, "--source", "github")) == ["0 selected, 0 to replay"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--source", "github"], ["m-2", "m-1"]),
        (["--receiver", "ci"], ["m-3", "m-1"]),
        (["--owner", "alice"], ["m-2", "m-1"]),
        (["--status", "failed"], ["m-3", "m-1"]),
        (["--state", "returned"], ["m-1"]),
        (["--reason", "rejected"], ["m-1"]),
        (["--type", "pull_*"], ["m-2"]),
        (["--since", "57s"], ["m-4", "m-3"]),
        (["--until", "2026-09-21T12:00:03Z"], ["m-2", "m-1"]),
        (["--id", "m-3"], ["m-3"]),
        (["--header", "x-event:push"], ["m-3", "m-1"]),
        (["--payload", "/repository/name=relay"], ["m-1"]),
        (["--limit", "1"], ["m-4"]),
    ],
)
async def test_each_filter_is_an_option(at: World, words: list[str], expected: list[str]) -> None:
    found = await called(at.rig, messages, "-o", "json", *words)
    assert [item["message_id"] for item in json.loads(found.stdout)["items"]] == expected


async def test_a_list_says_where_it_goes_on_and_how_far_it_is_behind(at: World) -> None:
    at.rig.broker.now_ms = lambda: int((NOON + 20) * 1000)
    sent = await at.rig.request("POST", "/v1/sources/app/messages?receiver=ci", b"{}", ADMIN)
    assert sent.status == 202
    first = await called(at.rig, messages, "--limit", "3")
    assert "the history is 40.0 s behind" in first.stderr
    cursor = lines(first)[-1].removeprefix("more with --cursor ")
    rest = lines(await called(at.rig, messages, "--cursor", cursor))
    assert [row.split()[2] for row in rest[1:]] == ["m-1"]


async def test_json_of_a_page_has_the_cursor_of_the_next(at: World) -> None:
    first = json.loads((await called(at.rig, messages, "--limit", "3", "-o", "json")).stdout)
    rest = json.loads((await called(at.rig, messages, "--cursor", first["cursor"], "-o", "json")).stdout)
    assert [item["message_id"] for item in (*first["items"], *rest["items"])] == ["m-4", "m-3", "m-2", "m-1"]
    assert rest["cursor"] is None


@pytest.mark.parametrize(
    "words",
    [
        "attempts --receiver ci",
        "audit",
        "erase --list",
        "events list",
        "failed list",
        "incidents list",
        "keys list",
        "messages",
        "receivers gaps ci",
        "receivers list --registered",
        "replay list",
        "sources list",
    ],
)
async def test_json_of_each_list_of_the_api_has_one_form(at: World, words: str) -> None:
    printed = await called(at.rig, relay, *words.split(), "-o", "json")
    found = json.loads(printed.stdout)
    assert (printed.exit_code, type(found["items"]), "cursor" in found) == (0, list, True)


async def test_mistakes_are_said_in_a_line(at: World) -> None:
    found = await called(at.rig, messages, "--since", "yesterday")
    assert isinstance(found.exception, ApiError)
    assert "90m, 2h, 1d" in str(found.exception)
    assert (await called(at.rig, messages, "--status", "gone")).exit_code == 2
    assert (await called(at.rig, messages, "--reason", "none")).exit_code == 2


async def test_where_no_bodies_are_kept_that_is_a_line() -> None:
    async with running_api(api_key=SETTING, keeps_bodies=False) as rig:
        found = await called(rig, messages, "--header", "x-event:push")
        assert isinstance(found.exception, ApiError)
        assert "RELAY_HISTORY_BODIES is 0" in str(found.exception)
        assert "\n" not in str(found.exception)


async def test_without_a_history_it_is_said_how_to_get_one() -> None:
    async with running_api(api_key=SETTING, history=None) as rig:
        for found in (await called(rig, messages), await called(rig, attempts, "--receiver", "ci")):
            assert isinstance(found.exception, ApiError)
            assert "RELAY_HISTORY_URL" in str(found.exception)


async def test_what_a_sender_says_cannot_steer_the_terminal(at: World) -> None:
    await put(at.history, arrival(9, source=HOSTILE, name=HOSTILE, event_type="\x1b[2J\x9b"))
    table, found = await called(at.rig, messages), await called(at.rig, messages, "-o", "json")
    for output in (table.stdout, found.stdout):
        assert "evil" in output
        assert all(char.isprintable() or char == "\n" for char in output)
    assert json.loads(found.stdout)["items"][0]["type"] == "\x1b[2J\x9b"


# --- attempts -------------------------------------------------------------------------------------------------------


async def test_a_messages_attempts_are_listed(at: World) -> None:
    head, *rows = lines(await called(at.rig, attempts, "other", "m-3"))
    assert head.split()[:3] == ["STARTED", "KIND", "RECEIVER"]
    assert rows == [
        "2026-09-21T12:00:07.000Z status ci 1 404 20 retry - -",
        "2026-09-21T12:00:06.000Z post ci 2 timeout 20 retry (timeout) - no answer in 15 s",
        "2026-09-21T12:00:04.000Z post ci 1 503 20 retry (not now) 2026-09-21T12:00:06.000Z -",
    ]
    found = json.loads((await called(at.rig, attempts, "github", "m-1", "--receiver", "deploy", "-o", "json")).stdout)
    assert [item["response"]["status"] for item in found["items"]] == [422]


async def test_two_attempts_are_compared(at: World) -> None:
    found = await called(at.rig, attempts, "other", "m-3", "--diff", "1", "2")
    assert found.exit_code == 1
    rows = found.stdout.splitlines()
    assert [row for row in rows if row.startswith("Re")] == ["Request: no difference", "Response"]
    assert "-503" in rows
    assert "+no response: no answer in 15 s" in rows
    same = await called(at.rig, attempts, "other", "m-3", "--diff", "1", "1")
    assert (same.exit_code, same.stdout.count("no difference")) == (0, 2)
    none = await called(at.rig, attempts, "other", "m-3", "--diff", "1", "7")
    assert "there is no attempt 7" in str(none.exception)
    several = await called(at.rig, attempts, "github", "m-1", "--diff", "1", "1")
    assert "give one with --receiver" in str(several.exception)


async def test_a_receivers_attempts_are_listed(at: World) -> None:
    rows = lines(await called(at.rig, attempts, "--receiver", "ci"))[1:]
    assert [row.split()[1:4] for row in rows] == [
        ["ping", "-", "-"],
        ["status", "other", "m-3"],
        ["post", "other", "m-3"],
        ["post", "other", "m-3"],
        ["post", "github", "m-1"],
    ]
    assert len(lines(await called(at.rig, attempts, "--receiver", "ci", "--failed"))) == 4
    assert "--cursor" in lines(await called(at.rig, attempts, "--receiver", "ci", "--limit", "1"))[-1]


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["github"],
        ["github", "--receiver", "ci"],
        ["github", "m-1", "--failed"],
        ["--failed"],
        ["--receiver", "ci", "--diff", "1", "2"],
    ],
)
async def test_what_attempts_are_meant_has_to_be_said(at: World, words: list[str]) -> None:
    found = await called(at.rig, attempts, *words)
    assert isinstance(found.exception, UserError)
    assert "--receiver alone" in str(found.exception)


# --- the timeline ---------------------------------------------------------------------------------------------------


async def test_a_status_tells_how_the_message_got_there(at: World) -> None:
    await sent(at)
    await put(at.history, attempt("new", source="app", offset=9, at=61, status=503, detail=f"POST: 503: {LONG}"))
    found = lines(await called(at.rig, status, "app", "new"))
    assert found[0] == "app new blocked"
    assert "to ci, times in UTC:" in found
    assert any("Attempt 1: 503 Service Unavailable" in line for line in found)
    assert f"POST: 503: {LONG}" in found  # a pipe has no width at which it might be cut
    assert any("No worker serves its lane" in line for line in found)
    assert any(line.startswith("What to do: No worker reads the topic") for line in found)


async def test_without_a_history_a_status_is_what_it_was_and_says_how_to_get_one() -> None:
    async with running_api(api_key=SETTING, history=None) as rig:
        assert (await rig.request("POST", TARGET, b"{}", ADMIN | {"ce-id": "new"})).status == 202
        found = lines(await called(rig, status, "app", "new"))
        assert found[0] == "app new blocked"
        assert "RELAY_HISTORY_URL" in found[-1]
        assert any(line.startswith("ci waits for no_worker") for line in found)
        assert any(line.startswith("ci what to do: ") for line in found)
        assert "HISTORY" not in (await called(rig, status, "app", "new", "-o", "json")).stdout


async def test_a_history_that_is_away_takes_nothing_from_a_status(at: World) -> None:
    await sent(at)
    at.history.available = False
    found = lines(await called(at.rig, status, "app", "new"))
    assert found[0] == "app new blocked"
    assert any(line.startswith("ci waits for no_worker") for line in found)
    assert "the history does not answer" in found[-1]


TARGET = "/v1/sources/app/messages?receiver=ci"


async def sent(at: World) -> None:
    assert (await at.rig.request("POST", TARGET, b"{}", ADMIN | {"ce-id": "new"})).status == 202
