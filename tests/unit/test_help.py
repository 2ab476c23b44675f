"""`relay help` shows the pages of docs/ in a terminal, and shells complete commands."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import relay as the_package
from relay.cli import help as manual
from relay.cli.group import COMMANDS, relay
from relay.domain.errors import RelayError, UserError

ROOT = Path(__file__).parents[2]


def asked(*arguments: str) -> Result:
    return CliRunner().invoke(relay, ["help", *arguments], catch_exceptions=False, standalone_mode=False)


def test_every_page_is_a_topic_of_its_own() -> None:
    listed = json.loads(asked("-o", "json").output)
    pages = sorted((ROOT / "docs").rglob("*.md"))
    topics = {page.relative_to(ROOT / "docs").with_suffix("").as_posix() for page in pages}
    assert topics == {each["topic"] for each in listed}
    assert [each["topic"] for each in listed if not each["title"]] == []


def test_the_list_is_for_people() -> None:
    lines = asked().output.splitlines()
    assert lines[0].split() == ["TOPIC", "PAGE"]
    assert any(line.split()[0] == "verifying" and "Verifying a webhook" in line for line in lines)


@pytest.mark.parametrize("topic", ["verifying", "verifying.md", "docs/verifying.md", "settings", "reference/settings"])
def test_a_page_is_shown(topic: str) -> None:
    shown = asked(topic).output
    assert {"verifying": "Verifying a webhook", "settings": "Settings"}[
        topic.removesuffix(".md").split("/")[-1]
    ] in shown
    assert "<!--" not in shown
    assert "\x1b" not in shown
    assert max(len(line) for line in shown.splitlines()) <= 110


def test_a_link_becomes_the_command_that_shows_it() -> None:
    topics = ["verifying", "history", "metrics", "reference/metrics"]
    assert manual.plain("[all](reference/metrics.md)", topics) == "all (`relay help reference/metrics`)"
    assert manual.plain("[all](../metrics.md)", topics) == "all (`relay help metrics`)"
    assert manual.plain("see [verifying.md](verifying.md#go)", topics) == "see `relay help verifying`"
    assert manual.plain("[a history](history.md)", topics) == "a history (`relay help history`)"
    assert manual.plain("[there](https://a.example/x.md)", topics) == "[there](https://a.example/x.md)"
    assert manual.plain("<!-- run: dev -->\n![A page](a.png)", topics) == "*(a picture: A page)*"


def test_a_topic_that_there_is_not() -> None:
    with pytest.raises(UserError, match="did you mean 'verifying'"):
        asked("verifing")


def test_pages_are_found_in_the_package_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "relay"
    for directory in (package, tmp_path / "docs"):
        directory.mkdir()
    monkeypatch.setattr(the_package, "__file__", str(package / "__init__.py"))
    with pytest.raises(RelayError, match="install again"):
        manual.documentation()
    (tmp_path / "docs" / "index.md").write_text("# Beside")
    assert manual.documentation() == tmp_path / "docs"
    (package / "docs").mkdir()
    (package / "docs" / "index.md").write_text("# Within")
    assert manual.documentation() == package / "docs"


# --- completion -----------------------------------------------------------------------------------------------------


def completed(shell: str, typed: str) -> set[str]:
    words = typed.split(" ")
    environ = {"_RELAY_COMPLETE": f"{shell}_complete", "COMP_WORDS": typed, "COMP_CWORD": str(len(words) - 1)}
    if shell == "fish":
        environ["COMP_CWORD"] = words[-1]
    told = CliRunner().invoke(relay, [], env=environ, prog_name="relay").output
    return set(re.findall(r"^(?:plain,)?([a-z-]+)(?:\t.*)?$", told, re.M)) - {"plain"}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_its_script(shell: str) -> None:
    script = CliRunner().invoke(relay, [], env={"_RELAY_COMPLETE": f"{shell}_source"}, prog_name="relay").output
    assert f"_RELAY_COMPLETE={shell}_complete" in script
    assert "relay" in script
    if shutil.which(shell) is not None:
        assert subprocess.run([shell, "-n"], input=script, text=True, check=False).returncode == 0


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_commands_and_options(shell: str) -> None:
    for begin in ("re", "tr"):
        assert completed(shell, f"relay {begin}") == {name for name in COMMANDS if name.startswith(begin)}
    assert "--receiver" in completed(shell, "relay trigger --rec")
    assert "pause" in completed(shell, "relay receivers pa")


def test_no_command_is_imported_to_complete_one() -> None:
    code = (
        "import sys, click; from relay.cli.group import relay;"
        "print(len(relay.shell_complete(click.Context(relay), 're')), 'relay.cli.receivers' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(sum(name.startswith("re") for name in COMMANDS)), "False"]
