"""Binds credentials to their origin: finds those that a change over the API must supply again. Pure.

A client that may change a receiver's URL need not know its credentials, and must not be able to redirect them to
another origin. This does not apply to the receivers file, which has the credentials beside the URLs.
"""

from collections.abc import Iterator, Mapping

from relay.config.encryption import texts_in
from relay.config.presets import PresetKind, with_preset
from relay.config.problems import Place
from relay.config.receivers_file import Raw
from relay.config.references import has_reference, with_references_replaced
from relay.domain.template import without_expressions
from relay.domain.urls import origin_of

_POSTED_TO = ("post_endpoint", "status_endpoint", "url")
_CALLBACK = ("url", "allow_origins")
_LED_TO = ("post_endpoint", *_CALLBACK)
"""Origins that a request of its own, and status steps, may lead to."""
_OAUTH2 = "oauth2"
_STEPS = "status_steps"


def missing_credentials(before: Raw, after: Raw, given: object, variables: Mapping[str, str]) -> list[Place]:
    """Places of credentials that `after` keeps from `before` although their origin changes. Both are decrypted entries
    of a receiver or source; `given`: the merge patch between them. `variables`: for references in their URLs."""
    kind: PresetKind = "receiver" if "post_endpoint" in before else "source"
    full = with_preset(before, kind), with_preset(after, kind)
    own = _of_endpoint(*full, _mapping(given), _POSTED_TO, variables)
    was, will_be, anew = (_mapping(_mapping(each).get("callback")) for each in (*full, given))
    found = [*own, *(("callback", *place) for place in _of_endpoint(was, will_be, anew, _CALLBACK, variables))]
    return [place for place in found if _at(after, place) is not None]  # a preset has no credentials


def _of_endpoint(
    before: Mapping[str, object],
    after: Mapping[str, object],
    given: Mapping[str, object],
    fields: tuple[str, ...],
    variables: Mapping[str, str],
) -> Iterator[Place]:
    moves = bool(_origins(after, fields, variables) - _origins(before, fields, variables))
    issuers = [_origins(_mapping(each.get(_OAUTH2)), ("token_url",), variables) for each in (after, before)]
    places: list[Place] = []
    if moves:
        places += [("bearer_token",), *(("headers", name) for name in _mapping(after.get("headers")))]
        places += [("tls", "client_key")]
    if moves or issuers[0] - issuers[1]:
        places += [(_OAUTH2, "client_secret")]
    if _origins(after, _LED_TO, variables) - _origins(before, _LED_TO, variables):
        places += dict.fromkeys(_sent_along(after))
    for place in places:
        if _at(after, place) is not None and _at(given, place) is None:
            yield place


def _sent_along(endpoint: Mapping[str, object]) -> Iterator[Place]:
    """Places in its requests that are not only made from the message: literal headers, and all with a reference. A list
    has one place, because a patch can only replace it as a whole."""
    for place, text in texts_in(endpoint.get("request"), ("request",)):
        is_header = place[1:2] == ("headers",) and str(place[-1]).lower() != "content-type"
        if has_reference(text) or (is_header and without_expressions(text).strip()):
            yield place[: next((at for at, step in enumerate(place) if isinstance(step, int)), None)]
    if any(has_reference(text) for _, text in texts_in(endpoint.get(_STEPS))):
        yield (_STEPS,)


def _origins(endpoint: Mapping[str, object], fields: tuple[str, ...], variables: Mapping[str, str]) -> set[object]:
    values = [endpoint.get(field) for field in fields]
    texts = [each for value in values for each in (value if isinstance(value, list | tuple) else [value])]
    return {_origin(text, variables) for text in texts if isinstance(text, str)}


def _origin(url: str, variables: Mapping[str, str]) -> object:
    url = with_references_replaced(url, lambda name: variables.get(name, f"${{{name}}}"))
    try:
        return origin_of(url)
    except ValueError:
        return url


def _at(value: object, place: Place) -> object:
    for step in place:
        value = _mapping(value).get(str(step))
    return value


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}
