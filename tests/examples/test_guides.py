"""Each guide begins with commands that need nothing made before: an encoder of the package, text that a line makes."""

import re
import shlex
from pathlib import Path

import pytest
from end_to_end.toy import ROOT

from fairseq_maelm.checkpoints.locate import shipped_encoders

GUIDES = [path for path in sorted((ROOT / "docs" / "guides").glob("*.md")) if path.name != "README.md"]
# Options whose values are checkpoints or folders of earlier commands.
OPENED = ("--checkpoint", "--vocabulary")


def first_block(guide: Path) -> str:
    """Return the first indented block of a page, with continued lines joined."""
    block = re.search(r"(?:^ {4}.*\n)+", guide.read_text(encoding="utf-8"), re.MULTILINE)
    assert block is not None
    return re.sub(r"\\\n\s*", "", block[0])


def test_all_guides_are_checked() -> None:
    assert len(GUIDES) >= 24
    # One page a job; more belongs to docs/results or to a page of its own.
    assert not [guide.name for guide in GUIDES if len(guide.read_text(encoding="utf-8").splitlines()) > 90]


@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.name)
def test_the_first_commands_open_only_what_is_there(guide: Path) -> None:
    made, opened = set(shipped_encoders()) | {"random"}, 0
    for line in first_block(guide).splitlines():
        words = shlex.split(line, comments=True) if "maelm " in line and "python - " not in line else []
        for option, value in zip(words, words[1:]):
            if option in OPENED:
                assert value.rpartition("=")[2] in made, (option, value)
                opened += 1
            elif option in ("--output", "--save-dir"):
                made.add(value)
    assert opened or guide.name in {"corpus.md", "probing.md", "quickstart.md"}
