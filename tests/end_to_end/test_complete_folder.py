"""A pretrained checkpoint that is kept as a complete folder trains on as if it had stayed a file of fairseq."""

from pathlib import Path

import pytest
import torch

from end_to_end.small import LAST, training
from end_to_end.toy import run
from fairseq_maelm.interop.export.run import ExportSettings, export
from fairseq_maelm.interop.importing.run import import_model

pytest.importorskip("transformers")

SMALL = ["--encoder-embed-dim", 32, "--encoder-ffn-embed-dim", 48, "--embedding-init-std", 0.1, "--init-std", 0.1]


@pytest.fixture(scope="module")
def folders(data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A complete folder of maelm_modern_tiny after a few updates, and its checkpoint as a file of fairseq."""
    root = tmp_path_factory.mktemp("modern")
    words = [word if word != "maelm_tiny" else "maelm_modern_tiny" for word in training(data, root / "run")]
    run([*words, *SMALL, "--max-update", 8, "--lr", 1e-2])
    settings = ExportSettings("modernbert", dtype="float16", complete=True)
    export(root / "run" / LAST, None, root / "complete", settings)
    import_model(root / "complete", root / "imported")
    return root / "complete", root / "imported"


def weights(path: Path) -> dict[str, torch.Tensor]:
    return dict(torch.load(path, weights_only=True)["model"])


@pytest.mark.slow
def test_pretraining_continues_from_it(folders: tuple[Path, Path], data: Path, tmp_path: Path) -> None:
    files = folders[0] / "checkpoint.json", folders[1] / "checkpoint_best.pt"
    results = []
    for number, file in enumerate(files):
        words = [word if word != "maelm_tiny" else "maelm" for word in training(data, tmp_path / str(number))]
        own = ["--decoder-layers", 1, "--finetune-from-model", file, "--max-update", 3]
        assert f"loading pretrained model from {file}" in run([*words, *own])
        results.append(weights(tmp_path / str(number) / LAST))
    before = weights(files[1])
    assert results[0].keys() == results[1].keys() == before.keys()
    assert all(torch.equal(weight, results[1][name]) for name, weight in results[0].items())
    assert not torch.equal(results[0]["encoder.embed_tokens.weight"], before["encoder.embed_tokens.weight"])
