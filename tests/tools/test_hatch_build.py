"""Tests of the wheel's build hook: the imports that it rewrites."""

import pytest

from hatch_build import renamed


@pytest.mark.parametrize(
    ("source", "as_the_wheel_has_it"),
    [
        ("from workers import evidence\n", "from relay.workers import evidence\n"),
        ("from workers.journal import About\n", "from relay.workers.journal import About\n"),
        ("if 1:\n    from  workers.journal import (\n        A,\n    )\n", None),
        ('x = "é"; from workers.a import b', 'x = "é"; from relay.workers.a import b'),
        ("from workers_of_others import a\nfrom relay.api import workers\nimport networkers\n", None),
        ('"""from workers import a"""\n# from workers import b\n', None),
    ],
)
def test_an_import_from_workers_is_one_from_relay_workers(source: str, as_the_wheel_has_it: str | None) -> None:
    expected = (
        source.replace("from  workers", "from relay.workers") if as_the_wheel_has_it is None else as_the_wheel_has_it
    )
    assert renamed(source, "relay/a.py") == expected


@pytest.mark.parametrize("source", ["import workers", "import os, workers.journal as j", "from \\\n workers import a"])
def test_what_it_cannot_rename_ends_the_build(source: str) -> None:
    with pytest.raises(ValueError, match=r"relay/a\.py:1: "):
        renamed(source, "relay/a.py")
