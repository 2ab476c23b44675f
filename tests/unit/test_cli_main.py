"""The command line before a command runs: an interrupt while modules are loaded leaves no traceback behind."""

import errno
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import relay
from relay.cli.group import COMMANDS, run
from relay.cli.group import relay as command_line
from relay.cli.options import program

INTERRUPTED = """
import os, signal, sys

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup, under which a test may run, ignores it

class Interrupts:
    def find_spec(self, name, *_):
        if name == {module!r}:
            os.kill(os.getpid(), signal.{signal})

sys.meta_path.insert(0, Interrupts())
sys.argv = ["relay", *{arguments}]
from relay.cli.main import main
main()
"""


@pytest.mark.parametrize("module", ["click", "relay.cli.group", "relay.domain.errors", "relay.cli.options"])
def test_an_interrupt_while_modules_are_loaded_says_nothing(module: str) -> None:
    code = INTERRUPTED.format(module=module, signal="SIGINT", arguments=["version"])
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr.strip()) == (130, "", "")


@pytest.mark.parametrize(
    ("arguments", "code"), [(["run", "--help"], 0), (["worker", "--help"], 0), (["tail", "--help"], -signal.SIGHUP)]
)
def test_a_request_to_reload_does_not_end_a_process_that_starts(arguments: list[str], code: int) -> None:
    """A command in a terminal that is closed ends, as ever."""
    source = INTERRUPTED.format(module="relay.cli.group", signal="SIGHUP", arguments=arguments)
    ended = subprocess.run([sys.executable, "-c", source], capture_output=True, timeout=60, check=False)
    assert ended.returncode == code


@pytest.mark.parametrize(
    ("error", "printed"),
    [
        (OSError(errno.ENOSPC, "No space"), "the disk is full"),
        (OSError(errno.EDQUOT, "Quota", "/data/form"), "the disk quota is used up: /data/form cannot be written"),
        (PermissionError(errno.EACCES, "Permission denied", "/data/form"), "/data/form: Permission denied"),
    ],
)
def test_an_error_of_the_file_system_is_a_line(
    error: OSError, printed: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(**_: object) -> None:
        raise error

    monkeypatch.setattr("relay.cli.group.relay", fail)
    assert run() != 0
    assert capsys.readouterr().err == f"error: {printed}\n"


def test_a_closed_standard_input_is_an_empty_one() -> None:
    command = f"exec {sys.executable} -m relay send --source s --api http://127.0.0.1:9 - <&-"
    ended = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith("error: no relay answers at http://127.0.0.1:9")


def test_the_command_line_is_up_before_anything_slow_is_loaded() -> None:
    code = "import sys, relay.cli.main; print(*sorted(sys.modules), sep='\\n')"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    names = set(loaded.stdout.split())
    assert not names & {"click", "asyncio", "importlib.metadata", "aiokafka", "logging", "pydantic"}
    ours = {"relay", "relay.cli", "relay.cli.main"}
    assert {name for name in names if name.startswith("relay")} == ours


def test_the_version_is_looked_up_when_it_is_asked_for() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.dev\d+\+g[0-9a-f]+(\.d\d+)?)?", relay.__version__)  # of a tag, or since it
    with pytest.raises(AttributeError, match="module 'relay' has no attribute 'nonsense'"):
        _ = relay.nonsense


@pytest.mark.parametrize(
    ("typed", "on_path", "printed"),
    [
        (".venv/bin/relay", False, ".venv/bin/relay"),
        (".venv/bin/relay", True, "relay"),
        ("__main__.py", False, "relay"),
    ],
)
def test_suggested_commands_begin_with_what_the_shell_finds(
    typed: str, on_path: bool, printed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if on_path:
        (tmp_path / "relay").touch(0o755)
    monkeypatch.setattr(sys, "argv", [typed, "dev"])
    monkeypatch.setenv("PATH", str(tmp_path))
    assert program() == printed


@pytest.mark.parametrize(
    ("typed", "line"),
    [
        ("mesages", "No such command 'mesages'. Did you mean 'messages'?"),
        ("--nope", "No such option '--nope'; see relay --help"),
        ("send", "Missing argument 'FILE'; see relay send --help"),
        ("receivers shown", "No such command 'shown'. Did you mean 'show'?"),
        ("send --wait x -", "Invalid value for '--wait': 'x' is not a valid number; see relay send --help"),
        ("audit --limit 0", "Invalid value for '--limit': 0 is not in the range 1<=x<=1000; see relay audit --help"),
    ],
)
def test_wrong_arguments_give_one_line(
    typed: str, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["relay", *typed.split()])
    monkeypatch.setattr(sys.modules["__main__"], "__package__", None)  # `python -m pytest` has one
    assert run() == 2
    assert capsys.readouterr() == ("", f"error: {line}\n")


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_the_help_of_a_group_cuts_no_sentence(name: str) -> None:
    context = click.Context(command_line, info_name="relay")
    command = command_line.get_command(context, name)
    assert command is not None
    assert "..." not in command.get_help(click.Context(command, info_name=name)).partition("Commands:")[2]


@pytest.mark.parametrize("group", ["incidents", "events"])
def test_a_group_lists_if_it_is_given_no_command(group: str) -> None:
    def asked(*arguments: str) -> str:
        found = CliRunner(env={"RELAY_API_URL": "http://127.0.0.1:1"}).invoke(command_line, [group, *arguments])
        return found.output or str(found.exception)

    assert "no relay answers at http://127.0.0.1:1" in asked()
    assert f"{group} list [OPTIONS]" in asked("-o", "nonsense")
    assert "No such command 'nonsense'" in asked("nonsense")
    assert f"{group} [OPTIONS] COMMAND" in asked("--help")


def test_the_history_is_rebuilt_without_a_terminal_only_with_yes() -> None:
    refused = CliRunner().invoke(command_line, ["history", "rebuild"], input="").exception
    assert str(refused) == "Delete the history, and rebuild it from the topics? Confirm with --yes"


@pytest.mark.parametrize(("answer", "code", "says"), [("n", 1, "error: not confirmed"), ("\x04", 130, "")])
def test_a_no_at_a_question_is_a_failure_and_no_interrupt(answer: str, code: int, says: str) -> None:
    keyboard, terminal = pty.openpty()
    command = [sys.executable, "-m", "relay", "events", "delete", "push", "--api", "http://127.0.0.1:9"]
    with subprocess.Popen(command, stdin=terminal, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as asking:
        os.write(keyboard, f"{answer}\n".encode())
        shown, complaints = asking.communicate(timeout=60)
    os.close(keyboard)
    os.close(terminal)
    assert (asking.returncode, complaints.strip()) == (code, says)
    assert shown.startswith("Delete the event type push? [y/N]: ")
