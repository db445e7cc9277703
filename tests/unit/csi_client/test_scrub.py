"""No spelling of a secret in a driver's error reaches an event, a log or an exception (SEC-7)."""

from __future__ import annotations

import base64
import html
import json
import random
import shlex
import string
import sys
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from csi_client import messages as csi
from csi_client import scrub as scrubbing
from csi_client.redact import STRIPPED
from csi_client.scrub import (
    MAX_CODED,
    MAX_PIECES,
    MAX_SECRETS,
    MAX_TEXT,
    TOO_MUCH,
    UNSURE,
    _pieces,
    scrub,
)

PASSWORD = "hunter2-S3cr3t"


def request(**secrets: str) -> csi.CreateVolumeRequest:
    return csi.CreateVolumeRequest(secrets=secrets)


@pytest.mark.parametrize(
    ("secret", "text", "leak"),
    [
        pytest.param(PASSWORD, f"failed with {PASSWORD}", PASSWORD, id="as it is"),
        pytest.param(
            PASSWORD,
            "Authorization: Basic " + base64.b64encode(f"admin:{PASSWORD}".encode()).decode(),
            base64.b64encode(f"admin:{PASSWORD}".encode()).decode(),
            id="Basic header",
        ),
        pytest.param(
            PASSWORD,
            "token=" + base64.urlsafe_b64encode(b"\xff\xfe" + PASSWORD.encode()).decode(),
            base64.urlsafe_b64encode(b"\xff\xfe" + PASSWORD.encode()).decode()[6:],
            id="inside url-safe base64",
        ),
        pytest.param(PASSWORD + "\n", f"failed with {PASSWORD}", PASSWORD, id="newline of a file"),
        pytest.param(
            json.dumps({"user": "admin", "auth": {"password": [PASSWORD]}}),
            f"failed with {PASSWORD}",
            PASSWORD,
            id="field of a JSON document",
        ),
        pytest.param(
            json.dumps({"inner": json.dumps({"password": PASSWORD})}),
            f"failed with {PASSWORD}",
            PASSWORD,
            id="JSON in JSON",
        ),
        pytest.param(
            f"[client.admin]\n  key = {PASSWORD}\n",
            f"failed with {PASSWORD}",
            PASSWORD,
            id="a line's setting",
        ),
        pytest.param('a"b-S3cr3t', 'failed with "a\\"b-S3cr3t"', 'a\\"b-S3cr3t', id="quoted by Go"),
        pytest.param(
            "-----BEGIN KEY-----\nMIIEabcdefgh\n-----END KEY-----\n",
            'bad key "-----BEGIN KEY-----\\nMIIEabcdefgh\\n-----END KEY-----\\n"',
            "MIIEabcdefgh",
            id="PEM with escaped newlines",
        ),
        pytest.param(PASSWORD, "key " + PASSWORD.encode().hex(), PASSWORD.encode().hex(), id="hex"),
        pytest.param(
            PASSWORD,
            "key 0x" + PASSWORD.encode().hex().upper(),
            PASSWORD.encode().hex().upper(),
            id="upper hex",
        ),
        pytest.param(PASSWORD, f"failed with {PASSWORD[:-2]}...", PASSWORD[:-2], id="cut off"),
        pytest.param("123", "pin 123 wrong", "123", id="three characters"),
        pytest.param(
            "a b/S3cr3t",
            f"http://u:{quote_plus('a b/S3cr3t')}@h",
            quote_plus("a b/S3cr3t"),
            id="plus in a URL",
        ),
        pytest.param(
            "a b/S3cr3t", f"http://u:{quote('a b/S3cr3t', safe='')}@h", "S3cr3t", id="URL"
        ),
        pytest.param("pässwörd", 'with "p\\u00e4ssw\\u00f6rd"', "u00e4ssw", id="escaped letters"),
    ],
)
def test_no_spelling_survives(secret: str, text: str, leak: str) -> None:
    assert leak in text, "the case itself"
    assert leak not in scrub(text, request(password=secret))


