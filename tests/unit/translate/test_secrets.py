"""Secret references from templates, and the content of a secret."""

from __future__ import annotations

import base64
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.translate_objects import (
    DELETION_NAME,
    DELETION_NAMESPACE,
    PREFIX,
    Attempt,
    make_claim,
    make_class,
    make_secret,
)
from workers.errors import AttemptError, State
from workers.translate.secrets import (
    SecretKind,
    SecretRef,
    VolumeSecrets,
    decode,
    expand,
    resolve,
    resolve_volume_secrets,
)

WRAPPED = "failed to get name and namespace template from params: "
EMPTY = "secrets specified in parameters but value of either namespace or name is empty"
TOKENS = "error resolving value"


def refused(parameters, claim=None, **attempt):
    """Return the error text; the state is always NO_CHANGE and the driver is not called."""
    run = Attempt(**attempt)
    with pytest.raises(AttemptError) as caught:
        run.provision(claim or make_claim(), make_class(parameters))
    assert caught.value.state is State.NO_CHANGE
    assert run.request is None
    return caught.value.message


def pair(stem, name, namespace):
    return {f"{PREFIX}{stem}-name": name, f"{PREFIX}{stem}-namespace": namespace}


def test_t030_name_without_namespace():
    assert refused({"csiProvisionerSecretName": ""}) == (
        f"{WRAPPED}either name and namespace for Provisioner secrets specified, "
        "Both must be specified"
    )


def test_t031_provisioner_secret_is_absent():
    parameters = pair("provisioner-secret", "secretx", "default")
    assert refused(parameters) == (
        'error getting secret secretx in namespace default: secrets "secretx" not found'
    )


def test_t032_only_the_provisioner_secret_must_exist():
    """P-170: other references are only stored; whoever uses them finds out whether they exist."""
    parameters = (
        pair("controller-publish-secret", "ctrlpublishsecret", "default")
        | {"csiNodeStageSecretName": "nodestagesecret", "csiNodeStageSecretNamespace": "default"}
        | {"csiNodePublishSecretName": "nodepublishsecret"}
        | {f"{PREFIX}node-publish-secret-namespace": "default"}
        | pair("controller-expand-secret", "ctrlexpandsecret", "default")
        | pair("node-expand-secret", "nodeexpandsecret", "default")
        | pair("controller-modify-secret", "ctrlmodifysecret", "default")
        | pair("provisioner-secret", "provisionersecret", "default")
    )
    attempt = Attempt(secrets={("default", "provisionersecret"): make_secret(user="u")})
    volume = attempt.provision(make_claim(), make_class(parameters))
    source = volume["spec"]["csi"]
    assert {key: ref for key, ref in source.items() if key.endswith("SecretRef")} == {
        "controllerPublishSecretRef": {"name": "ctrlpublishsecret", "namespace": "default"},
        "nodeStageSecretRef": {"name": "nodestagesecret", "namespace": "default"},
        "nodePublishSecretRef": {"name": "nodepublishsecret", "namespace": "default"},
        "controllerExpandSecretRef": {"name": "ctrlexpandsecret", "namespace": "default"},
        "nodeExpandSecretRef": {"name": "nodeexpandsecret", "namespace": "default"},
    }
    assert volume["metadata"]["annotations"] == {
        DELETION_NAME: "provisionersecret",
        DELETION_NAMESPACE: "default",
        "volume.kubernetes.io/controller-modify-secret-name": "ctrlmodifysecret",
        "volume.kubernetes.io/controller-modify-secret-namespace": "default",
    }
    assert dict(attempt.sent.secrets) == {"user": "u"}


def test_t033_default_secret_serves_every_kind():
    attempt = Attempt(secrets={("default-ns", "default-secret"): make_secret(a="b")})
    volume = attempt.provision(
        make_claim(), make_class(pair("secret", "default-secret", "default-ns"))
    )
    refs = [ref for key, ref in volume["spec"]["csi"].items() if key.endswith("SecretRef")]
    assert refs == [{"name": "default-secret", "namespace": "default-ns"}] * 5
    assert list(volume["metadata"]["annotations"].values()) == ["default-secret", "default-ns"] * 2
    assert dict(attempt.sent.secrets) == {"a": "b"}


def test_t034_default_name_is_a_template():
    parameters = pair("secret", "default-${pvc.namespace}-${pvc.name}", "default-ns")
    assert resolve(SecretKind.NODE_STAGE, parameters, "v", make_claim()) == SecretRef(
        "default-fake-ns-fake-pvc", "default-ns"
    )


