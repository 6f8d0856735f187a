"""The lines of each top folder: they may fall, and rise only with a reason in the commit that raises the number."""

import json
from collections import Counter
from pathlib import Path

from .sources import project_files, read_text, relative

RECORDED = Path(__file__).with_name("size.json")


def lines_by_folder() -> Counter[str]:
    """Count the lines of Python and shell files by top folder."""
    counts: Counter[str] = Counter()
    for path in project_files():
        if path.suffix in (".py", ".sh"):
            counts[relative(path).partition("/")[0]] += len(read_text(path).splitlines())
    return counts


def test_no_folder_grows() -> None:
    most, found = json.loads(RECORDED.read_text(encoding="utf-8")), lines_by_folder()
    assert most.keys() <= found.keys()
    larger = {folder: (found[folder], limit) for folder, limit in most.items() if found[folder] > limit}
    assert not larger, (
        f"folders with more lines than {RECORDED.name} allows (found, at most): {larger}. Make them smaller, or raise "
        "the number and say why in the body of the commit"
    )
