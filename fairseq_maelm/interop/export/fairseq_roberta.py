"""Export a masked language model to a checkpoint of fairseq's own model roberta, which stock fairseq opens."""

import warnings
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models.roberta import RobertaModel, base_architecture
from omegaconf import OmegaConf

from fairseq_maelm.architecture.families import FAIRSEQ_ROBERTA, weights_of_family
from fairseq_maelm.interop.compare_outputs import Agreement, agreements, checkpoint_outputs, comparison_batches
from fairseq_maelm.interop.export.target import Target, fixed_otherwise, obstacles
from fairseq_maelm.interop.importing.fairseq_roberta import open_checkpoint
from fairseq_maelm.interop.loaded_checkpoint import LoadedCheckpoint

CHECKPOINT_FILE = "model.pt"  # the default name of RobertaModel.from_pretrained
_ARCHITECTURE = "roberta_base"  # all sizes are options, so that no other name is needed


def write_roberta(source: LoadedCheckpoint, folder: Path) -> list[Agreement]:
    """Write the checkpoint to a folder that has its dict.txt, open it again, and return the comparison."""
    found = obstacles(source, Target("roberta", "masked-lm"))
    found = found or fixed_otherwise(source.options, FAIRSEQ_ROBERTA, "fairseq's")
    if found:
        head = source.model.decoder is not None and source.model.lm_head is not None
        only_decoder = head and not obstacles(source, Target("roberta", "encoder"))
        remedy = ". Without the decoder: --with-mlm-head" if only_decoder else ""
        raise ValueError(
            f"{source.checkpoint.path} cannot become a checkpoint of fairseq's roberta: {'; '.join(found)}{remedy}"
        )
    args = _arguments(source)
    model = RobertaModel.build_model(args, SimpleNamespace(source_dictionary=source.dictionary))
    weights = weights_of_family(source.model.state_dict(), FAIRSEQ_ROBERTA, source.options, "masked-lm", None)
    # The rest are the head's second name for the embeddings, and the version of fairseq's encoder.
    weights["encoder.lm_head.weight"] = weights["encoder.sentence_encoder.embed_tokens.weight"]
    model.load_state_dict({**model.state_dict(), **weights})
    history = source.checkpoint.history
    made = {"criterion_name": "MaskedLmLoss", "optimizer_name": "FairseqAdam", "lr_scheduler_state": {}}
    state = {
        "args": None,
        "cfg": _plain(args),
        "model": model.state_dict(),
        "optimizer_history": [{**made, "num_updates": history.get("num_updates", 0)}],
        "extra_state": {"train_iterator": {"epoch": history.get("epoch", 1)}},
    }
    torch.save(state, folder / CHECKPOINT_FILE)
    return agreements(
        lambda tokens: checkpoint_outputs(source.model, source.checkpoint.view, "masked-lm", None, tokens),
        open_checkpoint(folder / CHECKPOINT_FILE, None).compute,
        comparison_batches(source.model, masks=True),
        "fairseq's roberta and the checkpoint compute different values",
    )


def _arguments(source: LoadedCheckpoint) -> Namespace:
    """Return the options of ``fairseq-train`` that build the model, and those that set up its task."""
    options = source.options
    args = Namespace(task="masked_lm", criterion="masked_lm", arch=_ARCHITECTURE, data=".")
    for name in ("layers", "embed_dim", "ffn_embed_dim", "attention_heads"):
        setattr(args, f"encoder_{name}", options[f"encoder_{name}"])
    args.dropout, args.attention_dropout = options.dropout, options.attention_dropout
    args.max_positions = args.tokens_per_sample = options.max_positions
    base_architecture(args)
    return args


def _plain(args: Namespace) -> dict[str, Any]:
    """Return options as fairseq's configuration of plain values: torch refuses a file with a Namespace by default."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about fairseq's use of Hydra
        config = convert_namespace_to_omegaconf(args)
    sections: dict[str, Any] = OmegaConf.to_container(config, resolve=True, enum_to_str=True)
    return {**sections, "model": vars(sections["model"])}
