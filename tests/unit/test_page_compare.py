"""Comparisons on pages: what differs is marked, within bounds, and nothing invisible stays so."""

from relay.pages.compare import MOST_LINES, difference


def test_lines_that_differ_have_a_sign_and_a_tone() -> None:
    part = difference("Payload", "a\nb\nc", "a\nx\nc")
    assert part.lines is not None
    assert [(line.text, line.tone) for line in part.lines] == [
        ("@@ -1,3 +1,3 @@", "soft"),
        (" a", ""),
        ("-b", "bad"),
        ("+x", "good"),
        (" c", ""),
    ]


def test_the_same_has_no_difference_however_long_it_is() -> None:
    text = "a\n" * (MOST_LINES + 1)
    assert difference("Payload", text, text).lines == []
    assert difference("Payload", "", "").lines == []


def test_what_is_too_long_is_not_compared() -> None:
    assert difference("Payload", "a", "a\n" * (MOST_LINES + 1)).lines is None
