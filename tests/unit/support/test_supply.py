"""`make audit` fails for known vulnerabilities, and reports if it could not check."""

from __future__ import annotations

import json

import pytest

from tests.support import supply

BAD = {"id": "CVE-1", "fix_versions": ["2.0"]}


def report(*vulnerabilities):
    package = {"name": "celery", "version": "1.0", "vulns": list(vulnerabilities)}
    return json.dumps({"dependencies": [package], "fixes": []})


@pytest.mark.parametrize(
    ("text", "found"),
    [
        pytest.param(report(), [], id="clean"),
        pytest.param(report(BAD), ["celery 1.0: CVE-1, fixed in 2.0"], id="bad"),
        pytest.param("", None, id="no answer"),
        pytest.param("ERROR: ConnectionError", None, id="no connection"),
    ],
)
def test_verdict(text, found):
    assert supply.verdict(text) == found
