"""Tests of mistakes on the command line: each gets a line with the problem, the place and the fix, never a
traceback."""

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import click
import pytest
from aiohttp import web

from relay.cli.group import COMMANDS, relay
from tests.integration.api_rig import Rig, running_api
from tests.integration.api_rig import rig as rig
from tests.integration.test_api_replays import add_dead_letter
from tests.servers.forking import run
from tests.servers.http import serving
from tests.servers.process import RelayProcess

NO_REPORT = {
    "bench",
    "config asyncapi",
    "config openapi",
    "config schema",
    "demo",
    "dev",
    "export",
    "listen",
    "portal strings",
    "receivers catch-up",
    "receivers export",
    "run",
    "sink",
    "worker",
}
"""Commands that run until stopped, or print machine-readable output anyway. The benchmark writes files."""


def called(
    *arguments: str | bytes, environ: Mapping[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command, with no settings but `environ`."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RELAY_")}
    return run(*arguments, environ=clean | dict(environ or {}), cwd=cwd)


@pytest.fixture
def busy_port() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        yield str(taken.getsockname()[1])


def refused(done: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    assert done.returncode == code, done
    assert "Traceback" not in done.stdout + done.stderr
    assert done.stdout == ""
    assert "error: " in done.stderr.lower()
    for word in words:
        assert word in done.stderr


STATUS = ("status", "app", "m-1")


MISTAKES: list[tuple[tuple[str, ...], dict[str, str], int, tuple[str, ...]]] = [
    ((*STATUS, "--api", "127.0.0.1:8080"), {}, 2, ("--api", "'127.0.0.1:8080'", "http://127.0.0.1:8080")),
    ((*STATUS, "--api", "localhost:8080"), {}, 2, ("--api", "'localhost:8080'", "http://")),
    ((*STATUS, "--api", "http://"), {}, 2, ("--api", "http://127.0.0.1:8080")),
    (
        (*STATUS, "--api", "http://127.0.0.1:9"),
        {},
        1,
        ("no relay answers at http://127.0.0.1:9 (connection refused)", "relay dev"),
    ),
    (("status", "", "m-1"), {}, 2, ("a name or id is empty",)),
    (("send", "--source", "", "-"), {}, 2, ("a name or id is empty",)),
    (("send", "--source", "app", "--receiver", "", "-"), {}, 2, ("--receiver", "is empty")),
    (("send", "--source", "app", "--id", "", "-"), {}, 2, ("--id", "is empty")),
    (("receivers", "try", "ci", "--payload", "-", "--id", ""), {}, 2, ("--id", "is empty")),
    (("trigger", "github.push", "--receiver", ""), {}, 2, ("--receiver", "is empty")),
    (STATUS, {"RELAY_API_KEY": "a\nb"}, 2, ("RELAY_API_KEY: no request can have this key",)),
    (("help", "strat"), {}, 2, ("no page 'strat'", "'start'", "relay help")),
    ((*STATUS, "--api", "http://a..b"), {}, 2, ("--api", "a..b", "host or port is malformed")),
    (STATUS, {"RELAY_API_URL": "localhost:8080"}, 2, ("RELAY_API_URL", "https://host/path")),
    (STATUS, {"RELAY_API_URL": "http://127.0.0.1:9", "RELAY_PUBLIC_URL": "https://relay.example"}, 1, (":9",)),
    (STATUS, {"RELAY_API_HOST": "::", "RELAY_API_PORT": "9"}, 1, ("no relay answers at http://[::1]:9",)),
    (STATUS, {"RELAY_API_HOST": "0.0.0.0", "RELAY_API_PORT": "9"}, 1, ("http://127.0.0.1:9",)),  # noqa: S104
    (("run",), {"RELAY_API_HOST": "::"}, 2, ("RELAY_API_HOST", "RELAY_API_KEY")),
    (
        ("run", "--processes", "1"),
        {"RELAY_API_HOST": "a..b", "RELAY_API_INSECURE": "1"},
        2,
        ("a..b", "RELAY_API_HOST"),
    ),
    (("run", "--roles", "apy"), {}, 2, ("--roles", "'apy'")),
    (("run", "--roles", ""), {}, 2, ("--roles", "names none")),
    (("run", "--receivers-only", " , "), {}, 2, ("--receivers-only", "names none")),
    (("config", "check", "--roles", ","), {}, 2, ("--roles", "names none")),
    (("config", "check"), {"RELAY_EGRESS_PROXY": "foo"}, 2, ("RELAY_EGRESS_PROXY",)),
    (("config", "check"), {"RELAY_CA_FILE": "no.pem"}, 2, ("RELAY_CA_FILE: no.pem cannot be read: No such file",)),
    (("config", "check"), {"RELAY_CA_FILE": os.devnull}, 2, ("RELAY_CA_FILE: /dev/null", "no certificate")),
    (("dev", "--ephemeral", "--receivers", "nope.yaml"), {}, 2, ("--receivers", "nope.yaml does not exist")),
    (("dev", "--ephemeral"), {"RELAY_RECEIVERS_FILE": "no.yaml"}, 2, ("RELAY_RECEIVERS_FILE", "no.yaml")),
    (("sink", "--host", "a..b"), {}, 2, ("a..b", "--host")),
    (("send", "--source", "app", "--wait", "nan", "-"), {}, 2, ("--wait", "'nan' is not a number")),
    (("trigger", "--wait", "inf", "github.push"), {}, 2, ("--wait", "'inf' is not a number")),
    (("portal", "link", "alice", "--hours", "nan"), {}, 2, ("--hours", "'nan' is not a number")),
    (("messages", "--state", "blocked"), {}, 2, ("--state", "search for queued or retrying")),
    (("failed", "replay", "0/0", "--status", "422"), {}, 2, ("leave out --status",)),
    (("failed", "discard", "0/0", "--id", "m-1"), {}, 2, ("leave out --id",)),
    (("hlep",), {}, 2, ("'hlep'", "Did you mean 'help'?")),
    (("receivers", "lst"), {}, 2, ("'lst'", "Did you mean 'list'?")),
    (("trigger", "github.nothing"), {"RELAY_API_URL": "http://127.0.0.1:9"}, 2, ("'github.nothing'", "github.push")),
    (("config", "show", "--config", "nope.yaml"), {}, 2, ("nope.yaml",)),
    (("receivers", "check", "."), {}, 2, ("'.' is a directory",)),
    (("recover", "--data-dir", "."), {}, 2, ("--data-dir",)),
    (("recover", "--data-dir", ""), {}, 2, ("--data-dir", "is empty")),
    (("dev", "--data-dir", ""), {}, 2, ("--data-dir", "is empty")),
    (("dev", "--receivers", ""), {}, 2, ("--receivers", "is empty")),
    (("run", "--config", ""), {}, 2, ("--config", "is empty")),
    (("config", "check", "--roles", "apy"), {}, 2, ("--roles", "'apy'")),
    (("receivers", "check", ""), {}, 2, ("is empty",)),
    (("dev", "--ephemeral"), {"RELAY_EGRESS_PROXY": "https://u:hunter2@p:3128"}, 2, ("not the URL of a proxy",)),
    (("run", "--processes", "2"), {"RELAY_API_HOST": "::"}, 2, ("RELAY_API_HOST", "RELAY_API_KEY")),
    (("run", "--roles", "api"), {"RELAY_API_HOST": "relay.lan"}, 2, ("RELAY_API_HOST", "RELAY_API_KEY")),
    (("dev", "--ephemeral"), {"RELAY_API_HOST": "0.0.0.0"}, 2, ("RELAY_API_KEY", "RELAY_API_INSECURE=true")),  # noqa: S104
    (("run",), {"RELAY_API_KEY": "short", "RELAY_API_INSECURE": "true"}, 2, ("could be guessed", "16 characters")),
    (("dev", "--ephemeral"), {"RELAY_API_HOST": "::", "RELAY_API_KEY": "short"}, 2, ("could be guessed",)),
    (("tail", "--api", "http://127.0.0.1:9"), {}, 1, ("no relay answers at http://127.0.0.1:9",)),
    (("listen", "nothing"), {}, 2, ("or just 3000",)),
    (("listen", "70000"), {}, 2, ("or just 3000",)),
    (("listen", "3000", "--type", "push"), {}, 2, ("--source",)),
    (("listen", "3000", "--public-url", "here"), {}, 2, ("--public-url",)),
]


@pytest.mark.parametrize(
    ("arguments", "environ", "code", "words"), MISTAKES, ids=[" ".join((*each[0], *each[1])) for each in MISTAKES]
)
def test_a_mistake_is_said_in_a_line(
    arguments: tuple[str, ...], environ: dict[str, str], code: int, words: tuple[str, ...], tmp_path: Path
) -> None:
    done = called(*arguments, environ=environ, cwd=tmp_path)
    lines = [line for line in done.stderr.splitlines() if not line.startswith('{"timestamp"')]
    done.stderr = "\n".join(lines)
    refused(done, code, *words)
    assert "hunter2" not in done.stderr
    assert len(lines) <= 3, "the line, and at most two that say how the command is used"


def test_characters_that_the_encoding_of_the_output_lacks_are_escaped() -> None:
    command, latin = [sys.executable, "-m", "relay", "portal", "strings"], {"PYTHONIOENCODING": "latin-1"}
    done = subprocess.run(command, env=os.environ | latin, capture_output=True, check=True)
    assert b'"postgresql://\\u2026"' in done.stdout
    assert '"· owner"'.encode("latin-1") in done.stdout


@pytest.mark.parametrize("command", [("dev", "--ephemeral"), ("sink",)])
def test_a_busy_port_that_was_asked_for_is_an_error(command: tuple[str, ...], busy_port: str, tmp_path: Path) -> None:
    refused(called(*command, "--port", busy_port, cwd=tmp_path), 2, busy_port, "--port")


def test_a_busy_port_in_the_environment_is_one_too(busy_port: str, tmp_path: Path) -> None:
    done = called("dev", "--ephemeral", environ={"RELAY_API_PORT": busy_port}, cwd=tmp_path)
    refused(done, 2, busy_port, "RELAY_API_PORT")


@pytest.mark.parametrize("name", ["secrets_key", "answer_secret", "form", "api_url", "valkey.log"])
def test_a_directory_in_place_of_a_file_is_an_error(name: str, tmp_path: Path) -> None:
    (tmp_path / "data" / name).mkdir(parents=True)
    done = called("dev", "--data-dir", str(tmp_path / "data"), "--port", "0", "--no-demo", cwd=tmp_path)
    refused(done, 2, f"{tmp_path / 'data' / name}: Is a directory")


async def test_a_receivers_file_that_was_named_and_is_not_there_is_said_at_start(tmp_path: Path) -> None:
    nowhere = {"RELAY_KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:9", "RELAY_REDIS_URL": "redis://127.0.0.1:9/0"}
    environ = nowhere | {"RELAY_RECEIVERS_FILE": "typo.yaml", "RELAY_API_PORT": "0"}
    async with RelayProcess("run", "--processes", "1", cwd=tmp_path, environ=environ) as process:
        assert "typo.yaml" in await process.line_with("receivers_file_missing")


@pytest.mark.parametrize("command", [("dev", "--ephemeral"), ("run", "--processes", "1"), ("run", "--processes", "2")])
@pytest.mark.parametrize("descriptors", [12, 20])
async def test_too_few_descriptors_are_an_error(command: tuple[str, ...], descriptors: int, tmp_path: Path) -> None:
    async with RelayProcess(*command, cwd=tmp_path, descriptors=descriptors) as process:
        output = await process.finish()
    assert process.returncode == 2, output
    assert "Traceback" not in output
    assert f"error: this process may open {descriptors} descriptors and needs at least 64; raise `ulimit -n`" in output


# --- what answers is no relay -----------------------------------------------------------------------------------


def answering(response: web.Response) -> AbstractAsyncContextManager[str]:
    """A server with one response to all requests."""

    async def handle(_: web.Request) -> web.Response:
        return web.Response(status=response.status, body=response.body, headers=response.headers)

    return serving(handle)


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        (("messages", "--receiver", ""), 2, "receiver is ''"),
        (("tail", "--type", ""), 2, "type is ''"),
        (("failed", "list", "--receiver", ""), 2, "name or id is empty"),
        (("failed", "show", "0/99999999999999999999"), 2, "PARTITION/OFFSET"),
    ],
)
async def test_an_empty_option_does_not_select_everything(arguments: tuple[str, ...], code: int, word: str) -> None:
    """As with a variable of a script that is empty."""
    async with running_api() as rig:
        refused(await asyncio.to_thread(called, *arguments, "--api", rig.url), code, word)


