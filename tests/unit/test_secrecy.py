"""Which parts of names, URLs and texts count as secret, and the text that is left when they are masked."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.domain.secrecy import MASK, looks_random, masked_url, redacted, secret_spans

SLACK = "https://hooks.slack.example/services/T02AB3CD4/B0EF5GH6I/x7Yk2mQ9vR4tLp8sWz1nJb3c"
UUID = "3fa85f64-5717-4562-b3fc-2c963f66afa6"


@pytest.mark.parametrize(
    ("url", "secrets"),
    [
        ("https://ci.example/hooks", []),
        ("https://ci.example/hooks/production-2026-webhooks-v2?project=relay", []),
        ("https://ci.example/hooks?token=abc", ["abc"]),
        ("https://ci.example/hooks?a=1&api_key=k1&X-Signature=s1#part", ["k1", "s1"]),
        ("https://ci.example/hooks?sig=&x=1", []),
        (f"https://ci.example/hooks?x={UUID}", [UUID]),
        (f"https://ci.example/{UUID}/hooks", [UUID]),
        (SLACK, [SLACK.rpartition("/")[2]]),
        ("https://user:hunter2@ci.example/", ["user:hunter2"]),
        ("https://a@b@ci.example:8/x", ["a@b"]),
        ("https://ci.example/hooks/{message_id}?token={response.token}&x=${KEY}", []),
        ("https://ci.example/hooks/{message_id}?token=t-{message_id}", ["t-{message_id}"]),
        ("https://ci.example/%74oken?%74oken=abc", ["abc"]),
        ("not a url at all", []),
    ],
)
def test_the_secret_parts_of_a_url(url: str, secrets: list[str]) -> None:
    assert [url[start:end] for start, end in secret_spans(url)] == secrets
    shown = masked_url(url)
    assert shown.count(MASK) == len(secrets)
    assert not any(secret in shown for secret in secrets)


@given(url=st.text() | st.from_regex(r"https?://[^/]*/[^?]*\?.*"))
def test_masking_never_raises_and_masked_urls_stay_as_they_are(url: str) -> None:
    assert masked_url(masked_url(url)) == masked_url(url)


def test_ids_of_the_message_are_no_secrets() -> None:
    own = f"/{UUID}?webhook_id=msg_xmwv6huf6odncpd7ydgrym2z6u&message_id=a%2F{UUID}"
    assert masked_url(f"https://ci.example{own}", (UUID, f"a/{UUID}")) == f"https://ci.example{own}"
    assert masked_url(f"https://ci.example/{UUID}", ("m-1", None)) == f"https://ci.example/{MASK}"


def test_names_do_not_look_random_and_keys_do() -> None:
    assert not any(map(looks_random, ("production-webhooks-2026", "aVeryLongCamelCaseName", "01234567890123456", "v2")))
    assert all(map(looks_random, (UUID, "ghp_16C7e42F292c6912E7710c838347Ae178B4a", "dGhpcyBpcyBhIHRlc3Q5MDg3")))


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("token hunter2/x is wrong", f"token {MASK} is wrong"),
        ("url /?t=hunter2%2Fx is wrong", f"url /?t={MASK} is wrong"),
        ("nothing of it", "nothing of it"),
    ],
)
def test_known_secrets_are_masked_in_every_spelling(said: str, shown: str) -> None:
    assert redacted(said, ["hunter2/x", "of"]) == shown  # "of" is too short to be distinguished from other text


@pytest.mark.parametrize(
    "said",
    [
        r'{"you sent": "k\"3/x & y+z="}',
        r'{"you sent": "k\"3\/x & y+z="}',
        "<td>k&quot;3/x &amp; y+z=</td>",
        "a=k%223%2Fx+%26+y%2Bz%3D&b=1",
    ],
)
def test_known_secrets_are_masked_as_a_server_may_escape_them(said: str) -> None:
    masked = redacted(said, ['k"3/x & y+z='])
    assert MASK in masked
    assert not set("k3xz") & set(masked)


def test_the_longer_of_two_secrets_goes_first() -> None:
    assert redacted("abcdef abcd", ["abcd", "abcdef"]) == f"{MASK} {MASK}"
