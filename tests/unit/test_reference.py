"""docs/reference/ is what the code says today."""

from pathlib import Path

import pytest

from relay.cli.group import COMMANDS
from relay.config.entry_types import meanings_of
from relay.config.settings import Settings
from release.reference.log_events import found, meanings
from release.reference.markdown import cell
from release.reference.pages import PAGES, made_anew

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_as_the_code_is(name: str) -> None:
    assert (DOCS / name).read_text() == made_anew(DOCS, name), "make reference"


def test_no_page_is_left_over() -> None:
    assert {f"reference/{path.name}" for path in (DOCS / "reference").iterdir()} == set(PAGES) - {"runbooks/README.md"}


def test_every_setting_says_what_it_is() -> None:
    assert set(Settings.model_fields) - set(meanings_of(Settings)) == set(), "write a text below the field"


def test_every_event_of_the_log_has_a_meaning() -> None:
    told = found()
    assert set(told) == set(meanings()), "make reference"
    without = [name for name, meaning in meanings().items() if not meaning]
    assert without == [], "write it into the last column of docs/reference/log-events.md"
    assert [name for name, how in told.items() if not how.levels] == []


def test_every_command_is_there() -> None:
    page = "\n" + PAGES["reference/commands.md"]()
    assert [name for name in COMMANDS if f"\n## relay {name}\n" not in page] == []


def test_a_cell_stays_one() -> None:
    assert cell("a | b\n  c") == "a \\| b c"


@pytest.mark.parametrize(
    ("page", "one"),
    [("receivers-yaml", "| `post_endpoint`"), ("commands", "| `--count INTEGER` | `1` | Number of messages. |")],
)
def test_every_field_of_the_receivers_file_and_every_option_has_a_meaning(page: str, one: str) -> None:
    rows = [line for line in PAGES[f"reference/{page}.md"]().splitlines() if line.startswith("| `")]
    assert any(row.startswith(one) for row in rows)
    assert [row for row in rows if row.rsplit("|", 2)[1].strip() == ""] == []
