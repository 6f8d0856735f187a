"""Exported folders on a machine with transformers, but without fairseq and this package."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from fairseq_maelm.interop.export.exporter import ExportSettings, export
from fairseq_maelm.interop.export.formats import ARCHITECTURES, AUTO_CLASSES, FORMATS, OUR_FORMAT
from interop.export.checkpoints import MODERN, train_vocabulary, write_checkpoint

pytest.importorskip("transformers")

# Opens a folder by every class and prints for each the class of the model and the new weights.
OPEN = """
import sys
sys.modules["fairseq"] = sys.modules["fairseq_maelm"] = None
import torch, transformers
folder, *names = sys.argv[1:]
open = lambda name, place, **more: getattr(transformers, name).from_pretrained(place, trust_remote_code=True, **more)
tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
batch = tokenizer(["The old <mask> by the river.", "Nobody<mask>"], padding=True, return_tensors="pt")
encoder = None
for name in names:
    labels = {"num_labels": 2} if name.endswith("QuestionAnswering") else {}
    model, report = open(name, folder, output_loading_info=True, **labels)
    base = model.base_model
    encoder = encoder or base
    shared = encoder.state_dict()
    assert all(torch.equal(value, shared[key]) for key, value in base.state_dict().items()), name
    output = model.train()(**batch)
    assert all(each.isfinite().all() for each in output.to_tuple()), name
    sum(each.sum() for each in output.to_tuple()).backward()
    model.save_pretrained(folder + "-again")
    again = open(name, folder + "-again").state_dict()
    assert all(torch.equal(value, again[key]) for key, value in model.state_dict().items()), name
    new = sorted({key.split(".")[0] for key in report["missing_keys"]})
    print(type(model).__module__.split(".")[0], type(model).__name__, *new)
"""
HEADS = {
    "sequence-classification": ["classifier"],
    "token-classification": ["classifier"],
    "question-answering": ["qa_outputs"],
}


def without_package(code: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program in another process, outside of the checkout."""
    environment = {"HF_HOME": str(folder.parent / "cache"), "HF_HUB_OFFLINE": "1", "PATH": "", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", code, str(folder), *arguments]
    done = subprocess.run(command, env=environment, cwd=folder.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done


def test_a_folder_opens_as_every_class(tmp_path: Path) -> None:
    data, own = train_vocabulary(tmp_path / "data"), "token-classification"
    write_checkpoint(tmp_path / "checkpoint.pt", data, scale=0.1, heads=("tags",))
    done = export(tmp_path / "checkpoint.pt", data, tmp_path / "folder", ExportSettings("maelm"))
    assert done.target.architecture == own
    # The folder's class is first; the others have the same encoder.
    others = [each for each in ARCHITECTURES if each not in (own, "masked-lm")]
    ran = without_package(OPEN, done.folder, *(AUTO_CLASSES[each] for each in (own, *others)))
    expected = [f"transformers_modules Maelm{ARCHITECTURES[own]}"]
    expected += [" ".join(["transformers_modules", f"Maelm{ARCHITECTURES[e]}", *HEADS.get(e, [])]) for e in others]
    assert ran.stdout.splitlines() == expected
    assert "newly initialized" in ran.stderr or "MISSING" in ran.stderr


# What the configurations of text-embeddings-inference (1.9.3) and candle (0.11) require by their code; neither has
# an ELECTRA, and candle has no MPNet.
_COMMON = """vocab_size hidden_size num_hidden_layers num_attention_heads intermediate_size max_position_embeddings
 initializer_range layer_norm_eps pad_token_id"""
_BERT = f"{_COMMON} hidden_act hidden_dropout_prob attention_probs_dropout_prob type_vocab_size position_embedding_type"
_REQUIRED = {
    **dict.fromkeys(("bert", "roberta", "xlm-roberta", "camembert", "electra"), _BERT),
    "mpnet": f"{_COMMON} hidden_act hidden_dropout_prob attention_probs_dropout_prob relative_attention_num_buckets",
    "distilbert": """vocab_size dim n_layers n_heads hidden_dim activation max_position_embeddings initializer_range
 pad_token_id""",
    "modernbert": f"""{_COMMON} hidden_activation initializer_cutoff_factor norm_eps norm_bias eos_token_id bos_token_id
 cls_token_id sep_token_id global_rope_theta local_rope_theta global_attn_every_n_layers local_attention attention_bias
 attention_dropout classifier_activation""",
}


@pytest.mark.parametrize("form", [form for form in FORMATS if form != OUR_FORMAT])
def test_config_has_what_other_runtimes_require(form: str, tmp_path: Path) -> None:
    data, stock = train_vocabulary(tmp_path / "data"), {"relative_buckets": "none", "layer_norm_eps": 1e-12}
    options = {"modernbert": MODERN, "mpnet": {"relative_num_buckets": 32, "relative_max_distance": 128}}
    write_checkpoint(tmp_path / "checkpoint.pt", data, **options.get(form, stock))
    done = export(tmp_path / "checkpoint.pt", data, tmp_path / "folder", ExportSettings(form, architecture="encoder"))
    config = json.loads((done.folder / "config.json").read_text(encoding="utf-8"))
    assert {name for name in _REQUIRED[form].split() if config.get(name) is None} == set()
