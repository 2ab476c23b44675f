"""The checker of prose and class names finds what it has to find (tests/words.py)."""

from collections import Counter
from pathlib import Path

import pytest

from tests import words
from tests.documents import ROOT


def test_exceptions_are_needed() -> None:
    names = Counter(name for path in words.modules(*words.CODE) for name in words.public_classes(path))
    for each in words.EXCEPTIONS:
        assert names[each] > 1 or (ROOT / each).is_file(), each


def test_a_comment_and_a_docstring_are_read_and_other_text_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(words, "ROOT", tmp_path)
    module = tmp_path / "module.py"
    module.write_text('''"""It is\ntold."""\nNAME = "nobody"  # under\nLIMIT = 1  # by itself\n"""As far\nas."""\n''')
    found = [(finding.line, finding.text.split("'")[1]) for finding in words.of_module(module)]
    assert sorted(found) == [(2, "told"), (4, "by itself"), (5, "As far as")]


def test_a_page_is_read_without_its_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text("# A\n\n```text\nnobody\n```\n\nTell `nobody`, whoever\nit is.\n")
    assert [str(finding) for finding in words.of_page(page)] == [
        "page.md:7: in place of 'Tell', write: say, log, report, return",
        "page.md:7: in place of 'whoever', write: the client, an operator, a process, no process",
    ]


def test_two_classes_of_one_name_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "ROOT", tmp_path)
    for name in ("relay/a.py", "workers/b.py"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("class Seen:\n    class Inner: ...\n\n\nclass _Own: ...\n\n\nclass Lane: ...\n")
    assert [str(finding) for finding in words.of_class_names()] == [
        "workers/b.py:1: class Seen is in relay/a.py, too: give one another name"
    ]
