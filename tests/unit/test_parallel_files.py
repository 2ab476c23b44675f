"""Tests of `--processes`: the report of a run in several processes is that of a run in one."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ONE = """
import os

def test_passes(): pass

def test_fails():
    print("said by Python")
    os.write(1, b"said by the system")
    assert os.getpid() == 0

def test_after_it(): print("nobody sees this")
"""
OTHER = """
import os, pytest

@pytest.fixture(scope="session", autouse=True)
def server():
    yield
    assert not "left running"

@pytest.mark.skip
def test_is_skipped(): pass

@pytest.mark.parametrize("number", range(3))
def test_passes(number): pass
"""
KILLED = """
import os

def test_passes(): pass

def test_kills_its_process(): os._exit(7)

def test_never_runs(): pass
"""


def run(tests: Path, *options: str) -> tuple[int, str]:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "tests.parallel_files",
        "-p",
        "no:cacheprovider",
        "-c",
        "/dev/null",
    ]
    ended = subprocess.run([*command, *options, str(tests)], cwd=ROOT, capture_output=True, text=True)
    return ended.returncode, ended.stdout


@pytest.mark.thorough
@pytest.mark.parametrize("processes", [0, 2])
def test_what_fails_is_reported_as_without_it(tmp_path: Path, processes: int) -> None:
    (tmp_path / "test_one.py").write_text(ONE)
    (tmp_path / "test_other.py").write_text(OTHER)
    status, output = run(tmp_path, "--processes", str(processes))
    assert status == 1
    assert "1 failed, 5 passed, 1 skipped, 1 error in" in output
    assert "AssertionError: assert not 'left running'" in output
    assert "said by Python\nsaid by the system" in output
    assert "nobody sees" not in output


def test_a_process_that_dies_fails_its_test_and_the_other_files_are_run(tmp_path: Path) -> None:
    (tmp_path / "test_killed.py").write_text(KILLED)
    for name in "abc":
        (tmp_path / f"test_{name}.py").write_text("def test_passes(): pass")
    status, output = run(tmp_path, "--processes", "2")
    assert status == 1
    assert "1 failed, 4 passed in" in output
    where = r"^_+ \S*test_killed.py::test_kills_its_process _+$"
    assert re.search(rf"{where}\nits process ended with 7", output, re.MULTILINE)
