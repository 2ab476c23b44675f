"""`${NAME}` references to the environment: kept as they are in files and on the log, replaced only to be used."""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from relay.config.problems import Place, dotted, raise_all

_REFERENCE = re.compile(r"\$\{([^}]*)\}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
SEALED_PREFIX: Final = "file:"
"""Begins the name of what is written out in the receivers file; no variable of an environment can have such a name."""


def has_reference(text: str) -> bool:
    return _REFERENCE.search(text) is not None


def check_references(text: str) -> None:
    """Raises ValueError for a `${...}` that does not name an environment variable."""
    for name in _REFERENCE.findall(text):
        if not _NAME.fullmatch(name) and not name.startswith(SEALED_PREFIX):
            raise ValueError("a ${...} in it does not name an environment variable; write it as ${NAME}")


def references_in(value: object, place: Place = ()) -> Iterator[tuple[Place, str]]:
    """The place and name of every reference in a tree of mappings and lists."""
    for where, text in texts_in(value, place):
        for name in _REFERENCE.findall(text):
            yield where, name


def texts_in(value: object, place: Place = ()) -> Iterator[tuple[Place, str]]:
    """Every text of the tree (not the keys), with its place."""
    if isinstance(value, str):
        yield place, value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from texts_in(inner, (*place, key))
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            yield from texts_in(inner, (*place, index))


def substitute(value: object, environ: Mapping[str, str], *, origin: str, place: Place) -> object:
    """A copy of the tree with every reference replaced. `place`: where the tree is in `origin`, for messages.

    Raises UserError with a line for each variable that is not in `environ`.
    """
    raise_all(
        f"{origin}: {dotted(where)}: {_missing(name)}"
        for where, name in references_in(value, place)
        if name not in environ
    )
    return _replaced(value, environ)


def _replaced(value: object, environ: Mapping[str, str]) -> object:
    if isinstance(value, str):
        return _REFERENCE.sub(lambda found: environ[found[1]], value)
    if isinstance(value, Mapping):
        return {key: _replaced(inner, environ) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_replaced(inner, environ) for inner in value]
    return value


def _missing(name: str) -> str:
    if name.startswith(SEALED_PREFIX):
        return "written out in a receivers file that this process does not have; use a ${NAME} reference instead"
    return f"the environment variable {name} is not set"
