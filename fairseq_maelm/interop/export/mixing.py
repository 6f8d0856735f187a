"""Average the weights of a trained checkpoint and of its source (``maelm export --mix``).

Weights between the two share a low loss because training from the source is short, and the mean forgets less of what
the source knew (Wortsman et al., 2022, "Robust fine-tuning of zero-shot models").
"""

from dataclasses import replace

from fairseq_maelm.checkpoints.build import build_model
from fairseq_maelm.checkpoints.fit import SETTINGS
from fairseq_maelm.checkpoints.reader import read_checkpoint
from fairseq_maelm.interop.export.formats import Mix
from fairseq_maelm.interop.loaded_checkpoint import LoadedCheckpoint


def mixed(trained: LoadedCheckpoint, mix: Mix) -> LoadedCheckpoint:
    """Return a checkpoint with the weighted mean of two checkpoints' weights.

    Args:
        trained: the checkpoint whose options, history and further weights are kept.
        mix: the checkpoint from which it was trained, and its share.

    Weights that only ``trained`` has stay as they are, and so do heads, which fine-tuning never takes over.

    Raises:
        ValueError: the encoders have other sizes or another vocabulary.
    """
    (path, share), checkpoint = mix, trained.checkpoint
    source = read_checkpoint(path)
    if source.vocabulary != checkpoint.vocabulary:
        raise ValueError(f"--mix: {path} has another vocabulary than {checkpoint.path}: give the checkpoint's source")
    for name, value in checkpoint.encoder_options.items():
        theirs = source.encoder_options[name]
        # The name of an architecture only fills in sizes.
        if name != "arch" and theirs != value:
            raise ValueError(
                f"--mix: the encoder of {path} has {name} {theirs}, and that of {checkpoint.path} {value}: give the "
                "checkpoint's source"
            )
    heads = "classification_heads."
    old = {name: each for name, each in source.weights.items() if name != SETTINGS and not name.startswith(heads)}
    weights = {
        name: share * old[name].float() + (1.0 - share) * weight.float()
        if name in old and old[name].shape == weight.shape and weight.is_floating_point()
        else weight
        for name, weight in checkpoint.weights.items()
    }
    result = replace(checkpoint, weights=weights)
    return replace(trained, checkpoint=result, model=build_model(result, trained.dictionary))


def mixing_section(mix: Mix) -> str:
    """Return the model card's section about the mean of two checkpoints' weights."""
    return (
        f"## Mixed weights\n\nEach weight is {mix.share:g} times that of `{mix.source.parent.name}`, from which the "
        f"training above started, plus {1.0 - mix.share:g} times that of the trained checkpoint. What only the "
        "trained checkpoint has is as trained."
    )
