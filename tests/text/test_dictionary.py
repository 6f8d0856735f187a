"""The dictionary of a data folder, and the token classes that masking uses."""

import hashlib
import json

import numpy as np
import pytest
from support import dictionary_of

from fairseq_maelm.text.dictionary import (
    load_dictionary,
    log_frequencies,
    real_tokens,
    special_tokens,
)


@pytest.fixture(params=["", "shard00/"])
def folder(tmp_path, request):
    """A folder with a dictionary and the manifest of a plain or of a sharded corpus."""
    content = "\u2581the 1\n\u2581cat 1\ns 1\n"
    (tmp_path / "dict.txt").write_text(content, encoding="utf-8")
    digest = hashlib.sha256(content.encode("utf-8")).hexdigest()
    manifest = {"outputs": {f"{request.param}dict.txt": {"sha256": digest, "bytes": len(content)}}}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    return tmp_path


def test_mask_comes_last(folder):
    dictionary = load_dictionary(str(folder))
    assert dictionary.symbols == ["<s>", "<pad>", "</s>", "<unk>", "\u2581the", "\u2581cat", "s", "<mask>"]


def test_a_mask_in_front_is_refused(tmp_path):
    (tmp_path / "dict.txt").write_text("the 1\n<mask> 1\ncat 1\n")
    with pytest.raises(ValueError, match="dict.txt lists <mask> in line 2, but it must be the last symbol or absent"):
        load_dictionary(str(tmp_path))
    (tmp_path / "dict.txt").write_text("the 1\ncat 1\n<mask> 1\n")
    assert load_dictionary(str(tmp_path)).symbols[4:] == ["the", "cat", "<mask>"]


def test_token_classes(folder):
    dictionary = load_dictionary(str(folder))
    assert real_tokens(dictionary).tolist() == [4, 5, 6]
    assert special_tokens(dictionary).tolist() == [True] * 4 + [False] * 3 + [True]


def test_log_frequencies():
    # Nine symbols: 0 <s>, 1 <pad>, 2 </s>, 3 <unk>, 4 to 7, 8 <mask>; every count is raised by one.
    text = np.array([4, 4, 4, 5, 2, 4, 6, 2], dtype=np.uint16)
    shares = np.exp(log_frequencies(text, 3, dictionary_of(9)))
    assert shares.dtype == np.float32
    np.testing.assert_allclose(shares, np.array([4, 1, 3, 1, 5, 2, 2, 1, 1]) / 20, rtol=1e-5)