def test_t035_deprecated_and_prefixed_keys_together():
    parameters = pair("node-publish-secret", "a", "b") | {
        "csiNodePublishSecretName": "a",
        "csiNodePublishSecretNamespace": "b",
    }
    assert refused(parameters) == (
        f'{WRAPPED}NodePublish secrets specified in parameters with both "csi" and "{PREFIX}" keys'
    )


@pytest.mark.parametrize(
    ("name", "namespace"),
    [
        pytest.param("", "", id="T-036 both empty"),
        pytest.param("a", "", id="P-133 namespace empty"),
        pytest.param("", "a", id="P-133 name empty"),
    ],
)
def test_empty_values(name, namespace):
    parameters = pair("provisioner-secret", name, namespace)
    assert refused(parameters) == f"{WRAPPED}Provisioner {EMPTY}"


def test_errors_of_the_default_keys_say_default():
    """P-133: the message names the default templates."""
    assert refused(pair("secret", "", "")) == (
        f"failed to get default name and namespace template from params: Default {EMPTY}"
    )


def test_t037_deprecated_name_with_prefixed_namespace():
    parameters = {
        "csiProvisionerSecretName": "a",
        f"{PREFIX}provisioner-secret-namespace": "b",
    }
    assert resolve(SecretKind.PROVISIONER, parameters, "v", make_claim()) == SecretRef("a", "b")


ALL_VARIABLES = "static-${pv.name}-${pvc.namespace}-${pvc.name}-${pvc.annotations['akey']}"


def test_t038_every_variable_in_a_name():
    parameters = pair("provisioner-secret", ALL_VARIABLES, "static-${pv.name}-${pvc.namespace}")
    claim = make_claim(annotations={"akey": "avalue"})
    assert resolve(SecretKind.PROVISIONER, parameters, "v-1", claim) == SecretRef(
        "static-v-1-fake-ns-fake-pvc-avalue", "static-v-1-fake-ns"
    )


def test_t039_annotation_is_absent():
    message = refused(pair("provisioner-secret", ALL_VARIABLES, "ns"))
    assert message == (f'{TOKENS} "{ALL_VARIABLES}": invalid tokens: ["pvc.annotations[\'akey\']"]')


@pytest.mark.parametrize(
    ("namespace", "token"),
    [
        pytest.param("mynamespace${bar}", "bar", id="T-040 unknown variable"),
        pytest.param("${pvc.name}", "pvc.name", id="T-040 claim name in a namespace"),
        pytest.param("${pvc.annotations['a']}", "pvc.annotations['a']", id="T-040 annotation"),
    ],
)
def test_namespace_knows_fewer_variables(namespace, token):
    """P-134: users choose claim names and annotations, but must not choose a namespace."""
    claim = make_claim(annotations={"a": "kube-system"})
    message = refused(pair("provisioner-secret", "n", namespace), claim)
    assert message == f'{TOKENS} "{namespace}": invalid tokens: ["{token}"]'


@pytest.mark.parametrize(
    ("name", "namespace", "message"),
    [
        pytest.param(
            "bad name", "ns", '"bad name" is not a valid secret name', id="T-041 name as written"
        ),
        pytest.param(
            "n", "bad ns", '"bad ns" is not a valid namespace name', id="T-041 namespace as written"
        ),
        pytest.param(
            "B-${pv.name}",
            "ns",
            '"B-${pv.name}" resolved to "B-test-testi" which is not a valid secret name',
            id="P-136 name resolved",
        ),
        pytest.param(
            "n",
            "a.${pv.name}",
            '"a.${pv.name}" resolved to "a.test-testi" which is not a valid namespace name',
            id="P-136 namespace resolved",
        ),
        pytest.param(
            "BAD", "BAD", '"BAD" is not a valid namespace name', id="P-136 namespace first"
        ),
        pytest.param(
            "n", "a" * 64, f'"{"a" * 64}" is not a valid namespace name', id="P-136 64 characters"
        ),
        pytest.param(
            "a" * 254, "ns", f'"{"a" * 254}" is not a valid secret name', id="P-136 254 characters"
        ),
        pytest.param("n\n", "ns", '"n\\n" is not a valid secret name', id="P-136 newline"),
    ],
)
def test_result_must_be_a_name(name, namespace, message):
    assert refused(pair("provisioner-secret", name, namespace)) == message


def test_longest_names_are_accepted():
    parameters = pair("provisioner-secret", "a" * 253, "b" * 63)
    assert resolve(SecretKind.PROVISIONER, parameters, "v", {}) == SecretRef("a" * 253, "b" * 63)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        pytest.param(
            "a$${pv.name}",
            f'{TOKENS} "a$${{pv.name}}": invalid tokens: ["$"]',
            id="T-042 two dollars",
        ),
        pytest.param("cost$", '"cost$" is not a valid secret name', id="T-042 dollar at the end"),
        pytest.param(
            "${b}-${a}-${b}",
            f'{TOKENS} "${{b}}-${{a}}-${{b}}": invalid tokens: ["a" "b"]',
            id="P-135 sorted and unique",
        ),
    ],
)
def test_dollar_grammar_refusals(template, message):
    assert refused(pair("provisioner-secret", template, "ns")) == message


