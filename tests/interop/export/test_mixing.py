"""``maelm export --mix``: the mean of the weights of a trained checkpoint and of its source."""

import shutil
from pathlib import Path

import pytest
import torch
from support import usage_error

from fairseq_maelm import cli
from fairseq_maelm.interop.export.exporter import ExportSettings, export
from fairseq_maelm.interop.export.formats import Mix
from fairseq_maelm.interop.loaded_checkpoint import load_with_model
from interop.export.checkpoints import train_vocabulary, write_checkpoint


@pytest.mark.parametrize("heads_of_source", [(), ("sentence_classification_head",)])
def test_weights_are_means_and_heads_stay(
    heads_of_source: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The encoder in the stock folder is the mean; the head is as it was, also if the source has one of its name."""
    data = train_vocabulary(tmp_path / "data")
    sizes = {"relative_num_buckets": 32, "relative_max_distance": 128}
    source, trained = tmp_path / "source" / "checkpoint_best.pt", tmp_path / "trained" / "checkpoint_best.pt"
    task = {"_name": "maelm_sentences"}
    old = write_checkpoint(source, data, task if heads_of_source else None, heads=heads_of_source, scale=0.1, **sizes)
    new = write_checkpoint(trained, data, task, heads=("sentence_classification_head",), **sizes)
    words = ["export", "--checkpoint", trained, "--vocabulary", data, "--output", tmp_path / "mixed"]
    words = [*map(str, words), "--mix", f"{source.parent}=0.25", "--complete", "--name", "mean"]
    cli.main(words)
    assert "verified" in capsys.readouterr().out
    mixed = load_with_model(tmp_path / "mixed" / "checkpoint.json").model.state_dict()
    before, after = old.state_dict(), new.state_dict()
    for name, weight in mixed.items():
        if name.startswith("encoder."):
            assert torch.allclose(weight, 0.25 * before[name] + 0.75 * after[name], atol=1e-7), name
        elif name.startswith("classification_heads."):
            assert torch.equal(weight, after[name]), name
    card = (tmp_path / "mixed" / "README.md").read_text(encoding="utf-8")
    assert "0.25 times that of `source`" in card and "0.75 times" in card
    assert "SOURCE=SHARE" in usage_error(capsys, [*words[:8], str(source)])
    assert "must be" in usage_error(capsys, [*words[:8], f"{source}=1"])


def test_only_the_source_can_be_mixed_in(tmp_path: Path) -> None:
    data, other = train_vocabulary(tmp_path / "data"), train_vocabulary(tmp_path / "other", vocab_size=600)
    trained = tmp_path / "trained.pt"
    write_checkpoint(trained, data)
    write_checkpoint(tmp_path / "words.pt", other)
    write_checkpoint(tmp_path / "size.pt", data, encoder_layers=1)
    for name, reason in (("words", "another vocabulary"), ("size", "has encoder_layers 1")):
        with pytest.raises(ValueError, match=reason):
            export(trained, data, tmp_path / "mixed", ExportSettings(mix=Mix(tmp_path / f"{name}.pt", 0.5)))
    shutil.copy(trained, tmp_path / "same.pt")
    done = export(trained, data, tmp_path / "mixed", ExportSettings(mix=Mix(tmp_path / "same.pt", 0.5)))
    assert done.target is not None
