"""The wheel's build hook: `workers/`, which stands beside `relay/` in the tree, is `relay.workers` in the wheel.

One top-level name is all that an installed relay takes of somebody's environment, and `workers` is a name that others
want, too. So the wheel has the folder inside `relay/`, and wherever a module imports from `workers`, its copy in the
wheel says `relay.workers`. Nothing else differs: lines keep their numbers, and each module has one name in either.
A checkout, an editable install and the sdist have the tree as it is.

The pages of `docs/` are in the wheel as `relay/docs/`, without their pictures: `relay help` shows them. An editable
install has none there, and finds those of its tree.
"""

import ast
import re
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGES = ("relay", "workers")


def renamed(source: str, path: str) -> str:
    """`source` with `from workers...` as `from relay.workers...`.

    Raises ValueError at `import workers...`, which binds the name `workers`: what uses it would have to change, too.
    """
    lines = source.splitlines(keepends=True)
    for node in ast.walk(ast.parse(source, path)):
        match node:
            case ast.Import(names=names) if any(name.name.split(".")[0] == "workers" for name in names):
                raise ValueError(
                    f"{path}:{node.lineno}: say `from workers import ...`: the wheel has another name for it"
                )
            case ast.ImportFrom(module=str(module), level=0, lineno=number) if module.split(".")[0] == "workers":
                # columns count bytes, and what stands before a statement is blank, or another statement and `;`
                head, statement = _split(lines[number - 1], node.col_offset)
                statement, found = re.subn(r"^from\s+workers\b", "from relay.workers", statement)
                if not found:
                    raise ValueError(f"{path}:{number}: `from workers...` has to be on one line")
                lines[number - 1] = head + statement
    return "".join(lines)


def _split(line: str, column: int) -> tuple[str, str]:
    encoded = line.encode()
    return encoded[:column].decode(), encoded[column:].decode()


class CustomBuildHook(BuildHookInterface[Any]):
    """What hatchling calls before it puts a wheel together, and after."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        self._copies = tempfile.TemporaryDirectory(prefix="relay-wheel-")
        root, copies = Path(self.root), Path(self._copies.name)
        for page in sorted(path.relative_to(root) for path in (root / "docs").rglob("*.md")):
            build_data["force_include"][str(root / page)] = f"relay/{page.as_posix()}"  # for `relay help`
        for path in sorted(path for package in PACKAGES for path in (root / package).rglob("*.py")):
            inside = path.relative_to(root)
            target = Path("relay", inside) if inside.parts[0] == "workers" else inside
            source = path.read_text(encoding="utf-8")
            as_wheel_has_it = renamed(source, str(inside))
            if target == inside and as_wheel_has_it == source:
                continue
            copy = copies / target
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(as_wheel_has_it, encoding="utf-8")
            build_data["force_include"][str(copy)] = target.as_posix()

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if version != "editable":
            self._copies.cleanup()
