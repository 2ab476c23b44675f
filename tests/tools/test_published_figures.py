"""The figures in docs/performance.md and docs/guarantees.md were measured on a recent engine."""

import re
import subprocess
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Final

import pytest

from relay.config.settings import Settings

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = ("docs/performance.md", "docs/guarantees.md")
ENGINE: Final = ("relay/engine", "relay/log", "relay/state")
_NAMED: Final = re.compile(r"[Rr]evision\s+([0-9a-f]{7,40})\s+of\s+(\d{4}-\d\d-\d\d)")
_RELEASED: Final = re.compile(r"^## \[\d[^]]*\] - (\d{4}-\d\d-\d\d)", re.MULTILINE)


def git(*arguments: str) -> str | None:
    """None if it fails: there is no such commit here, in a shallow clone for example."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def revisions(page: str) -> list[tuple[str, date]]:
    return [(revision, date.fromisoformat(on)) for revision, on in _NAMED.findall((ROOT / page).read_text())]


def releases(changelog: str, after: date, until: date) -> list[date]:
    found = map(date.fromisoformat, _RELEASED.findall(changelog))
    return [on for on in found if after < on <= until]


def is_outdated(measured: date, changed: date, changelog: str) -> bool:
    """Whether more than one release lies between the measured revision and the last change of the engine."""
    return len(releases(changelog, measured, changed)) > 1


@pytest.fixture
def changed() -> date:
    """The day on which the engine last changed. In a shallow clone the oldest commit counts as a change of everything,
    so this may be too late, never too early."""
    if (on := git("log", "-1", "--format=%cs", "--", *ENGINE)) is None:
        pytest.skip("no git, or no checkout")
    return date.fromisoformat(on)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_names_the_revision_that_was_measured(page: str) -> None:
    assert len(revisions(page)) == 1, "write `Revision <commit> of <date>`, once"


@pytest.mark.parametrize("page", PAGES)
def test_the_measured_revision_is_not_older_than_the_engine_by_more_than_a_release(page: str, changed: date) -> None:
    for revision, measured in revisions(page):
        assert not is_outdated(measured, changed, (ROOT / "CHANGELOG.md").read_text()), f"{page}: measure it again"
        if (on := git("log", "-1", "--format=%cs", revision, "--")) is not None:
            assert date.fromisoformat(on) == measured


@pytest.mark.parametrize(
    ("released", "outdated"),
    [
        ([], False),
        (["2026-01-10"], False),
        (["2026-01-10", "2026-02-10"], True),
        (["2025-12-01", "2026-01-10"], False),
        (["2026-01-10", "2026-04-01"], False),
    ],
)
def test_two_releases_since_are_too_many(released: Sequence[str], outdated: bool) -> None:
    changelog = "## [Unreleased]\n" + "".join(f"\n## [0.{n}.0] - {on}\n" for n, on in enumerate(released))
    assert is_outdated(date(2026, 1, 1), date(2026, 3, 1), changelog) is outdated


@pytest.mark.parametrize("page", PAGES)
def test_a_page_names_settings_that_exist(page: str) -> None:
    text = (ROOT / page).read_text()
    of_tests = "".join(path.read_text() for path in (ROOT / "tests" / "faults").rglob("*.py"))
    of_tests += (ROOT / "tests/integration/test_tenancy.py").read_text()
    named = re.findall(r"\bRELAY_[A-Z_]+\b", text)
    assert [name for name in named if name[6:].lower() not in Settings.model_fields and name not in of_tests] == []
    limits = re.findall(r"^\|[^|]+\| `([a-z_]+)` \|", text.partition("## What happens at each limit")[2], re.MULTILINE)
    assert [name for name in limits if name not in Settings.model_fields] == []