HTML = {"content-type": "text/html"}
JSON = {"content-type": "application/json"}
COMMANDS_TO_IT = [
    ("failed", "list"),
    ("failed", "show", "1/2"),
    ("receivers", "health", "ci"),
    ("receivers", "pause", "ci"),
    ("trigger", "github.push"),
]


NO_RELAYS = {
    "html": web.Response(text="<h1>Hello</h1>", headers=HTML),
    "html-404": web.Response(status=404, text="<h1>Not here</h1>", headers=HTML),
    "redirect": web.Response(status=302, text="", headers=HTML | {"location": "https://login.example/"}),
    "list": web.Response(body=b"[]", headers=JSON),
    "other-json": web.Response(body=b'{"hello": "world"}', headers=JSON),
    "other-error": web.Response(status=500, body=b'{"error": "x"}', headers=JSON),
    "no-utf8": web.Response(body=b"\xff\xfe", headers=JSON),
    "empty": web.Response(body=b"", headers=JSON),
}


@pytest.mark.parametrize(
    ("arguments", "name"),
    [*((STATUS, name) for name in NO_RELAYS), *((command, "other-json") for command in COMMANDS_TO_IT)],
)
async def test_what_is_no_relay_is_said(arguments: tuple[str, ...], name: str) -> None:
    """Each response to one command, and one response to each: all commands have the same client."""
    async with answering(NO_RELAYS[name]) as url:
        done = await asyncio.to_thread(called, *arguments, "--api", url)
    refused(done, 1, url, "is not a relay", "RELAY_API_URL")


