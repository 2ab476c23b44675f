"""Templates of pages, compiled once in each process of tests, and once for all forks of the fork server.

Otherwise each relay compiles those that it shows, which took most of the CPU of a test of pages.
"""

import time
from types import CodeType
from typing import Any

from jinja2 import BytecodeCache, Environment
from jinja2.bccache import Bucket

from relay.pages import render


class _Compiled(BytecodeCache):
    """In memory."""

    def __init__(self) -> None:
        self._codes: dict[tuple[str, str], CodeType | None] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        bucket.code = self._codes.get((bucket.key, bucket.checksum))

    def dump_bytecode(self, bucket: Bucket) -> None:
        self._codes[bucket.key, bucket.checksum] = bucket.code


_COMPILED = _Compiled()


class _Environment(Environment):
    def __init__(self, **options: Any) -> None:
        replaces = bool(options["extensions"])  # texts, while it compiles
        super().__init__(**options, bytecode_cache=None if replaces else _COMPILED)


def keep_compiled() -> None:
    """Keep all that is compiled from now on, but for templates with replaced texts."""
    render.Environment = _Environment  # type: ignore[assignment, attr-defined]


def compile_all() -> None:
    templates = render.Renderer(str, time.time)._environment
    for name in templates.list_templates():
        templates.get_template(name)
