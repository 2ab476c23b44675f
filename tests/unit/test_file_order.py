"""Files of folders that compute run beside files of folders that wait."""

from pathlib import Path

from tests.file_order import FIRST, between_each_other


def test_each_folder_is_spread_over_the_whole_run() -> None:
    waiting = [f"tests/integration/test_{letter}.py" for letter in "abcd"]
    computing = ["tests/browser/test_x.py", "tests/browser/test_y.py"]
    a, b, c, d = waiting
    y, x = sorted(computing)
    assert between_each_other([*computing, *waiting]) == [a, y, b, c, x, d]


def test_short_ones_come_last() -> None:
    assert between_each_other(["tests/unit/test_a.py", "tests/browser/test_b.py"]) == [
        "tests/browser/test_b.py",
        "tests/unit/test_a.py",
    ]


def test_the_longest_come_first() -> None:
    others = ["tests/contract/test_a.py", "tests/integration/test_a.py", "tests/unit/test_a.py"]
    assert set(between_each_other([*others, *FIRST])[: len(FIRST)]) == FIRST
    assert all((Path(__file__).parents[2] / file).exists() for file in FIRST)