async def test_a_relay_of_another_version_is_not_taken_for_another_server() -> None:
    """It may have accepted the message."""
    async with answering(web.Response(status=202, body=b"{}", headers=JSON | {"server": "relay"})) as url:
        sending = ("send", "--source", "app", "--receiver", "ci", os.devnull, "--api", url)
        done = await asyncio.to_thread(called, *sending)
    refused(done, 1, f"the relay at {url} is of another version, whose response (status 202, application/json)")
    assert "RELAY_API_URL" not in done.stderr


async def test_what_is_no_http_is_said() -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example ESMTP\r\n")
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        refused(await asyncio.to_thread(called, *STATUS, "--api", url), 1, url)


# --- what the API says ------------------------------------------------------------------------------------------


async def test_the_commands_go_where_they_are_told_to_not_where_others_are(rig: Rig) -> None:
    environ = {"RELAY_API_URL": rig.url, "RELAY_PUBLIC_URL": "http://127.0.0.1:9"}
    done = await asyncio.to_thread(called, "receivers", "health", "ci", "-o", "json", environ=environ)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["condition"] == "up"


async def test_a_wrong_key_is_told_from_a_missing_one() -> None:
    async with running_api(api_key="k" * 32) as rig:
        for environ, words in (
            ({}, "set RELAY_API_KEY to a key of the API"),
            ({"RELAY_API_KEY": "w" * 32}, f"RELAY_API_KEY is not a valid key of the API at {rig.url}"),
        ):
            for command in (STATUS, ("tail",)):
                refused(await asyncio.to_thread(called, *command, "--api", rig.url, environ=environ), 1, "401", words)


