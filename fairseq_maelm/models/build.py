"""Build the model of a checkpoint."""

from fairseq.data import Dictionary

from fairseq_maelm.checkpoints.fit import build_with_heads
from fairseq_maelm.checkpoints.reader import Checkpoint
from fairseq_maelm.models.maelm import MaelmModel


def build_model(checkpoint: Checkpoint, dictionary: Dictionary) -> MaelmModel:
    """Build the model with its weights, on the CPU, in single precision and in evaluation mode.

    A ValueError refuses another dictionary than that of training, and a model larger than the checkpoint.
    """
    config, weights = checkpoint.config.model, dict(checkpoint.weights)
    model: MaelmModel = build_with_heads(
        lambda: MaelmModel(config, dictionary, checkpoint.predicts_masked_tokens), weights, checkpoint.path
    )
    model.load_state_dict(weights, strict=True, model_cfg=config)
    return model.float().eval()
