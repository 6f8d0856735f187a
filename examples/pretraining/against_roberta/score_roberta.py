"""Score checkpoints of fairseq's stock RoBERTa on the masks that the task maelm validates with.

    python score_roberta.py DATA CHECKPOINT... > scores.json

fairseq's own masked_lm validates on other masks and reports no accuracy. Here the stock weights are copied into our
model without decoder, which computes the same function, so that both models predict the same tokens of the same blocks.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any, Iterator

import torch
from fairseq import checkpoint_utils
from omegaconf import OmegaConf

from fairseq_maelm.criterions.maelm import MaelmCriterion
from fairseq_maelm.interop.importing.fairseq_roberta import load_roberta_weights
from fairseq_maelm.models.maelm import MaelmModel, MaelmModelConfig
from fairseq_maelm.tasks.maelm import MaelmTask, MaelmTaskConfig


def task_for(data: str, roberta_task: Any) -> MaelmTask:
    """The task maelm with masks kept, cutting text as the checkpoint's task did."""
    config = OmegaConf.structured(MaelmTaskConfig)
    OmegaConf.set_struct(config, False)
    config.update(
        {
            "data": data,
            "masked_input": "kept",
            "sample_break_mode": roberta_task.sample_break_mode,
            "tokens_per_sample": roberta_task.tokens_per_sample,
            "mask_prob": roberta_task.mask_prob,
            "seed": 1,
        }
    )
    task = MaelmTask.setup_task(config)
    task.load_dataset("valid")
    return task


def model_for(task: MaelmTask, roberta_config: Any, weights: dict[str, torch.Tensor]) -> MaelmModel:
    """Our model without decoder and relative bias, with the checkpoint's weights."""
    names = ("encoder_layers", "encoder_embed_dim", "encoder_ffn_embed_dim", "encoder_attention_heads", "max_positions")
    sizes = {name: getattr(roberta_config, name) for name in names}
    config = OmegaConf.merge(
        OmegaConf.structured(MaelmModelConfig), {**sizes, "decoder_layers": 0, "relative_buckets": "none"}
    )
    model = MaelmModel(config, task.source_dictionary)
    load_roberta_weights(model, weights)
    return model.eval()


def batches(task: MaelmTask) -> Iterator[dict[str, Any]]:
    """All batches of the validation split."""
    iterator = task.get_batch_iterator(task.datasets["valid"], max_tokens=4096, max_positions=task.max_positions())
    return iterator.next_epoch_itr(shuffle=False)


@torch.no_grad()
def score(task: MaelmTask, model: MaelmModel) -> dict[str, float]:
    """Loss in bits, perplexity and accuracy in percent over the whole split."""
    criterion = MaelmCriterion(task)
    logs = [criterion(model, sample)[2] for sample in batches(task)]
    tokens = sum(log["sample_size"] for log in logs)
    bits = sum(float(log["loss"]) for log in logs) / tokens / torch.tensor(2.0).log().item()
    return {"loss": bits, "ppl": 2**bits, "accuracy": 100 * sum(int(log["ncorrect"]) for log in logs) / tokens}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="folder of `maelm prepare corpus`")
    parser.add_argument("checkpoints", nargs="+", type=Path, help="checkpoints of arch roberta_base and its relatives")
    arguments = parser.parse_args()
    results = []
    for path in arguments.checkpoints:
        state = checkpoint_utils.load_checkpoint_to_cpu(str(path))
        task = task_for(arguments.data, state["cfg"].task)
        updates = state["optimizer_history"][-1]["num_updates"]
        results.append({"updates": updates, **score(task, model_for(task, state["cfg"].model, state["model"]))})
    json.dump(sorted(results, key=lambda row: row["updates"]), sys.stdout, indent=1)


if __name__ == "__main__":
    main()
