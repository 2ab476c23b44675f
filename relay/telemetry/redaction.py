"""Removes secrets from logs and Sentry events, and control characters from terminal output."""

import re

# C0, DEL and C1 move the cursor or start new lines; bidi marks and zero-width characters disguise the text; the
# line and paragraph separators end lines in some viewers; lone surrogates cannot be written as UTF-8 at all.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")
_USERINFO = re.compile(r"(?<=://)[^/?#\s]*@")
_QUERY = re.compile(r"[?#].*", re.DOTALL)


def escape_control(text: str) -> str:
    """`text` with every character that could forge a line, control a terminal or hide itself as `\\xNN` or `\\uNNNN`.

    Backslashes stay: the result is for people, not for decoding.
    """
    return _UNSAFE.sub(_escaped, text)


def escape_in_json(text: str) -> str:
    """The same for JSON, without changing its meaning: its own newlines stay, and its strings contain none."""
    return _UNSAFE.sub(lambda match: match[0] if match[0] == "\n" else f"\\u{ord(match[0]):04x}", text)


def _escaped(match: re.Match[str]) -> str:
    code = ord(match.group())
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def public_url(url: str) -> str:
    """`url` without user, password, query and fragment, which may contain secrets."""
    return _QUERY.sub("", _USERINFO.sub("", url))
