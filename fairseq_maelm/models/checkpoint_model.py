"""The model of a checkpoint that has been read."""

from fairseq.data import Dictionary

from fairseq_maelm.models.checkpoint import register_heads
from fairseq_maelm.models.checkpoint_reader import Checkpoint
from fairseq_maelm.models.maelm import MaelmModel


def build_model(checkpoint: Checkpoint, dictionary: Dictionary) -> MaelmModel:
    """Build the model with its weights: on the CPU, in single precision, in evaluation mode.

    Another dictionary than that of the training is a ValueError.
    """
    config, weights = checkpoint.config.model, dict(checkpoint.weights)
    model = MaelmModel(config, dictionary, checkpoint.predicts_masked_tokens)
    register_heads(model, weights)
    model.load_state_dict(weights, strict=True, model_cfg=config)
    return model.float().eval()
