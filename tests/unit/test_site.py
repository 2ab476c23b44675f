"""The site: every page is in its navigation, it is built without a warning, and nothing of it comes from elsewhere."""

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "zensical.toml"
SECTIONS = ["Start", "Tutorials", "How-to", "Reference", "Explanation"]


def navigation() -> Any:
    return tomllib.loads(CONFIG.read_text())["project"]["nav"]


def leaves(items: Any) -> Iterator[str]:
    """The files; an item is one without a title of its own, or has one for a file or for more items."""
    for item in items:
        for value in [item] if isinstance(item, str) else item.values():
            yield from [value] if isinstance(value, str) else leaves(value)


def test_every_page_is_in_one_section() -> None:
    """Runbooks are listed in runbooks/README.md."""
    named = list(leaves(navigation()))
    paths = [path for path in (ROOT / "docs").rglob("*.md") if not path.name.startswith("Relay")]
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in paths}
    assert pages ^ set(named) == set(), "each page has a line in zensical.toml"
    assert len(named) == len(pages)
    assert [name for section in navigation() for name in section] == SECTIONS


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The site, and what was said while it was built, of a copy: nothing is written beside the sources."""
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(ROOT / "docs", folder / "docs")
    (folder / CONFIG.name).write_text(CONFIG.read_text())
    command = [str(Path(sys.executable).parent / "zensical"), "build", "--strict", "--clean"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=100)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    return folder / "site", said


@pytest.mark.thorough
def test_it_is_built_without_a_warning(built: tuple[Path, str]) -> None:
    site, said = built
    assert not re.search(r"warn|error", said, re.I), said
    for name in leaves(navigation()):
        assert (site / name.replace("README.md", "index.md")).with_suffix(".html").exists()


@pytest.mark.thorough
def test_it_needs_no_network(built: tuple[Path, str]) -> None:
    """Links may lead elsewhere; a browser loads nothing from there."""
    site, _ = built
    loaded = re.compile(
        r"<(?:script|img|iframe|source)\b[^>]*\bsrc=[\"']?(?:https?:)?//|<link\b[^>]*\bhref=[\"']?(?:https?:)?//"
    )
    for page in site.rglob("*.html"):
        text = page.read_text()
        assert loaded.findall(text) == [], page.name
        assert 'class="mermaid"' not in text, "the theme would load what draws it from elsewhere"
    for style in site.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//", style.read_text()), style.name


def test_links_between_pages_lead_somewhere(built: tuple[Path, str]) -> None:
    site, _ = built
    for page in set(site.rglob("*.html")) - {site / "404.html"}:  # that one is served at any path
        for target in re.findall(r'href="([^"#:?]+\.html)(?:#[^"]*)?"', page.read_text()):
            assert (page.parent / target).resolve().exists(), f"{page.name}: {target}"
