"""The error for a mistyped command: one line, exit code 2, and a suggested correction (CLI)."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from workers.__main__ import main
from workers.config.flags import TOOLS, Command
from workers.config.load import parse

REDIS = "--redis-url=redis://127.0.0.1:1"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["statsu"], "unknown command: statsu; did you mean status? the commands are run, "),
        (["zzz"], "unknown command: zzz; the commands are run, "),
        (["run", "--csi-adress=/x"], "unknown flag: --csi-adress; did you mean --csi-address?"),
        (["run", "--zzz"], "unknown flag: --zzz; `csi-fleet run --help` lists all flags"),
        (
            ["dry-run", REDIS],
            "Run `csi-fleet dry-run pvc NAMESPACE/NAME` or `csi-fleet dry-run -f FILE`\n",
        ),
        (["dry-run", "pv", "x", REDIS], "Run `csi-fleet dry-run pvc NAMESPACE/NAME` or "),
        (
            ["pause", "--driver=d", "--class=c", "--reason=r", REDIS],
            "--driver and --class cannot be combined",
        ),
        (["pause", "--reason=r", REDIS], "Use --driver=NAME or --class=NAME"),
        (
            ["explain", "node", "x", REDIS],
            'explain does not know the kind "node". Run `csi-fleet explain pvc NAMESPACE/NAME` (',
        ),
        (
            ["dry-run", "-f", "/nonexistent", REDIS],
            "csi-fleet dry-run: --filename /nonexistent: No such file or directory\n",
        ),
        (
            ["worker", "--concurrency=-1"],
            'invalid argument "-1" for "--concurrency" flag: use a whole number, 0 or more\n',
        ),
        (
            ["flower", "--flower-port=x"],
            "flag: use a whole number, 0 or more; it must be 1 to 65535\n",
        ),
        (["flower", "--flower-port=65536", REDIS], "--flower-port must be 1 to 65535\n"),
        (
            ["worker", "--lease-ttl=soon"],
            "flag: use a time such as 30s, 5m or 1h30m; it must be at least 1s\n",
        ),
        (
            ["worker", "--worker-threads=-1"],
            'flag: strconv.ParseUint: parsing "-1": invalid syntax\n',
        ),
        (
            ["audit", "--csi-address=/x", "--delete=v", REDIS],
            "the deletion is not confirmed, so nothing was deleted. Add --confirm=v too\n",
        ),
        (
            ["audit", "--csi-address=/x", "--delete=v", "--confirm=w", REDIS],
            "the deletion is not confirmed, so nothing was deleted. Add --confirm=v too\n",
        ),
        (
            ["audit", "--csi-address=/x", "--confirm=w", REDIS],
            "the deletion is not confirmed, so nothing was deleted. Add --delete with --confirm\n",
        ),
        (
            ["retry", "pvc", "a/b", "--kubeconfig=/nonexistent", REDIS],
            "cannot load the Kubernetes client configuration (--kubeconfig /nonexistent): ",
        ),
        (
            ["retry", "pvc", "a/b", "--kubeconfig=/nonexistent", REDIS],
            "(--kubeconfig /nonexistent): the file does not exist. Set --kubeconfig",
        ),
        (
            ["conformance"],
            "--endpoint is needed. Use an address such as unix:///csi/csi.sock or tcp://host:port\n",
        ),
        (
            ["conformance", "--endpoint=foo"],
            "--endpoint foo. Use an address such as unix:///csi/csi.sock or tcp://",
        ),
        (
            ["status", "extra", REDIS],
            "unexpected argument 'extra'. Run `csi-fleet status [flags]`\n",
        ),
        (
            ["pause", "d", "--reason=r", REDIS],
            "unexpected argument 'd'. Run `csi-fleet pause --driver=NAME | --class=NAME [flags]`\n",
        ),
        (["explain", "pvc", "a/b", "c", REDIS], "explain takes one object, not 'a/b c'. Run "),
        (["csi-provisoner"], "unknown command: csi-provisoner; did you mean csi-provisioner?"),
        (["csi-attacher", "--foo"], "unknown flag: --foo; `csi-fleet csi-attacher --help` lists"),
        (["migrate", "check", "--driver=d", "pod"], "'pod' has no namespace. Run `csi-fleet "),
    ],
)
def test_a_mistake_is_one_line_that_says_what_was_meant(words, said, capsys):
    assert main(words) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert error.startswith("csi-fleet ")


def test_a_full_disk_below_the_output_is_one_line():
    """There is neither a traceback nor Python's own message at exit."""
    argv = [sys.executable, "-m", "workers", "completion", "bash"]
    with Path("/dev/full").open("w") as full:
        found = subprocess.run(argv, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert found.returncode == 1
    assert found.stderr == "csi-fleet completion: [Errno 28] No space left on device\n"


def test_help_takes_a_command(capsys):
    assert main(["help", "worker"]) == 0
    assert capsys.readouterr().out.startswith("Usage: csi-fleet worker ")


@pytest.mark.parametrize("program", ["csi-provisioner", "csi-attacher", "snapshot-controller"])
def test_help_of_a_sidecar_s_name_is_that_sidecar_s(program, capsys):
    assert main([program, "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"Usage: csi-fleet {program} [flags]")


@pytest.mark.parametrize("command", sorted(TOOLS - {Command.FAILED}))  # any number of namespaces
def test_no_command_passes_over_a_word_that_it_does_not_read(command, capsys):
    """This holds even after the words that it does read."""
    read = {"explain": ["pvc", "a/b"], "retry": ["pvc", "a/b"], "dry-run": ["pvc", "a/b"]}
    read |= {"shadow": ["report"], "migrate": ["check", "a/b"], "completion": ["bash"]}
    assert main([command, *read.get(command, []), "stray", "--driver=d", REDIS]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_help_of_a_process_says_which_flags_are_the_sidecars_and_which_ours(capsys):
    assert main(["worker", "--help"]) == 0
    text = capsys.readouterr().out
    theirs, ours = (
        text.index("Flags of the sidecars:"),
        text.index("Flags that only csi-fleet has:"),
    )
    idle = text.index("Accepted but ignored:")
    assert theirs < text.index("--csi-address") < ours < text.index("--redis-url") < idle


@pytest.mark.parametrize("command", sorted(TOOLS - {Command.COMPLETION}))
def test_help_has_examples_that_parse_and_exit_codes(command, capsys):
    assert main([command, "--help"]) == 0
    text = capsys.readouterr().out
    assert "Exit codes: 0 success; 1 " in text
    examples = text.partition("Examples:\n")[2].partition("\n\n")[0].splitlines()
    assert examples
    for line in examples:
        _, named, *words = shlex.split(line)
        assert named == command
        parse(command, words, {})
