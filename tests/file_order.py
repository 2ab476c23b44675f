"""Has the files of all folders run between each other: some folders keep the processors busy, others wait for servers.

Run one folder after the other, several at a time, both processors are short at first and idle later on.
"""

from collections import defaultdict
from collections.abc import Iterable
from pathlib import PurePath

import pytest

FIRST = frozenset({
    *("tests/integration/test_waiting.py", "tests/integration/test_wait.py"),  # wait most of a minute
    "tests/faults/model/test_model.py",  # computes for as long
})  # fmt: skip
"""Begun late, all others would be over before them."""
LAST = "tests/unit"
"""Its files are the shortest: with them all processes end at about the same time."""


def between_each_other(files: Iterable[str]) -> list[str]:
    """Files, as "tests/folder/more/name.py": of each folder evenly from the first to the last."""
    folders: dict[str, list[str]] = defaultdict(list)
    for file in files:
        folders[_folder(file)].append(file)
    places = {
        file: (file not in FIRST, folder == LAST, (number + 0.5) / len(within), file)
        for folder, within in folders.items()
        for number, file in enumerate(sorted(within))
    }
    return sorted(places, key=lambda file: places[file])


def _folder(file: str) -> str:
    return str(PurePath(file).parent)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Each process of xdist arrives at the same order. The tests of a file keep theirs."""
    files = dict.fromkeys(item.nodeid.partition("::")[0] for item in items)
    places = {file: place for place, file in enumerate(between_each_other(files))}
    items.sort(key=lambda item: places[item.nodeid.partition("::")[0]])
