"""Imports point one way: cli, api -> workers -> engine -> ports -> domain; adapters implement ports."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
CLIENT_LIBRARIES: Final = frozenset(
    (
        "aiokafka",
        "redis",
        "aiohttp",
        "httptools",
        "sentry_sdk",
        "click",
        "rich",
        "structlog",
        "prometheus_client",
        "asyncpg",
        "jinja2",
        "opentelemetry",
    )
)
PORTS: Final = {
    "log": {"port", "partitioner", "checks"},
    "state": {"port", "replies", "rows", "attempts", "read_model", "lanes", "lease", "gaps", "values"},
    "delivery": {"port"},
    "history": {"port", "lag"},
}
"""Package -> the modules of its port; its others are adapters."""
CORE: Final = frozenset({"domain", "clock", "port", "engine", "workers"})
MAY_IMPORT: Final = {
    "domain": {"domain"},
    "schema": {"domain", "schema"},
    "clock": {"clock"},
    "port": {"domain", "port", "clock"},
    "config": {"domain", "config"},
    "control": {"domain", "port", "config", "control"},
    "engine": {"domain", "port", "clock", "engine"},
    "workers": {"domain", "port", "clock", "engine", "workers"},
    "adapter": {"domain", "port", "clock", "adapter"},
    "egress": {"domain", "port", "config", "adapter"},
    "telemetry": {"domain", "port", "engine", "telemetry"},
    "recovery": {"domain", "port", "clock", "control", "engine", "workers", "telemetry", "recovery"},
    "replay": {"domain", "port", "clock", "engine", "workers", "control", "telemetry", "recovery", "replay"},
    "checks": {"domain", "port", "clock", "config", "control", "adapter", "egress", "engine", "telemetry", "checks"},
    "incidents": {"domain", "port", "clock", "engine", "workers", "control", "telemetry", "incidents"},
    "api": {
        "domain",
        "schema",
        "port",
        "clock",
        "engine",
        "workers",
        "config",
        "control",
        "telemetry",
        "replay",
        "incidents",
        "adapter",
        "api",
    },
    "pages": {"domain", "schema", "telemetry", "samples", "api", "client", "pages"},
}
"""Layer -> layers that it may import. Layers that are not here (cli, what wires a process) may import all."""

OWNERS: Final = {
    "aiokafka": {"relay.log.kafka"},
    "redis": {"relay.log.streams", "relay.state.redis"},
    "sqlite3": {"relay.history", "relay.control"},
    "asyncpg": {"relay.history"},
    "jinja2": {"relay.pages", "relay.api"},
    "cel_expr_python": {"relay.domain"},
    "opentelemetry": {"relay.telemetry"},
}
"""Client library -> the packages that alone may import it."""


def layer(module: str) -> str:
    """The layer of a module of ours."""
    top, *rest = module.split(".")
    if top == "workers" or not rest:
        return top
    if rest == ["delivery", "egress"]:
        return "egress"
    if rest[:2] == ["sink", "samples"]:
        return "samples"
    if rest[0] in PORTS:
        return "port" if PORTS[rest[0]].intersection(rest[1:2]) else "adapter"
    return rest[0]


def imports(source: str) -> Iterator[str]:
    """Every module that `source` imports, wherever in it. `from a import b` gives `a` and `a.b`: b may be a module."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            assert node.level == 0, "imports are absolute here"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def faults(module: str, source: str) -> list[str]:
    own = layer(module)
    found = []
    for imported in imports(source):
        top = imported.split(".", 1)[0]
        if top in ("relay", "workers"):
            if own in MAY_IMPORT and layer(imported) in _LAYERS and layer(imported) not in MAY_IMPORT[own]:
                allowed = ", ".join(sorted(MAY_IMPORT[own]))
                found.append(f"{module} ({own}) imports {imported} ({layer(imported)}); allowed: {allowed}")
        elif top in CLIENT_LIBRARIES and own in CORE:
            found.append(f"{module} ({own}) imports the client library {top}")
        elif top in OWNERS and not any(module.startswith(f"{package}.") for package in OWNERS[top]):
            found.append(f"{module} imports {top}, which belongs to {sorted(OWNERS[top])}")
    return found


def modules() -> dict[str, Path]:
    paths = [path for package in ("relay", "workers") for path in (ROOT / package).rglob("*.py")]
    return {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in paths}


_MODULES: Final = modules()
_LAYERS: Final = {layer(module) for module in _MODULES} - {"relay"}
"""Layers there are. What `from relay import __version__` names is none of them."""


def test_imports_point_one_way() -> None:
    found = {module: faults(module, path.read_text()) for module, path in _MODULES.items()}
    assert {module: wrong for module, wrong in found.items() if wrong} == {}


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("relay.domain.message", "from relay.engine import core"),
        ("relay.domain.message", "import redis.asyncio"),
        ("relay.domain.message", "from relay.clock import Clock"),
        ("relay.schema.messages", "from relay.api.view import message_view"),
        ("relay.log.port", "from relay.log.kafka.log import KafkaLog"),
        ("relay.engine.core", "def f():\n    from relay.state.redis.state import RedisState"),
        ("relay.engine.core", "from aiohttp import ClientSession"),
        ("relay.engine.core", "import workers.to_sender"),
        ("workers.to_sender", "from relay.delivery import lean_transport"),
        ("workers.to_sender", "import structlog"),
        ("relay.log.streams.log", "from relay.engine.lane import Lane"),
        ("relay.api.server", "from relay.cli.main import main"),
        ("relay.cli.run", "from aiokafka import AIOKafkaProducer"),
        ("relay.delivery.guard", "import redis"),
        ("relay.pages.try_it", "from relay.sink import app"),
    ],
)
def test_an_import_against_the_direction_is_found(module: str, source: str) -> None:
    assert len(faults(module, source)) == 1