@given(
    secret=st.text(min_size=8).filter(lambda text: text.strip() == text and text.isprintable()),
    before=st.text(max_size=20),
    after=st.text(max_size=20),
    spell=st.sampled_from(
        [
            str,
            lambda x: quote(x, safe=""),
            quote_plus,
            lambda x: base64.b64encode(x.encode()).decode(),
            lambda x: base64.b64encode(f"u:{x}".encode()).decode(),
            lambda x: x.encode().hex(),
            lambda x: json.dumps(x)[1:-1],
        ]
    ),
)
def test_no_random_secret_survives(secret: str, before: str, after: str, spell) -> None:
    """This holds for any secret and any surrounding text."""
    echoed = spell(secret)
    assume(echoed not in before and echoed not in after)
    assert echoed not in scrub(f"{before} {echoed} {after}", request(password=secret))


@given(text=st.text())
def test_texts_without_secrets_stay(text: str) -> None:
    assert scrub(text, request()) == text
    assume("S3cr3t" not in text)
    assert scrub("volume pool-7 is full, 12 of 12 used", request(password=PASSWORD)) == (
        "volume pool-7 is full, 12 of 12 used"
    )


def test_scrub_takes_longer_secrets_first() -> None:
    """Otherwise replacing the shorter one would leave the rest of the longer one visible."""
    request = csi.DeleteVolumeRequest(secrets={"a": "hunter2", "b": "hunter2-and-more"})
    text = "login hunter2-and-more / hunter2 failed"
    assert scrub(text, request) == f"login {STRIPPED} / {STRIPPED} failed"


def test_scrub_leaves_trivial_values() -> None:
    assert scrub("1 of 11", csi.DeleteVolumeRequest(secrets={"a": "1"})) == "1 of 11"


@pytest.mark.parametrize(
    "echoed",
    [
        pytest.param("aHVudGVyP34y", id="base64"),
        pytest.param("aHVudGVyP34yIQ==", id="base64 padded"),
        pytest.param("aHVudGVyP34yIQ", id="base64 without padding"),
        pytest.param("aHVudGVyP34yI", id="base64 cut off in the middle of a group"),
        pytest.param("hunter%3F~2", id="in an address"),
    ],
)
def test_scrub_knows_encoded_secrets(echoed: str) -> None:
    """They may be encoded as in an authorization header or in a URL."""
    request = csi.DeleteVolumeRequest(secrets={"a": "hunter?~2", "b": "hunter?~2!"})
    assert scrub(f"login {echoed} failed", request) == f"login {STRIPPED} failed"


@pytest.mark.parametrize(
    ("secret", "text", "shown"),
    [
        pytest.param("abcd", "xabcdy", f"x{STRIPPED}y", id="four letters, inside a word"),
        pytest.param("abcdef", "xabcdefy", f"x{STRIPPED}y", id="six letters"),
        pytest.param("ab", "an ab, abc", f"an {STRIPPED}, abc", id="two letters, as a word"),
        pytest.param("abc", "an abc, abcd", f"an {STRIPPED}, abcd", id="three letters"),
        pytest.param("a", "a b", "a b", id="one letter is no secret"),
        pytest.param(PASSWORD, f"{PASSWORD} failed", f"{STRIPPED} failed", id="at the start"),
        pytest.param("abcdefghijklmno", "x abcdefg y", "x abcdefg y", id="less than half of it"),
        pytest.param("abcdefghijklmno", "x abcdefgh y", f"x {STRIPPED} y", id="half of it"),
        pytest.param("abcdefghijklmn", "x abcdef y", "x abcdef y", id="even, less than half"),
        pytest.param("abcdefghijklmn", "x abcdefg y", f"x {STRIPPED} y", id="even, half of it"),
        pytest.param("mode=slow-disk", "slow-disk", UNSURE, id="the end of one, more than half"),
        pytest.param("mode=a-slow-disk", "slow a", "slow a", id="one line is no setting"),
        pytest.param("mode=slow-disk\nx=y", "slow-disk", STRIPPED, id="a setting of two lines"),
        pytest.param('pä"ss-wörd', 'a pä\\"ss-wörd b', f"a {STRIPPED} b", id="escaped, not ASCII"),
        pytest.param(
            '{"port": 5432, "on": true, "no": null, "p": "hunter2-x"}',
            "port 5432: hunter2-x true null",
            f"port 5432: {STRIPPED} true null",
            id="numbers of a document are no secrets",
        ),
        pytest.param("[broken, hunter2", "hunter2 [", "hunter2 [", id="no document"),
    ],
)
def test_how_much_of_a_text_goes(secret: str, text: str, shown: str) -> None:
    """All of the secret is removed and nothing else, so that the text stays readable."""
    assert scrub(text, request(password=secret)) == shown