@pytest.mark.parametrize(
    ("template", "result"),
    [
        pytest.param("a${}b", "ab", id="T-042 empty braces"),
        pytest.param("a${b", "ab", id="P-135 unterminated brace"),
        pytest.param("$x-$x.y$_z", "X-X.yZ", id="P-135 plain names"),
        pytest.param("$1a${*}", "ONEaSTAR", id="P-135 one-character names"),
        pytest.param("a$.b$ $", "a$.b$ $", id="P-135 literal dollars"),
        pytest.param("${x}}", "X}", id="P-135 first closing brace"),
        pytest.param("${nl\n}", "NL", id="P-135 anything inside braces"),
        pytest.param("${again}", "${x}", id="P-135 one pass"),
        pytest.param("${x}${x", "Xx", id="P-135 closed, then open"),
    ],
)
def test_dollar_grammar(template, result):
    variables = {
        "x": "X", "_z": "Z", "1": "ONE", "*": "STAR", "nl\n": "NL", "again": "${x}",
    }  # fmt: skip
    assert expand(template, variables) == result


def test_hostile_template_takes_linear_time():
    """A quadratic search for closing braces would block the worker for minutes."""
    assert expand("${" * 200_000, {}) == ""
    with pytest.raises(AttemptError):
        expand("${" * 200_000 + "}", {})


KNOWN = {"pv.name": "v1", "pvc.namespace": "n1", "pvc.name": "c1", "pvc.annotations['k']": "a1"}
PIECES = st.sampled_from(
    ["$", "{", "}", "${", "${}", "pv.name", "pvc.name", *(f"${{{key}}}" for key in KNOWN)]
)


def outcome(call):
    """Return the call's result and its AttemptError, one of them None; raise any other error."""
    try:
        return call(), None
    except AttemptError as error:
        return None, error


@given(st.lists(PIECES | st.text(max_size=4)).map("".join))
def test_expansion_replaces_every_known_variable(template):
    """No token `${...}` of a known variable remains, and only AttemptError is raised."""
    result, error = outcome(lambda: expand(template, KNOWN))
    if error is not None:
        assert error.state is State.NO_CHANGE
        assert "invalid tokens: [" in error.message
    for key in KNOWN:
        assert f"${{{key}}}" not in (result or "")


@given(st.text(max_size=30), st.text(max_size=30), st.dictionaries(st.text(), st.text()))
def test_resolved_references_are_valid_names_or_an_error(name, namespace, annotations):
    parameters = pair("provisioner-secret", name, namespace)
    claim = make_claim(annotations=annotations)
    ref, error = outcome(lambda: resolve(SecretKind.PROVISIONER, parameters, "v", claim))
    if error is not None:
        assert error.state is State.NO_CHANGE
        return
    assert ref is not None
    assert re.fullmatch(r"[-a-z0-9]{1,63}", ref.namespace)
    assert re.fullmatch(r"[-a-z0-9.]{1,253}", ref.name)


def test_no_keys_give_no_references():
    """P-137: no secret is read, and `secrets` is empty."""
    assert resolve_volume_secrets({}, "v", make_claim()) == VolumeSecrets()
    attempt = Attempt()
    volume = attempt.provision(make_claim(), make_class())
    assert dict(attempt.sent.secrets) == {}
    assert volume["metadata"]["annotations"] == {DELETION_NAME: "", DELETION_NAMESPACE: ""}


REF = SecretRef("creds", "storage")


def test_secret_without_data():
    assert decode({}, REF) == {}
    assert decode({"data": {"empty": ""}}, REF) == {"empty": ""}


def test_secret_is_decoded_as_text():
    value = "p\u00e4ss\nword"
    assert decode(make_secret(key=value), REF) == {"key": value}


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (base64.b64encode(b"hush\xff").decode(), "UTF-8"),
        ("hush", "UTF-8"),
        ("hush!", "base64"),
        ("aHVza", "base64"),
        ("h\u00fcsh", "base64"),
    ],
)
def test_unusable_value_is_named_but_never_shown(value, problem):
    """D-033: gRPC would fail with Internal and name neither the secret nor the key."""
    with pytest.raises(AttemptError) as caught:
        decode({"data": {"pass": value}}, REF)
    error = caught.value
    assert error.message == f"secret storage/creds key pass is not valid {problem}"
    assert error.state is State.NO_CHANGE
    assert error.__cause__ is None
    assert error.__context__ is None
