"""The Lua scripts: read from `scripts/`, each with the parts that it includes.

Whoever runs them reads them all before its first call: with no descriptor left, none could be opened later on.
"""

import hashlib
import re
from functools import cache
from importlib.resources import files
from typing import NamedTuple

_INCLUDE = re.compile(r"^--include (.+)$", re.MULTILINE)


class Script(NamedTuple):
    """`sha`: the name under which the server keeps it once loaded."""

    source: bytes
    sha: bytes


def _read(name: str) -> str:
    return (files("relay.state.redis") / "scripts" / f"{name}.lua").read_text(encoding="utf-8")


def script_names() -> list[str]:
    """Of every script that can be called; names that begin with `_` are of parts."""
    files_there = (entry.name for entry in (files("relay.state.redis") / "scripts").iterdir())
    return sorted(name[:-4] for name in files_there if name.endswith(".lua") and not name.startswith("_"))


@cache
def script(name: str) -> Script:
    """The script `scripts/<name>.lua`, complete: each `--include` line is replaced by the parts it names."""
    source = _INCLUDE.sub(lambda names: "\n".join(map(_read, names[1].split())), _read(name))
    return Script(source.encode(), hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest().encode())
