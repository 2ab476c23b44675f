"""The list of licences matches the lock file, and the lock file matches the requirements of the project."""

import re

import pytest

from release import licences
from release.distributions import LOCK, ROOT, Locked, ReleaseError, as_locked, extras, graph, locked


def test_a_lock_is_read() -> None:
    one, other = "0" * 64, "f" * 64
    lines = (
        "# said",
        "a-b==1.0 \\",
        f"    --hash=sha256:{one} \\",
        f"    --hash=sha256:{other}",
        "c==2 ; python_version < '4' \\",
        f"    --hash=sha256:{other}",
        "",
    )
    assert locked("\n".join(lines)) == {
        "a-b": Locked("a-b", "1.0", (one, other)),
        "c": Locked("c", "2", (other,)),
    }


def test_the_list_of_licences_is_that_of_the_lock() -> None:
    assert licences.PAGE.read_text() == licences.page(), "make licences"


def test_every_locked_distribution_of_a_relay_is_on_the_list() -> None:
    page = licences.PAGE.read_text()
    listed = dict(re.findall(r"^\| ([a-z0-9-]+) \| ([^ ]+) \|", page, re.M))
    for entry in locked((ROOT / "requirements" / "runtime.txt").read_text()).values():
        assert listed[entry.name] == entry.version
    assert {one.file for one in licences.vendored()} == set(
        re.findall(r"^\| `(\S+)` \|", licences.PAGE.read_text(), re.M)
    )


def test_the_locks_agree() -> None:
    everything = locked(LOCK.read_text())
    assert len(everything) > 50
    for name in ("runtime.txt", "build.txt"):
        for entry in locked((ROOT / "requirements" / name).read_text()).values():
            assert entry.name == "editables" or everything[entry.name].version == entry.version
    assert all(entry.sha256 for entry in everything.values())
    needed = graph(text for listed in extras().values() for text in listed)
    assert needed["aiohttp"] >= {"yarl", "multidict"}
    assert needed.keys() <= everything.keys()


def test_a_version_that_is_not_the_lock_s_is_told() -> None:
    lock = locked(LOCK.read_text())
    with pytest.raises(ReleaseError, match=r"click is .* here, the lock says 0\.1: make setup"):
        as_locked(["click"], lock | {"click": Locked("click", "0.1", ())})


def test_a_licence_that_nobody_has_accepted_stops_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(licences, "ACCEPTED", frozenset({"MIT"}))
    with pytest.raises(ReleaseError, match="click is under BSD-3-Clause"):
        licences.licence_of("click")
    monkeypatch.setattr(licences, "_READ", {})
    with pytest.raises(ReleaseError, match="jinja2 states no SPDX expression"):
        licences.licence_of("jinja2")


def test_every_vendored_file_has_its_licence_beside_it() -> None:
    beside = {path.name for path in licences.VENDOR.iterdir()}
    assert {one.file for one in licences.vendored()} == {name for name in beside if name.endswith((".js", ".css"))}