def test_documents_in_documents_are_looked_into_five_deep() -> None:
    """A secret made of quotes must not keep a worker busy."""
    text = "the-password"
    for depth in range(1, 8):
        text = json.dumps([text])
        assert ("the-password" in set(_pieces(text, 0))) is (depth <= 5)


# The remaining text is decoded (SEC2-6).

HARD = "S3cr\"t/Pa$$w0rd's-<end>"
SPELLINGS = {
    "percent, every byte": lambda x: "".join(f"%{one:02x}" for one in x.encode()),
    "percent twice": lambda x: quote(quote(x, safe=""), safe=""),
    "MIME base64 over lines": lambda x: "\n".join(
        base64.b64encode(f"user:{x}".encode()).decode()[at : at + 5] for at in range(0, 60, 5)
    ),
    "base64 with escaped line ends": lambda x: "\\n".join(
        base64.b64encode(x.encode()).decode()[at : at + 8] for at in range(0, 60, 8)
    ),
    "%v of Go's []byte": lambda x: f"[{' '.join(str(one) for one in x.encode())}]",
    "% x of Go's []byte": lambda x: x.encode().hex(" "),
    "%#v of Go's []byte": lambda x: ", ".join(f"0x{one:x}" for one in x.encode()),
    "hex with colons, upper": lambda x: x.encode().hex(":").upper(),
    "HTML entities": html.escape,
    "HTML, every letter": lambda x: "".join(f"&#x{ord(one):x};" for one in x),
    "\\x of UTF-8": lambda x: "".join(f"\\x{one:02x}" for one in x.encode()),
    "octal": lambda x: "".join(f"\\{one:03o}" for one in x.encode()),
    "\\u of each letter": lambda x: "".join(f"\\u{ord(one):04x}" for one in x),
    "upper case": str.upper,
    "lower case": str.lower,
    "quoted for a shell": shlex.quote,
    "with blanks between": " ".join,
    "backwards": lambda x: x[::-1],
    "head cut off": lambda x: "..." + x[len(x) // 2 - 1 :],
    "the middle": lambda x: "..." + x[2:-3] + "...",
    "repr of bytes": lambda x: repr(x.encode()),
    "JSON in JSON": lambda x: json.dumps(json.dumps(x)),
}


@pytest.mark.parametrize("secret", [HARD, "correct-horse-battery", "ключ-от-хранилища"])
@pytest.mark.parametrize("spell", SPELLINGS.values(), ids=SPELLINGS)
def test_no_decoding_finds_a_secret(spell, secret: str) -> None:
    """In a sentence or alone, the secret is replaced, or the text is hidden."""
    echoed = spell(secret)
    text = scrub(f"login as {echoed} refused", request(password=secret))
    assert text == UNSURE or (STRIPPED in text and echoed not in text)


@pytest.mark.parametrize(
    "text",
    [
        "authentication at array 10.0.0.5 failed for user admin: HTTP 401, request id 8f3a0cbbd7e1",
        "volume pvc-5f0c2a52-8d83-4c3d-9d39-4c3f2f9a7a11 not found on backend ontap-nas-01",
        'GET "https://10.0.0.5:8443/api/v2/volumes?limit=100": x509: certificate signed by unknown',
    ],
)
def test_texts_without_a_secret_are_shown_as_they_are(text: str) -> None:
    """The request holds a password and the key file of a cloud."""
    words = random.Random(1)
    lines = ("".join(words.choices(string.ascii_letters, k=64)) for _ in range(26))
    key = {"type": "service", "private_key": "\n".join(lines), "id": "31415926"}
    assert scrub(text, request(password=PASSWORD, key=json.dumps(key))) == text


# Limits: drivers choose the texts, and users choose the secrets.


def steps(text: str, request) -> int:
    """Return the number of function calls of one `scrub`, including Python's built-ins."""
    count = 0

    def profile(_frame, event, _argument):
        nonlocal count
        count += event in {"call", "c_call"}

    sys.setprofile(profile)
    try:
        scrub(text, request)
    finally:
        sys.setprofile(None)
    return count


def words(length: int, size: int) -> list[str]:
    chosen = random.Random(size)
    count = size // (length + 1)
    return ["".join(chosen.choices(string.ascii_letters, k=length)) for _ in range(count)]


LINES = "\n".join(words(5, 900 * 1024))
LONG_TEXT = " ".join(words(12, 16 * 1024))


def test_too_many_secrets_hide_the_text_unread(monkeypatch) -> None:
    """If they are too large they are not split, and if they are too many no search begins."""
    many = "\n".join(words(5, MAX_SECRETS - 100))
    monkeypatch.setattr(scrubbing, "_scrubbed", None)
    assert scrub(LONG_TEXT, request(a=many)) == TOO_MUCH
    monkeypatch.setattr(scrubbing, "_pieces", None)
    assert scrub(LONG_TEXT, request(a=LINES)) == TOO_MUCH
    assert scrub("", request(a=LINES)) == ""


def test_documents_in_documents_that_repeat_a_secret_hide_the_text(monkeypatch) -> None:
    """Each level is a piece of its own, so a few pieces have many times the secret's size."""
    secret = "x" * (MAX_SECRETS - 1000)
    for _ in range(4):
        secret = json.dumps([secret])
    monkeypatch.setattr(scrubbing, "_scrubbed", None)
    assert scrub(LONG_TEXT, request(a=secret)) == TOO_MUCH


def test_a_text_with_too_many_encoded_secrets_is_not_shown() -> None:
    secrets = words(12, 13 * (MAX_CODED + 1))
    encoded = [base64.b64encode(one.encode()).decode() for one in secrets]
    asked = request(a="\n".join(secrets))
    assert scrub(" ".join(encoded[:MAX_CODED]), asked) == " ".join([STRIPPED] * MAX_CODED)
    assert scrub(" ".join(encoded), asked) == UNSURE


def test_a_long_text_is_cut_before_anything_is_looked_for(monkeypatch) -> None:
    seen = []
    monkeypatch.setattr(scrubbing, "_scrubbed", lambda text, pieces: seen.append(text) or text)
    assert scrub(LONG_TEXT, request(a=PASSWORD)) == f"{LONG_TEXT[:MAX_TEXT]} ... (cut)"
    assert seen == [LONG_TEXT[:MAX_TEXT]]


@pytest.mark.parametrize("length", [5, 12, 40, 64])
@pytest.mark.parametrize("kind", ["other words", "the secret's words", "the same letter"])
def test_an_error_costs_a_bounded_number_of_steps(kind: str, length: int) -> None:
    """The largest number of secrets is searched, in texts of 16 KiB and of 900 KiB."""
    secret = words(length, MAX_SECRETS // 5)[: MAX_PIECES - 10]
    found = {
        "other words": LONG_TEXT,
        "the secret's words": " ".join([*secret, *(one.upper() for one in secret)]) * 8,
        "the same letter": "a" * 16_384,
    }[kind]
    if kind == "the same letter":
        secret = ["a" * length + one for one in secret]
    asked = request(a="\n".join(secret))
    assert steps(found, asked) <= 60_000
    assert steps(found * 56, asked) <= 60_000


def test_a_secret_that_is_a_deep_document_harms_nobody() -> None:
    """The secret consists of nested lists, as deep as possible."""
    assert scrub("refused", request(a="[" * 16_000)) == "refused"
