"""Tables for people: on a terminal they can be read, and in a pipe nothing is cut."""

import os
import pty
import re
import subprocess
import sys
import termios
from collections.abc import Sequence

import pytest

from relay.cli.table import print_table

COLUMNS = ("PLACE", "RECEIVER", "REASON", "CLASS", "ATTEMPTS", "LAST", "FAILED AT", "SOURCE", "MESSAGE", "DETAIL")
DETAIL = "POST https://ci.example/hooks: 500 Internal Server Error: " + "no room for this one " * 5
ROWS = [
    ("3/17", "circleci", "exhausted", "receiver", "20", "500", "2026-11-22T08:00:00.000Z", "github", "m-1", DETAIL),
    ("4/1", "ci", "rejected", "receiver", "1", "422", "2026-11-22T08:00:01.000Z", "github", "m" * 200, "-"),
]


def _shown(columns: Sequence[str], rows: object, width: int | None) -> list[str]:
    """What a terminal of this width gets; None: a pipe."""
    program = f"from relay.cli.table import print_table; print_table({columns!r}, {rows!r})"
    call = [sys.executable, "-c", program]
    if width is None:
        return subprocess.run(call, capture_output=True, text=True, check=True, timeout=60).stdout.splitlines()
    reader, writer = pty.openpty()
    termios.tcsetwinsize(writer, (40, width))
    environ = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR")}
    with subprocess.Popen(call, stdout=writer, env=environ | {"TERM": "xterm"}) as running:
        os.close(writer)
        found = b""
        while chunk := _read(reader):
            found += chunk
        assert running.wait(60) == 0
    os.close(reader)
    return re.sub(r"\x1b\[[0-9;]*m", "", found.decode()).splitlines()


def _read(reader: int) -> bytes:
    try:
        return os.read(reader, 65_536)
    except OSError:  # the other end is closed
        return b""


@pytest.mark.parametrize("width", [40, 80, 120])
def test_on_a_narrow_terminal_each_row_is_a_paragraph_that_names_its_cells(width: int) -> None:
    lines = _shown(COLUMNS, ROWS, width)
    assert all(len(line) <= width for line in lines)
    text = "\n".join(lines)
    for cell in ("PLACE 3/17", "RECEIVER circleci", "REASON exhausted", "LAST 500", "SOURCE github", "MESSAGE m-1"):
        assert cell in text
    assert [line.split()[1] for line in lines if line.startswith("PLACE")] == ["3/17", "4/1"]
    assert "m" * 200 in "".join(line.strip() for line in lines)
    assert DETAIL.split() == " ".join(text.split("DETAIL ")[1].split("PLACE")[0].split()).split()


def test_on_a_wide_one_it_is_a_table() -> None:
    lines = _shown(COLUMNS, [(*row[:-1], "-") for row in ROWS[:1]], 140)
    assert lines[0].split() == " ".join(COLUMNS).split()
    assert len(lines) == 2


def test_few_columns_are_a_table_on_any_terminal() -> None:
    lines = _shown(("SETTING", "VALUE", "FROM"), [("api_port", "8" * 100, "default")], 80)
    assert lines[0].split() == ["SETTING", "VALUE", "FROM"]


def test_a_pipe_gets_a_line_for_each_row() -> None:
    lines = _shown(COLUMNS, ROWS, None)
    assert len(lines) == 3
    assert DETAIL.rstrip() in lines[1]


def test_a_table_without_rows_says_so_beside_it(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("NAME", "URL"), [])
    told = capsys.readouterr()
    assert (told.out.split(), told.err) == (["NAME", "URL"], "none\n")


def test_lines_in_a_pipe_have_no_blanks_at_their_ends() -> None:
    assert _shown(("A", "B"), [("1", "22"), ("333", "4")], None) == ["A    B", "1    22", "333  4"]


def test_a_list_without_rows_has_a_header_only_in_a_pipe() -> None:
    assert _shown(("A", "B"), [], None) == ["A  B"]
    assert _shown(("A", "B"), [], 80) == []
