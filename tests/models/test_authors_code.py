"""With copied weights, the authors' code and ours: equal logits, gradients and updates, for all that theirs can run.

Their code is not part of this project. The tests run where MAELM_AUTHORS_CODE names a copy of their repository.
"""

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fairseq import options, tasks
from fairseq.data.indexed_dataset import make_builder
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.trainer import Trainer
from support import batch_of, dictionary_of, random_sequences
from torch import Tensor

from fairseq_maelm.data.masking_variants import EncoderView

CODE = os.environ.get("MAELM_AUTHORS_CODE", "")
pytestmark = pytest.mark.skipif(not CODE, reason="needs MAELM_AUTHORS_CODE, a copy of the authors' repository")

logger = logging.getLogger(__name__)

# Largest differences in single precision: of logits and gradients as shares of the largest one, of the losses before
# each update, and of the sum of ten updates, which Adam's division by small gradients makes less exact.
LIMITS = {"logits": 2e-6, "gradients": 1e-6, "losses": 1e-6, "updates": 5e-4}
SEQUENCES, UPDATES = 6, 10
PAD, MASK = 1, 39
COMMON = ["--tokens-per-sample", "512", "--batch-size", str(SEQUENCES), "--required-batch-size-multiple", "1"]
COMMON += ["--encoder-layers", "2", "--encoder-embed-dim", "32", "--encoder-ffn-embed-dim", "64"]
COMMON += ["--encoder-attention-heads", "4", "--dropout", "0", "--attention-dropout", "0", "--cpu"]
COMMON += ["--num-workers", "0"]
COMMON += ["--adam-betas", "(0.9,0.98)", "--adam-eps", "1e-6", "--weight-decay", "0.01"]
# Smaller than the gradients of every batch, so that clipping is compared too.
COMMON += ["--clip-norm", "0.1"]
COMMON += ["--lr-scheduler", "fixed", "--lr", "1e-3", "--disable-validation", "--no-save", "--seed", "1"]
THEIRS = ["--task", "masked_lm", "--criterion", "masked_lm", "--optimizer", "adam"]
THEIRS += ["--sample-break-mode", "complete_doc"]
AE = ["--arch", "ae", "--decoder-embed-dim", "32", "--decoder-ffn-embed-dim", "64", "--decoder-attention-heads", "4"]
OURS = ["--task", "maelm", "--criterion", "maelm", "--optimizer", "adam", "--arch", "maelm_tiny"]
OURS += ["--max-positions", "512"]


def relative(bins: int, distance: int) -> tuple[list[str], list[str]]:
    """Relative buckets in their words and in ours."""
    theirs = f"--rel-pos 1 --rel-pos-bins {bins} --max-rel-pos {distance}"
    ours = f"--relative-buckets reference --relative-num-buckets {bins} --relative-max-distance {distance}"
    return theirs.split(), ours.split()


def variant(theirs: str, ours: str, depth: int = 1, buckets: tuple[int, int] = (32, 128)) -> tuple[list[str], ...]:
    """Command lines of a variant, without the folder of data: theirs and ours."""
    relative_theirs, relative_ours = relative(*buckets)
    decoder = [*AE, "--gen-decoder-layers", str(depth)] if "--arch" not in theirs else []
    return (
        [*COMMON, *THEIRS, *decoder, *relative_theirs, *theirs.split()],
        [*COMMON, *OURS, "--decoder-layers", str(depth), *relative_ours, *ours.split()],
    )


