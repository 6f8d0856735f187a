"""What is changed in fairseq is what docs/reference/fairseq_changes.md says, and nothing else."""

import re
import subprocess
import sys

import pytest

from fairseq_maelm.fairseq_fixes import PATCHES, changes, mend_fairseq

from .sources import PACKAGE

ROOT = PACKAGE.parent
PAGE = ROOT / "docs" / "reference" / "fairseq_changes.md"

# Prints the functions of fairseq that ``register`` replaces.
PROGRAM = """
import inspect, sys
import fairseq.models.ema.ema, fairseq.trainer, fairseq_cli.train

def functions():
    owners = {}
    for module in [each for name, each in sys.modules.items() if name.split(".")[0] in ("fairseq", "fairseq_cli")]:
        owners[module.__name__] = module
        for name, value in vars(module).items():
            if inspect.isclass(value) and value.__module__ == module.__name__:
                owners[f"{module.__name__}.{name}"] = value
    return {path: dict(vars(owner)) for path, owner in owners.items()}

before = functions()
import fairseq_maelm
fairseq_maelm.register()
after = functions()
for path, names in before.items():
    for name, value in after[path].items():
        if inspect.isroutine(value) and value is not names.get(name):
            print(f"{path}.{name}".removeprefix("fairseq."))
"""


def rows() -> list[str]:
    """Return the lines of the page's table."""
    cells = [(what if " " in what else f"`{what}`", patch) for what, patch in sorted(PATCHES.items())]
    return [f"| {what} | {patch.why} | {patch.acts_on} | {patch.upstream} |" for what, patch in cells]


def test_the_page_lists_all_changes() -> None:
    mend_fairseq()
    assert len(PATCHES) > 20
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    begin = next(number for number, line in enumerate(lines) if line.startswith("|---"))
    end = next(number for number, line in enumerate([*lines, ""]) if number > begin and not line.startswith("|"))
    assert lines[begin + 1 : end] == rows(), "the table should be:\n" + "\n".join(rows())
    assert len(lines) <= 70


@pytest.mark.slow
def test_no_other_function_of_fairseq_is_replaced() -> None:
    program = [sys.executable, "-c", PROGRAM]
    finished = subprocess.run(program, capture_output=True, text=True, check=True, cwd=ROOT)
    listed = {what for what in PATCHES if re.fullmatch(r"[\w.]+", what) and not what.startswith("os.")}
    assert sorted(finished.stdout.split()) == sorted(listed)


def test_a_second_change_of_the_same_is_refused() -> None:
    mend_fairseq()
    before = dict(PATCHES)
    what = next(iter(PATCHES))
    with pytest.raises(ValueError, match=f"{what} is changed twice"):
        changes(what, "a reason")(lambda: None)
    assert before == PATCHES