async def test_a_port_without_tls_is_said(rig: Rig) -> None:
    url = rig.url.replace("http:", "https:")
    for command in (STATUS, ("tail",)):
        refused(await asyncio.to_thread(called, *command, "--api", url), 1, url, "is it an http:// URL?")


async def test_a_receiver_or_message_that_nobody_has_is_said(rig: Rig) -> None:
    for arguments in (
        ("failed", "list", "--receiver", "nobody"),
        ("trigger", "github.push", "--receiver", "nobody"),
        ("send", "--source", "github", "--receiver", "nobody", "/dev/null"),
        ("receivers", "health", "nobody"),
        ("status", "github", "of-nobody"),
    ):
        refused(await asyncio.to_thread(called, *arguments, "--api", rig.url), 1, "nobody")
    known = await asyncio.to_thread(called, "failed", "list", "--receiver", "ci", "-o", "json", "--api", rig.url)
    assert (known.returncode, json.loads(known.stdout)["items"]) == (0, [])


async def test_a_name_or_field_that_cannot_be_is_a_mistake_of_usage(rig: Rig) -> None:
    for arguments, words in (
        (("receivers", "create", "UPPER", "https://ci.example/"), "name"),
        (("receivers", "create", "new", "no-url"), "post_endpoint"),
        (("sources", "create", "app", "no-url"), "url"),
    ):
        refused(await asyncio.to_thread(called, *arguments, "--api", rig.url), 2, words)


async def test_a_message_without_a_receiver_gets_advice_that_fits_commands_too(rig: Rig) -> None:
    for command in (("trigger", "github.push", "--source", "nobody"), ("send", "--source", "nobody", "/dev/null")):
        done = await asyncio.to_thread(called, *command, "--api", rig.url)
        refused(done, 1, "No receiver subscribes to this source and type", "name a `receiver`")
        assert "?receiver=" not in done.stderr


@pytest.mark.parametrize(
    "command", [("replay",), ("replay", "--all"), ("failed", "replay"), ("failed", "discard"), ("messages", "cancel")]
)
async def test_a_selection_by_a_name_that_does_not_exist_is_refused(command: tuple[str, ...]) -> None:
    async with running_api(history=None) as rig:
        unknown = await asyncio.to_thread(
            called, *command, "--receiver", "ci", "--receiver", "nobody", "--api", rig.url
        )
        refused(unknown, 1, "there is no receiver named 'nobody'")
        known = await asyncio.to_thread(called, *command, "--receiver", "ci", "--source", "any", "--api", rig.url)
        assert (known.returncode, known.stderr) == (0, ""), "sources need no entry, and without a history no one knows"
        assert known.stdout.startswith("0 selected")