DROPS = "--no-return-mask"
NARROW = "--decoder-embed-dim 16 --decoder-ffn-embed-dim 24 --decoder-attention-heads 2"
VARIANTS = {
    "maelm": variant(DROPS, ""),
    "maelm, buckets of base++": variant(DROPS, "", buckets=(64, 128)),
    "maelm, buckets of large++": variant(DROPS, "", buckets=(128, 256)),
    "no relative positions": variant(f"{DROPS} --rel-pos 0", "--relative-buckets none"),
    "misaligned positions": variant(f"{DROPS} --no-pos-align", "--encoder-positions consecutive"),
    "shared positions": variant(f"{DROPS} --share-pos-emb", "--share-decoder-positions"),
    "40 % masked": variant(f"{DROPS} --mask-prob 0.4", "--mask-prob 0.4"),
    "2 decoder layers": variant(DROPS, "", depth=2),
    "6 decoder layers": variant(DROPS, "", depth=6),
    "narrow decoder": variant(f"{DROPS} {NARROW}", NARROW),
    "encoder with masks": variant("--no-fill-mask", "--masked-input kept"),
    "decoder's input reset": variant("", "--masked-input reset"),
    "mlm": variant("--arch roberta", "--masked-input kept", depth=0),
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A vocabulary and sequences of 6 to 200 tokens, of which each is a block of theirs."""
    folder = tmp_path_factory.mktemp("data")
    dictionary = dictionary_of(MASK + 1)
    with (folder / "dict.txt").open("w", encoding="utf-8") as file:
        file.writelines(f"{symbol} 1\n" for symbol in dictionary.symbols[4:MASK])
    lengths = np.random.default_rng(0).integers(6, 200, SEQUENCES * UPDATES)
    builder = make_builder(str(folder / "train.bin"), impl="mmap", vocab_size=MASK + 1)
    for sequence in random_sequences(list(lengths)):
        # Their task puts <s> in front and makes a block of each document, which ends with an empty line.
        builder.add_item(torch.from_numpy(sequence[1:]))
        builder.add_item(torch.from_numpy(sequence[-1:]))
    builder.finalize(str(folder / "train.idx"))
    return folder


@pytest.fixture(scope="module")
def theirs(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of what their code computed; see ``authors_process.py``."""
    output = tmp_path_factory.mktemp("theirs")
    words = {name: [str(data), *VARIANTS[name][0]] for name in VARIANTS}
    (output / "orders.json").write_text(json.dumps(words), encoding="utf-8")
    program = Path(__file__).with_name("authors_process.py")
    benchmarks = str(Path(__file__).parents[2] / "benchmarks")
    done = subprocess.run(
        [sys.executable, program, CODE, output / "orders.json", output],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": benchmarks},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return output


def our_name(name: str) -> str:
    """Return our name of one of their parameters; queries, keys and values are parts of a matrix of ours."""
    for old, new in {
        "gen_decoder.lm_head": "lm_head",
        "encoder.lm_head": "lm_head",
        "gen_decoder": "decoder",
        "sentence_encoder.": "",
        "encoder_to_decoder": "decoder.input_projection",
        "emb_layer_norm": "layernorm_embedding",
        "embed_linear": "output_projection",
    }.items():
        name = name.replace(old, new)
    return name


def in_our_form(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Rename their parameters or gradients, and join those of queries, keys and values."""
    renamed = {our_name(name): tensor for name, tensor in tensors.items()}
    joined = {}
    for name, tensor in renamed.items():
        if ".q_proj." in name:
            parts = [renamed[name.replace("q_proj", f"{part}_proj")] for part in "qkv"]
            joined[name.replace("q_proj", "qkv_proj")] = torch.cat(parts)
        elif ".k_proj." not in name and ".v_proj." not in name:
            joined[name] = tensor
    return joined


def our_batch(batch: dict[str, Any], view: EncoderView) -> dict[str, Any]:
    """Return our sample of one of their batches: the same sequences, masked at the same positions."""
    shown, target = batch["net_input"]["src_tokens"].numpy(), batch["target"].numpy()
    sequences, masked = [], []
    for row, wanted in enumerate(target):
        if view.masked_input == "dropped":
            inside = wanted[wanted != PAD]
            predicted = inside != MASK
            visible = shown[row, : (~predicted).sum()]
            # Their positions are those at which nothing is predicted.
            assert (batch["pos"][row, : len(visible)].numpy() == np.flatnonzero(~predicted)).all()
        else:
            length = (shown[row] != PAD).sum()
            predicted = wanted[:length] != PAD
            inside, visible = wanted[:length].copy(), shown[row, :length][~predicted]
        inside[~predicted] = visible
        sequences.append(inside)
        masked.append(list(np.flatnonzero(predicted)))
    net_input, targets = batch_of(sequences, masked, view=view)
    tokens = sum(len(sequence) for sequence in sequences)
    return {"net_input": net_input, "target": targets, "ntokens": tokens, "nsentences": len(sequences)}


class Ours:
    """Our model of a variant with their first weights, and our sample of each of their batches."""

    def __init__(self, words: list[str], theirs: dict[str, Any]) -> None:
        config = convert_namespace_to_omegaconf(options.parse_args_and_arch(options.get_training_parser(), words))
        task = tasks.setup_task(config.task)
        weights = in_our_form(theirs["weights"])
        self.model = task.build_model(config.model).train().to(weights["encoder.embed_tokens.weight"].dtype)
        assert weights.keys() == dict(self.model.named_parameters()).keys()
        for name, parameter in self.model.named_parameters():
            assert parameter.shape == weights[name].shape
            parameter.data = weights[name].clone()
        self.criterion = task.build_criterion(config.criterion)
        self.trainer = Trainer(config, task, self.model, self.criterion)
        view = EncoderView(config.task.masked_input, positions=config.task.encoder_positions)
        self.batches = [our_batch(batch, view) for batch in theirs["batches"]]
        self.trainer._dummy_batch = self.batches[0]

    def logits(self) -> Tensor:
        """Return the logits of the last batch <float>[M, V]."""
        return self.model(**self.batches[-1]["net_input"])[0].detach()

    def gradients(self) -> dict[str, Tensor]:
        """Return the gradients of the last batch's summed loss."""
        self.criterion(self.model, self.batches[-1])[0].backward()
        gradients = {name: parameter.grad.clone() for name, parameter in self.model.named_parameters()}
        self.model.zero_grad()
        return gradients

    def update(self, batch: dict[str, Any]) -> float:
        """Make an update; return the loss before it, in nats for each prediction."""
        with torch.no_grad():
            loss = self.criterion(self.model, batch)[0].item()
        self.trainer.train_step([batch])
        return loss / len(batch["target"])

    def buckets(self) -> Tensor | None:
        """Return the relative bucket of each query and key <int64>[P, P], where there are buckets."""
        table = self.model.encoder.relative_attention_bias
        if table is None:
            return None
        positions = torch.arange(table.max_positions)
        return table.bucket_of_distance[positions - positions[:, None] + table.max_positions - 1]


def distance(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> float:
    """Return the largest difference between tensors of the same names, as a share of the largest value of all."""
    assert ours.keys() == theirs.keys()
    largest = max(tensor.abs().max() for tensor in theirs.values())
    return float(max((ours[name] - tensor).abs().max() for name, tensor in theirs.items()) / largest)


def distances(ours: Ours, theirs: dict[str, Any]) -> dict[str, float]:
    """Compare logits, gradients of all parameters and, where theirs updated, ten losses and the weights after them."""
    found = {
        "logits": distance({"": ours.logits()}, {"": theirs["logits"]}),
        "gradients": distance(ours.gradients(), in_our_form(theirs["gradients"])),
    }
    if "losses" in theirs:
        assert len(ours.batches) == len(theirs["losses"]) == UPDATES
        losses = torch.tensor([ours.update(batch) for batch in ours.batches], dtype=torch.float64)
        found["losses"] = distance({"": losses}, {"": torch.tensor(theirs["losses"], dtype=torch.float64)})
        first, last = in_our_form(theirs["weights"]), in_our_form(theirs["updated"])
        moved = {name: parameter.detach() - first[name] for name, parameter in ours.model.named_parameters()}
        found["updates"] = distance(moved, {name: last[name] - first[name] for name in last})
    logger.info("largest differences: %s", {name: f"{value:.1e}" for name, value in found.items()})
    return found


@pytest.mark.parametrize("name", VARIANTS)
def test_the_same_logits_gradients_and_updates(name: str, data: Path, theirs: Path) -> None:
    results = torch.load(theirs / f"{name}.float32.pt")
    ours = Ours([str(data), *VARIANTS[name][1]], results)
    found = distances(ours, results)
    assert found.keys() == LIMITS.keys()
    assert all(found[what] < limit for what, limit in LIMITS.items()), found


@pytest.mark.parametrize("name", VARIANTS)
def test_in_double_precision_nothing_but_rounding_differs(name: str, data: Path, theirs: Path) -> None:
    results = torch.load(theirs / f"{name}.float64.pt")
    ours = Ours([str(data), *VARIANTS[name][1]], results)
    assert max(distances(ours, results).values()) < 1e-13
    expected = results["buckets"]
    assert (ours.buckets() is None) == (expected is None) == (name == "no relative positions")
    assert expected is None or torch.equal(ours.buckets(), expected)
