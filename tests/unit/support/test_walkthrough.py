"""Commands are read from a page's section as a reader would type them."""

from __future__ import annotations

import pytest

from tests.support.fleet import ROOT
from tests.support.walkthrough import CommandFailedError, Walkthrough, blocks, commands, section

PAGE = """\
# Title
## Install
Text.
```sh
# comment
export A=1
first \\
  --flag
```
```yaml
# values.yaml
a: b
```
### Deeper
```sh
second
```
## Other
"""


def test_a_section_ends_at_the_next_heading_and_a_comment_in_a_block_is_none():
    assert list(blocks(section(PAGE, "Install"))) == [
        ("sh", "# comment\nexport A=1\nfirst \\\n  --flag\n"),
        ("yaml", "# values.yaml\na: b\n"),
    ]
    assert list(blocks(section(PAGE, "Deeper"))) == [("sh", "second\n")]
    with pytest.raises(LookupError, match="Absent"):
        section(PAGE, "Absent")


def test_commands_are_lines_that_a_backslash_continues():
    assert commands("# no\n\nexport A=1\nfirst \\\n  --flag\n") == [
        "export A=1",
        "first --flag",
    ]


def test_the_pages_that_the_node_suite_follows_have_commands():
    """This catches a renamed heading, or a block without a language, before the node suite does."""
    for page, heading in (
        ("README.md", "First volume, with Helm"),
        ("README.md", "And away again"),
        ("docs/migration.md", "Container by container"),
        ("docs/migration.md", "One container back"),
    ):
        found = list(blocks(section((ROOT / page).read_text(), heading)))
        assert [one for language, text in found if language == "sh" for one in commands(text)]


@pytest.fixture
def walk(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.support.walkthrough.kubectl", lambda: "/bin/true")
    return Walkthrough(tmp_path, tmp_path / "kubeconfig", {"hello": 'echo "hello $1"'})


def test_a_command_sees_the_checkout_earlier_exports_and_our_programs(walk):
    walk.run("export NAME=you")
    assert walk.run("hello $NAME; head -1 README.md") == "hello you\n# csi-fleet\n"
    assert walk.printed("hello") == walk.steps[-1].output
    assert "hello $NAME" in walk.timeline()


@pytest.mark.parametrize("command", ["false | true", "echo before; exit 3"])
def test_a_command_that_fails_is_told_with_what_it_printed(walk, command):
    with pytest.raises(CommandFailedError, match="exit"):
        walk.run(command)