async def test_a_name_that_does_not_exist_beside_one_that_selects_something_is_a_warning() -> None:
    async with running_api(history=None) as rig:
        await add_dead_letter(rig, 1)
        named = ("--receiver", "ci", "--receiver", "cii", "--receiver", "-", "--dry-run")
        for command in (("replay",), ("failed", "discard")):
            done = await asyncio.to_thread(called, *command, *named, "--api", rig.url)
            warning = "warning: --receiver: there is no receiver named 'cii', and nothing to select of one\n"
            assert (done.returncode, done.stderr, done.stdout[:10]) == (0, warning, "1 selected")


@pytest.mark.parametrize("wait", [(), ("--wait", "0")])
async def test_a_payload_that_is_not_what_it_says_is_a_warning(wait: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "broken.json").write_text('{"a":')
    async with running_api() as rig:
        sending = ("send", "--source", "app", "--receiver", "ci", *wait, "broken.json", "--api", rig.url)
        done = await asyncio.to_thread(called, *sending, cwd=tmp_path)
    assert "warning: the content type is application/json" in done.stderr


async def test_bytes_that_are_no_text_are_said(rig: Rig) -> None:
    for arguments in (
        ("status", b"\xff", "m-1"),
        ("status", "app", b"\xff"),
        ("trigger", "github.push", "--source", b"\xff"),
        ("trigger", "github.push", "--receiver", b"\xff"),
    ):
        done = await asyncio.to_thread(called, *arguments, "--api", rig.url)
        assert done.returncode == 2, done
        assert "Traceback" not in done.stderr


async def test_what_the_api_finds_invalid_is_a_mistake_on_the_command_line(rig: Rig) -> None:
    for arguments in (
        ("failed", "list", "--cursor", "zz"),
        ("failed", "discard", "--receiver", "", "--yes"),
        ("replay", "--receiver", "ci", "--since", "yesterday"),
        ("trigger", "github.push", "--receiver", "NO NAME"),
    ):
        refused(await asyncio.to_thread(called, *arguments, "--api", rig.url), 2, "400 The request is not valid")


# --- all commands -----------------------------------------------------------------------------------------------


def commands() -> Iterator[tuple[str, click.Command]]:
    context = click.Context(relay)
    for name in COMMANDS:
        command = relay.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from ((f"{name} {each}", one) for each, one in command.commands.items())
        else:
            yield name, command


@pytest.mark.parametrize("name", sorted({name for name, _ in commands()} - NO_REPORT))
def test_every_command_that_reports_does_so_for_programs_too(name: str) -> None:
    options = {option for parameter in dict(commands())[name].params for option in parameter.opts}
    assert "-o" in options


def test_the_version_is_an_option_and_a_command() -> None:
    assert called("--version").stdout == called("version").stdout
    assert called("--version").stdout.startswith("relay ")
    assert json.loads(called("version", "-o", "json").stdout)["version"] in called("--version").stdout


def test_checks_report_for_programs(tmp_path: Path) -> None:
    (tmp_path / "receivers.yaml").write_text(
        "receivers: {ci: {post_endpoint: 'https://ci.example/', secret: '${NOWHERE}'}}"
    )
    found = json.loads(called("receivers", "check", "-o", "json", cwd=tmp_path).stdout)
    assert (list(found["receivers"]), found["sources"]) == (["ci"], [])
    assert "NOWHERE" in found["refused"]["receivers.ci"]
    assert "RELAY_ANSWER_SECRET is not set" in found["notes"][0]
    found = json.loads(called("config", "check", "-o", "json", cwd=tmp_path).stdout)
    assert (found["receivers"], found["notes"]) == (1, [])
    exposed = {"RELAY_API_HOST": "::"}
    refused(called("config", "check", "-o", "json", environ=exposed, cwd=tmp_path), 2, "RELAY_API_KEY")


def test_a_reader_that_has_enough_is_no_error_of_ours() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "relay", "config", "schema"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""


def test_a_reader_that_goes_away_from_a_running_relay_ends_it_without_a_traceback(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "relay", "dev", "--ephemeral", "--port", "0"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=tmp_path, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith("API")
        process.stdout.close()
        assert "Traceback" not in process.stderr.read()
    assert process.returncode == 1
