"""The texts of the portal that a product may replace: found in the templates, replaced there, and checked at start."""

import json
from pathlib import Path

import pytest
from jinja2 import DictLoader, Environment

from relay.domain.advice import ERRORS
from relay.domain.errors import UserError
from relay.domain.reasons import reason_words
from relay.pages.page import navigation_for
from relay.pages.portal_strings import read_strings, texts
from relay.pages.translator import Replacing

WORDS = {"Send it": "Senden <jetzt>", "To": "An", "Its name": "Name & Ort", "A list": "{{ 1 }}", "en": "de"}


def rendered(source: str, **values: object) -> str:
    environment = Environment(loader=DictLoader({"page": source}), autoescape=True, extensions=[Replacing])
    environment.extend(replace=lambda text: WORDS.get(text, text))
    return environment.get_template("page").render(values)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("<b>Send it</b>", "<b>Senden &lt;jetzt&gt;</b>"),
        ("<p>\n To {{ name }} </p>", "<p>\n An &lt;To&gt; </p>"),
        ('<a href="/{{ name }}">To</a>', '<a href="/&lt;To&gt;">An</a>'),
        ('<i{% if name %} class="To"{% endif %} title="Its name">', '<i class="To" title="Name &amp; Ort">'),
        ('<html lang="en"><br data-title="Its name">', '<html lang="de"><br data-title="Its name">'),
        ("{{ 'A list' }} {{ 'To ' ~ 1 }}", "{{ 1 }} An 1"),
        ("{{ 'To' if name == 'To' }}", ""),
        ("To be <b>Send it now</b>", "To be <b>Send it now</b>"),
    ],
)
def test_texts_are_replaced_and_names_are_not(source: str, expected: str) -> None:
    assert rendered(source, name="<To>") == expected


def test_the_known_texts_are_those_of_the_portal() -> None:
    known = texts()
    assert {"Receivers", "Register a receiver", "Find anything", "Delivered", "Messages are POSTed to it.", "en"} <= {
        *known
    }
    assert not {"Needs attention", "POST", "bad"} & {*known}
    assert not [text for text in known if text.endswith('="')], "attributes are no texts"
    assert {"Name", "a-z, 0-9 and -. It cannot be changed later."} <= {*known}
    assert {", so nothing was replayed.", ", so nothing was discarded: mend the receiver."} <= {*known}
    assert {nav.label for nav in navigation_for({"owner"})} <= {*known}
    assert {*map(reason_words, ERRORS)} <= {*known}  # in the list of a receiver's attempts


def test_a_file_replaces_known_texts(tmp_path: Path) -> None:
    file = tmp_path / "strings.json"
    file.write_text(json.dumps({"Receivers": "Empfänger"}))
    assert read_strings(file) == {"Receivers": "Empfänger"}
    assert read_strings(None) == {}


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ('{"Receiver list": "x", "Find": "Suche"}', "the portal has no text 'Receiver list'; `relay portal strings`"),
        ("[]", "it is not a JSON object of texts"),
        ('{"Find": ""}', "it is not a JSON object of texts"),
        ('{"Find": 1}', "it is not a JSON object of texts"),
        ("{", "it is not JSON"),
        (None, "it cannot be read"),
    ],
)
def test_a_mistake_in_the_file_is_one_line(tmp_path: Path, content: str | None, why: str) -> None:
    file = tmp_path / "strings.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(UserError) as refused:
        read_strings(file)
    assert str(refused.value).startswith(f"RELAY_PORTAL_STRINGS ({file}): {why}")
    assert "\n" not in str(refused.value)
