"""The handwritten pages: every fence says how it is tested, every command exists, every link has a target."""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from relay.cli.group import relay
from relay.pages.page import NAVIGATION
from tests.documents import OPTIONS, PAGES, PLACES, ROOT, SHELLS, UNMARKED, Fence, commands, fences, named, prose

FENCES = [fence for page in PAGES for fence in fences(page)]
RULE = "a line above it says `<!-- run: WHERE -->` or `<!-- skip: WHY -->`: CONTRIBUTING.md"


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_code_is_in_fences(page: Path) -> None:
    """An indented block has neither a language nor a way to be tested."""
    lines = prose(page).split("\n")
    in_list = re.compile(r"\s*([-*]|\d+\.) ")
    for number, line in enumerate(lines, 1):
        if not line.startswith("    ") or lines[number - 2].strip():
            continue
        above = next((earlier for earlier in reversed(lines[: number - 1]) if earlier[:1].strip()), "")
        assert in_list.match(above), f"{named(page)}:{number}: {line}"


@pytest.mark.parametrize("fence", FENCES, ids=str)
def test_a_fence_is_run_or_says_why_not(fence: Fence) -> None:
    assert fence.language, "text where it is nothing to run"
    if fence.language in UNMARKED:
        assert fence.mark is None
        return
    assert fence.mark is not None, RULE
    assert {name for name, _ in fence.mark.options} <= set(OPTIONS)
    if fence.mark.what == "skip":
        assert len(fence.mark.value.split()) > 2, "why it cannot be run"
    elif fence.mark.value.startswith("tests/"):
        assert fence.page.name in (ROOT / fence.mark.value).read_text()
    else:
        assert fence.mark.value in PLACES
    for file in re.findall(r"\btests/[\w/]+\.py", fence.mark.value):
        assert (ROOT / file).exists()


@pytest.mark.parametrize("fence", [fence for fence in FENCES if fence.language == "json"], ids=str)
def test_json_is_well_formed(fence: Fence) -> None:
    json.loads(fence.text)


@pytest.mark.parametrize("fence", [fence for fence in FENCES if fence.language in SHELLS], ids=str)
def test_commands_and_options_exist(fence: Fence) -> None:
    """Also of those that are not run."""
    for words in commands(fence):
        while words and re.fullmatch(r"\w+=.*", words[0], re.S):
            words = words[1:]
        if words and words[0] in ("relay", ".venv/bin/relay"):
            check_arguments(relay, words[1:])
        if words and words[0] == "make":
            assert {word for word in words[1:] if "=" not in word} <= targets(), words


def check_arguments(command: click.Command, arguments: list[str]) -> None:
    """Raises what click raises for an option that does not exist or lacks its value."""
    context = click.Context(command)
    if "..." in arguments or command.context_settings.get("ignore_unknown_options"):
        return
    given, rest, _ = command.make_parser(context).parse_args(list(before_redirection(arguments)))
    for parameter in command.params:
        if isinstance(parameter.type, click.Choice) and isinstance(value := given.get(parameter.name or ""), str):
            assert value in parameter.type.choices
    if isinstance(command, click.Group):
        if rest and not given.get("help"):
            below = command.get_command(context, rest[0])
            assert below is not None, rest
            check_arguments(below, rest[1:])
    else:
        assert not rest, rest


def before_redirection(words: list[str]) -> Iterator[str]:
    """`-` stays: what follows `<` or `>` is a file and no argument."""
    skip = False
    for word in words:
        if set(word) <= set("<>&"):
            skip = True
        elif skip:
            skip = False
        else:
            yield word


def targets() -> set[str]:
    return set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.M))


# --- links ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_somewhere(page: Path) -> None:
    for target in links(page):
        if re.match(r"[a-z]+:", target):
            assert re.fullmatch(r"https?://[\w.:-]+(/[^\s<>]*)?|mailto:\S+@\S+", target), target
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), target
        assert found.is_relative_to(ROOT), target
        if anchor:
            assert anchor in anchors(found), target


def links(page: Path) -> list[str]:
    text = re.sub(r"`[^`\n]*`", "", prose(page))
    inline = re.findall(r"\]\(<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\)", text)
    return inline + re.findall(r"^\[[^\]]+\]:\s*(\S+)", text, re.M) + re.findall(r"<(https?://[^>\s]+)>", text)


def anchors(page: Path) -> set[str]:
    """Of its headings, as GitHub makes them; a heading that is there twice gets a number."""
    found: dict[str, int] = {}
    for heading in re.findall(r"^#+ (.+)$", prose(page), re.M):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", plain.strip().lower()).replace(" ", "-")
        count = found[slug] = found.get(slug, -1) + 1
        if count:
            found[f"{slug}-{count}"] = 0
    return set(found) | set(re.findall(r'<a (?:id|name)="([^"]+)"', page.read_text()))


# --- places in the code -----------------------------------------------------------------------------------------------

ARCHITECTURE = ROOT / "docs" / "architecture.md"


@pytest.mark.parametrize(
    "path", sorted(set(re.findall(r"`((?:relay|workers|tests|release)/[^`*]*)`", ARCHITECTURE.read_text())))
)
def test_a_path_on_the_page_of_the_architecture_exists(path: str) -> None:
    assert (ROOT / path).exists()


@pytest.mark.parametrize(
    ("name", "path"),
    sorted(set(re.findall(r"`([\w.]+)` (?:in|of)\s+`(\w+/[\w/]+\.(?:py|lua))`", ARCHITECTURE.read_text()))),
)
def test_a_name_on_the_page_of_the_architecture_is_in_its_module(name: str, path: str) -> None:
    text = (ROOT / path).read_text()
    if path.endswith(".lua"):
        assert re.search(rf"^ *local .*\b{name}\b", text, re.MULTILINE)
        return
    body: list[ast.stmt] = ast.parse(text).body
    for part in name.split("."):
        found = [statement for statement in body if part in declared(statement)]
        assert found, part
        body = getattr(found[0], "body", [])


def declared(statement: ast.stmt) -> set[str]:
    """The names that a statement of a module or class declares."""
    if isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return {statement.name}
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    return {target.id for target in targets if isinstance(target, ast.Name)}


def test_the_engine_on_the_page_of_the_architecture_is_complete() -> None:
    table = ARCHITECTURE.read_text().split("## The engine, from below")[1].split("## ")[0]
    modules = {path.name for path in (ROOT / "relay" / "engine").glob("*.py")} - {"__init__.py"}
    assert set(re.findall(r"`(\w+\.py)`", table)) == modules, "the table of modules in docs/architecture.md"


def test_the_keys_of_redis_on_the_page_of_the_architecture_are_complete() -> None:
    scripts = (path.read_text() for path in (ROOT / "relay" / "state" / "redis" / "scripts").glob("*.lua"))
    keys = {name for script in scripts for name in re.findall(r"\bP \.\. '([a-z]+)[:']", script)}
    assert len(keys) > 30
    on_page = set(re.findall(r"`([a-z]+)[:`]", ARCHITECTURE.read_text().split("## Storage")[1]))
    assert keys - on_page == set(), "the tables of keys in docs/architecture.md"


def test_the_page_about_the_pages_has_a_row_for_each() -> None:
    rows = re.findall(r"^\| .* `(/ui/[^`]*)` \|", (ROOT / "docs/pages.md").read_text(), re.MULTILINE)
    assert {entry.href for entry in NAVIGATION} == set(rows), "the table of docs/pages.md"
