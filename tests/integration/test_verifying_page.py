"""Tests of the samples in docs/verifying.md: each accepts what the relay signs, and nothing else."""

import re
import shutil
import subprocess
import sys
import time
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import pytest

from relay.domain.receiver import SigningPolicy
from relay.domain.signing import public_key, sign

PAGE = Path(__file__).parents[2] / "docs" / "verifying.md"
BODY = '{"text": "é",  "n": 1.50}'.encode()
SECRET, OTHER = (f"whsec_{b64encode(bytes([n]) * 32).decode()}" for n in (1, 2))
PRIVATE, OTHER_PRIVATE = (f"whsk_{b64encode(bytes([n]) * 32).decode()}" for n in (3, 4))


GO_BUILD = ("go", "build", "-gcflags=all=-N -l", "-o", "v")
"""Without optimizing: where its cache is cold it compiles its library of cryptography, too."""


class Language(NamedTuple):
    """`prepare`: makes the command of the file that has the sample. `v1a`: whether it checks these, too."""

    fence: str
    tool: str
    file: str
    prepare: Callable[[Path], list[str]]
    v1a: bool = True


def compiled(*command: str, then: Callable[[Path], list[str]]) -> Callable[[Path], list[str]]:
    def prepare(file: Path) -> list[str]:
        subprocess.run([*command, file.name], cwd=file.parent, check=True, capture_output=True)
        return then(file)

    return prepare


LANGUAGES = (
    Language("python", "python3", "verify.py", lambda file: [sys.executable, "-I", str(file)], v1a=False),
    Language("javascript", "node", "verify.js", lambda file: ["node", str(file)]),
    Language("go", "go", "verify.go", compiled(*GO_BUILD, then=lambda file: [str(file.parent / "v")])),
    Language(
        "java",
        "javac",
        "Verify.java",
        compiled("javac", then=lambda file: ["java", "-XX:TieredStopAtLevel=1", "-cp", str(file.parent), "Verify"]),
    ),
    Language("bash", "openssl", "verify.sh", lambda file: ["bash", str(file)], v1a=False),
    Language("php", "php", "verify.php", lambda file: ["php", str(file)]),
)


@dataclass(frozen=True)
class Case:
    """A request as it reaches a receiver that holds `secret`."""

    secret: str
    signatures: str
    stamp: int
    body: bytes = BODY
    webhook_id: str = "msg_abc"

    def is_taken_by(self, command: list[str]) -> bool:
        environ = {
            "PATH": "/usr/bin:/bin",
            "WEBHOOK_SECRET": self.secret,
            "WEBHOOK_ID": self.webhook_id,
            "WEBHOOK_TIMESTAMP": str(self.stamp),
            "WEBHOOK_SIGNATURE": self.signatures,
        }
        whole = [shutil.which(command[0]) or command[0], *command[1:]]
        done = subprocess.run(whole, input=self.body, env=environ, capture_output=True, check=False)
        assert done.returncode in (0, 1), done.stderr.decode()
        assert not done.stderr, done.stderr.decode()
        return done.returncode == 0


def genuine(secret: str, policy: SigningPolicy, stamp: int) -> Case:
    headers = dict(sign(policy, webhook_id="msg_abc", timestamp=stamp, body=BODY))
    return Case(secret, headers["webhook-signature"], stamp)


def cases(*, v1a: bool) -> dict[str, tuple[Case, bool]]:
    """Each with whether it is to be taken."""
    now = int(time.time())
    first = genuine(SECRET, SigningPolicy(secrets=(SECRET,)), now)
    found = {
        "genuine": (first, True),
        "while a secret is rotated": (genuine(SECRET, SigningPolicy(secrets=(OTHER, SECRET)), now), True),
        "a secret in plain text": (genuine("plain", SigningPolicy(secrets=("plain",)), now), True),
        "another body": (replace(first, body=BODY.replace(b"1.50", b"1.5")), False),
        "another id": (replace(first, webhook_id="msg_abd"), False),
        "an old one": (genuine(SECRET, SigningPolicy(secrets=(SECRET,)), now - 400), False),
        "one of the future": (genuine(SECRET, SigningPolicy(secrets=(SECRET,)), now + 400), False),
        "another time": (replace(first, stamp=now - 1), False),
        "another secret": (replace(first, secret=OTHER), False),
        "no signature": (replace(first, signatures=""), False),
        "rubbish": (replace(first, signatures="v1 v1, v1,%% v2,abcd , v1,YWJj"), False),
    }
    if v1a:
        key = public_key(PRIVATE)
        both = genuine(key, SigningPolicy(secrets=(SECRET,), private_keys=(OTHER_PRIVATE, PRIVATE)), now)
        found |= {
            "v1a": (both, True),
            "v1a, another body": (replace(both, body=b"{}"), False),
            "v1a, another key": (genuine(key, SigningPolicy(private_keys=(OTHER_PRIVATE,)), now), False),
            "v1a, only v1 there": (replace(first, secret=key), False),
            "v1a, rubbish": (replace(both, signatures="v1a v1a, v1a,%% v1a,YWJj"), False),
        }
    return found


@pytest.mark.parametrize("language", LANGUAGES, ids=lambda language: str(language.fence))
def test_a_sample_takes_what_the_relay_signs_and_nothing_else(language: Language, tmp_path: Path) -> None:
    [source, *_] = re.findall(rf"^```{language.fence}\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    if shutil.which(language.tool) is None:
        pytest.skip(f"there is no {language.tool}")
    file = tmp_path / language.file
    file.write_text(source)
    command = language.prepare(file)
    for name, (case, taken) in cases(v1a=language.v1a).items():
        assert case.is_taken_by(command) == taken, name
