"""Answer URLs: their signature, and the error where there are none, or where they are unreachable."""

from pathlib import Path

import pytest

from relay.config.own_address import AnsweringReceiver, AnswerUrls, answer_secrets, findings
from relay.config.setting_layers import load_settings
from relay.config.settings import Settings
from relay.domain.answer_token import read
from relay.domain.errors import UserError
from relay.domain.identity import DeliveryId

DELIVERY = DeliveryId("ci", "github", "m-1")
SECRET, OTHER = "8a1d6f0c2b7e4935" * 2, "51c09be7d2a84f63" * 2
LOCAL = AnsweringReceiver("http://127.0.0.1:9000/hooks", asked=True)
ASKED = AnsweringReceiver("https://ci.example/hooks", asked=True)
MUTE = AnsweringReceiver("https://cd.example/hooks", asked=False)


def settings(**environ: str) -> Settings:
    return load_settings({}, {f"RELAY_{name.upper()}": value for name, value in environ.items()})


def test_the_key_of_the_api_signs_nothing() -> None:
    assert answer_secrets(settings(api_key="the key of the api")) == ()
    keys = [answer_secrets(settings(api_key=key, answer_secret=SECRET)) for key in ("one key", "another key")]
    assert keys[0] == keys[1]


def test_the_first_secret_signs_and_each_proves(tmp_path: Path) -> None:
    old, both, new = (answer_secrets(settings(answer_secret=text)) for text in (OTHER, f"{SECRET}, {OTHER}", SECRET))
    assert both == (*new, *old)
    url = AnswerUrls(both, "https://relay.example").of(DELIVERY, 0, 10)
    assert url is not None
    base, _, token = url.rpartition("/")
    assert base == "https://relay.example/v1/answers"
    assert read(new, token, 0) == (DELIVERY, 0)
    file = tmp_path / "secrets"
    file.write_text(f"{SECRET}\n{OTHER}\n")
    assert answer_secrets(load_settings({}, {"RELAY_ANSWER_SECRET_FILE": str(file)})) == both
    config = tmp_path / "relay.yaml"
    config.write_text(f"answer_secret: ['{SECRET}', '{OTHER}']\n")
    assert answer_secrets(load_settings({"config_file": config}, {})) == both


@pytest.mark.parametrize("text", [",", " , ,", "\n"])
def test_a_list_without_a_secret_is_a_mistake(text: str) -> None:
    with pytest.raises(UserError, match="RELAY_ANSWER_SECRET: is empty"):
        settings(answer_secret=text)


def test_no_url_without_a_secret_or_a_place() -> None:
    assert AnswerUrls((), "https://relay.example").of(DELIVERY, 0, 10) is None
    assert AnswerUrls((b"k",), None).of(DELIVERY, 0, 10) is None


@pytest.mark.parametrize(
    ("base", "given", "receivers", "said"),
    [
        ("https://relay.example", SECRET, {"ci": ASKED, "cd": MUTE}, []),
        ("http://127.0.0.1:8080", SECRET, {"local": LOCAL}, []),
        ("https://relay.example", "", {"ci": ASKED}, ["RELAY_ANSWER_SECRET is not set"]),
        ("https://relay.example", "", {"ci": ASKED, "cd": MUTE}, ["after a 202: cd"]),
        (None, SECRET, {"ci": ASKED, "cd": MUTE}, ["RELAY_PUBLIC_URL is not set"]),
        (None, "", {"cd": MUTE}, ["RELAY_ANSWER_SECRET is not set"]),
        ("http://127.0.0.1:8080", SECRET, {"local": LOCAL, "ci": ASKED}, ["set RELAY_PUBLIC_URL to a URL"]),
        (
            "http://localhost",
            SECRET,
            {"x": AnsweringReceiver("${URL}", True), "y": AnsweringReceiver("https://${H}/a", True)},
            [],
        ),
        ("http://localhost", SECRET, {"x": AnsweringReceiver("https://ci.example/${PATH}", True)}, ["can reach: x"]),
        ("https://relay.example", "tiny", {}, ["put a new one before it"]),
        ("https://relay.example", f"{SECRET},tiny", {}, ["is shorter than 16 characters, so it can be guessed"]),
    ],
)
def test_what_is_said(base: str | None, given: str, receivers: dict[str, AnsweringReceiver], said: list[str]) -> None:
    known = settings(answer_secret=given)
    found = [str(finding) for finding in findings(known, AnswerUrls(answer_secrets(known), base), receivers)]
    assert len(found) == len(said)
    assert all(part in text for part, text in zip(said, found, strict=True))
    assert not given or all(given not in text for text in found)


def test_many_receivers_are_counted() -> None:
    receivers = {f"r{number}": MUTE for number in range(8)}
    (finding,) = findings(settings(), AnswerUrls((), None), receivers, sends=False)
    assert str(finding).endswith("202: r0, r1, r2, r3, r4 and 3 more")
    assert len(finding.receivers) == 8
