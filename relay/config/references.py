"""`${NAME}` references to the environment, which stay unresolved in files and on the log: `receivers_file.py` resolves
them when a process takes up an entry."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from relay.config.encryption import ENCRYPTED, is_encrypted_name, map_texts, texts_in
from relay.config.problems import Place, dotted, raise_all
from relay.domain.expression import CALLBACK, REQUEST, STATUS
from relay.domain.template import has_expression, spans_of_expressions, without_expressions
from relay.domain.text import matches, with_replaced

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SCHEMES: Final = frozenset({"", "basic", "bearer", "digest", "token", "apikey"})
_UNBRACED: Final = re.compile(r"(?:\w+ )?\$[A-Z_][A-Z0-9_]*")
"""A variable in a shell's form, perhaps after the name of an auth scheme."""
_VARIABLES: Final = {name for scope in (REQUEST, STATUS, CALLBACK) for name in scope.variables}
_UNMARKED: Final = re.compile(rf"\{{\{{?\s*(?:{'|'.join(sorted(_VARIABLES))})\.")
"""The beginning of an expression in the marks of other systems, or of a placeholder of `status_endpoint`."""
SEALED_PREFIX: Final = "file:"
"""Prefix of references to literal secrets of the receivers file; no environment variable can have such a name."""
_NOT_FOR_RECEIVERS: Final = (
    "RELAY_", "SENTRY_", "AWS_", "AZURE_", "ARM_", "GOOGLE_", "GCLOUD_", "CLOUDSDK_", "ALIBABA_CLOUD_", "OCI_",
    "IBMCLOUD_", "DIGITALOCEAN_", "VAULT_", "KUBECONFIG",
)  # fmt: skip
"""Prefixes of the relay's own variables, and of well-known credentials of the machine it runs on."""


def usable_variables(environ: Mapping[str, str], allowed: Sequence[str]) -> dict[str, str]:
    """The variables that receivers.yaml may refer to: its author must not have access to all of the process's
    variables.

    `allowed`: names, or prefixes followed by `*`. If empty, all but the relay's own variables and cloud credentials.
    """
    return {name: value for name, value in environ.items() if _is_usable(name, allowed)}


def _is_usable(name: str, allowed: Sequence[str]) -> bool:
    if not allowed:
        return not name.startswith(_NOT_FOR_RECEIVERS)
    return any(matches(pattern, name) for pattern in allowed)


def spans_of_references(text: str) -> Iterator[tuple[int, int]]:
    """Start and end of each `${...}` in `text`, but for expressions `${{ ... }}`; in linear time for any text."""
    expressions = dict(spans_of_expressions(text))
    start = text.find("${")
    while start >= 0:
        if (end := expressions.get(start)) is None:
            brace = text.find("}", start + 2)
            if brace < 0:
                return
            end = brace + 1
            yield start, end
        start = text.find("${", end)


def with_references_replaced(text: str, meant: Callable[[str], str]) -> str:
    """`text` with each reference replaced by `meant(name)`."""
    return with_replaced(text, spans_of_references(text), lambda reference: meant(reference[2:-1]))


def _names_in(text: str) -> Iterator[str]:
    return (text[start + 2 : stop - 1] for start, stop in spans_of_references(text))


def has_reference(text: str) -> bool:
    return next(spans_of_references(text), None) is not None


def is_public(text: str) -> bool:
    """Whether a secret field's `text` is safe to show: it has only references and expressions, and perhaps the name of
    an auth scheme."""
    if not (has_reference(text) or has_expression(text)):
        return False
    return without_expressions(with_references_replaced(text, lambda _: "")).strip().lower() in _SCHEMES


def check_references(text: str) -> None:
    """Raises ValueError for a `${...}` that does not name an environment variable, or is not closed."""
    for name in _names_in(text):
        if not (_NAME.fullmatch(name) or name.startswith(SEALED_PREFIX) or is_encrypted_name(name)):
            raise ValueError("a ${...} in it does not name an environment variable; write it as ${NAME}")
    _, opened, rest = text.rpartition("${")
    if opened and "}" not in rest and not rest.startswith("{"):
        raise ValueError("a ${ in it is not closed; write it as ${NAME}")


def check_no_expression(text: str) -> None:
    """Raises ValueError for a `${{ ... }}` where none is evaluated: it would be sent, or sign, as it is written."""
    if has_expression(text):
        raise ValueError("has no expressions; ${NAME}, with one brace, is a variable of the environment")


def references_in(value: object) -> Iterator[tuple[Place, str]]:
    """The place and name of every reference in a tree of mappings and lists, including encrypted secrets."""
    for place, text in texts_in(value):
        for name in _names_in(text):
            yield place, name


def unbraced_in(value: object) -> Iterator[Place]:
    """The place of every text that is only a `$NAME`, which is no reference."""
    return (place for place, text in texts_in(value) if _UNBRACED.fullmatch(text))


def unmarked_in(value: object) -> Iterator[tuple[Place, str]]:
    """The place of every text that seems to have an expression without its marks, and its beginning."""
    for place, text in texts_in(value):
        found = _UNMARKED.search(without_expressions(text))
        if found is not None and place[-1] != "status_endpoint":
            yield place, found[0]


def substitute(value: object, environ: Mapping[str, str], *, origin: str, place: Place) -> object:
    """A copy of the tree with every reference replaced. `place`: where the tree is in `origin`, for messages.

    Raises UserError with a line for each variable that is not in `environ`.
    """
    raise_all(
        f"{origin}: {dotted(where)}: {_missing(name)}"
        for where, text in texts_in(value, place)
        for name in _unknown_in(text, environ)
    )
    return map_texts(value, place, lambda text, _: _text_of(text, environ))


def _unknown_in(text: str, environ: Mapping[str, str]) -> Iterator[str]:
    for name in _names_in(text):
        if name not in environ:
            yield name
        elif name.startswith(SEALED_PREFIX):  # a literal may refer to the environment itself
            yield from _unknown_in(environ[name], environ)


def _text_of(text: str, environ: Mapping[str, str]) -> str:
    def found(name: str) -> str:
        meant = environ[name]
        return _text_of(meant, environ) if name.startswith(SEALED_PREFIX) else meant

    return with_references_replaced(text, found)


def _missing(name: str) -> str:
    if name.startswith(SEALED_PREFIX):
        return "literal in a receivers file that this process does not have, or no longer; use a ${NAME} reference"
    if name.startswith(ENCRYPTED):
        return "an encrypted secret within another"
    kept_back = next((prefix for prefix in _NOT_FOR_RECEIVERS if name.startswith(prefix)), None)
    why = "" if kept_back is None else f": a name that begins with {kept_back} has to be listed there"
    return f"the environment variable {name} is not set, or RELAY_SECRETS_FROM does not allow it{why}"
