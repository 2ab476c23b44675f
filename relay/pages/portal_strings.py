"""The texts of the portal, which a product may replace, as with those of another language: each is its own key.

A key with slots, as `Attempt {0}`, is a sentence with names or numbers: its text has the same slots."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from jinja2 import Environment, FileSystemLoader

from relay.domain.errors import UserError
from relay.domain.state import LOOKS
from relay.pages.page import NAVIGATION
from relay.pages.portal_sentences import spoken
from relay.pages.receiver_form import COMMON, NEW_FIELDS
from relay.pages.template_texts import TEMPLATES, Replacing
from relay.pages.translator import SLOT

_OF_PORTAL: Final = re.compile(
    "(attempt|base|confirm|event_type|exchange|failed|incident|message|portal|problem|receiver|replay|ui).*"
)
"""Names of the templates that the portal has."""
_MOST_LISTED: Final = 3


def texts() -> list[str]:
    """All texts that can be replaced, in English, sorted."""
    looks = [text for look in LOOKS.values() for text in (look.word, look.sentence)]
    fields = [text for field in (*COMMON, *NEW_FIELDS) for text in (field.label, field.hint) if text]
    found = {*(nav.label for nav in NAVIGATION if nav.portal), *looks, *fields, *spoken()}

    def collect(text: str) -> str:
        found.add(text)
        return text

    environment = Environment(loader=FileSystemLoader(TEMPLATES), autoescape=True, extensions=[Replacing])
    environment.extend(replace=collect)
    for name in environment.list_templates(filter_func=lambda name: _OF_PORTAL.fullmatch(name) is not None):
        environment.parse((TEMPLATES / name).read_text())
    return sorted(found)


def read_strings(file: Path | None) -> Mapping[str, str]:
    """The texts of a product, by the English ones that they replace. Raises UserError."""
    if file is None:
        return {}
    try:
        found = json.loads(file.read_bytes())
    except OSError as error:
        raise _refused(file, f"it cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise _refused(file, f"it is not JSON: {error}") from error
    if not isinstance(found, dict) or not all(isinstance(text, str) and text.strip() for text in found.values()):
        raise _refused(file, "it is not a JSON object of texts")
    if uneven := sorted(key for key, text in found.items() if set(SLOT.findall(key)) != set(SLOT.findall(text))):
        raise _refused(file, f"the text of {uneven[0]!r} has other slots, as {{0}}, than that")
    if unknown := sorted(set(found).difference(texts())):
        listed = ", ".join(repr(text[:60]) for text in unknown[:_MOST_LISTED])
        more = f" and {len(unknown) - _MOST_LISTED} more" if len(unknown) > _MOST_LISTED else ""
        raise _refused(file, f"the portal has no text {listed}{more}; `relay portal strings` prints all")
    return found


def _refused(file: Path, why: str) -> UserError:
    return UserError(f"RELAY_PORTAL_STRINGS ({file}): {why}")
