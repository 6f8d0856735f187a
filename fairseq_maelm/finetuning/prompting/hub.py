"""Classification by prompts with a checkpoint behind the hub interface."""

from typing import Dict, List, Mapping, Optional, Sequence, Union

from fairseq_maelm.finetuning.prompting import inference
from fairseq_maelm.finetuning.prompting.prompts import Prompt
from fairseq_maelm.models.hub import MaelmHubInterface

__all__ = ["classify_by_prompt"]


def classify_by_prompt(
    hub: MaelmHubInterface,
    texts: Sequence[Union[str, Sequence[str]]],
    prompt: Union[str, Prompt, None] = None,
    label_words: Optional[Mapping[str, str]] = None,
    several_pieces: bool = False,
    batch_size: int = 32,
) -> List[Dict[str, float]]:
    """Classify texts by the words that the decoder puts at a template's mask; no head is needed.

    Args:
        hub: of a checkpoint with decoder and prediction head.
        texts: sentences, or pairs and more for templates that have as many.
        prompt: name of a GLUE task, a .yaml or .json file, or, with ``label_words``, a template; by default the
            prompt that the checkpoint was fine-tuned with.
        label_words: label -> word.
        several_pieces: allow label words of several pieces, scored by their mean log-probability.
        batch_size: examples of a batch.

    Returns:
        for each text, label -> probability among the labels. Of a regression the labels are its two bounds.

    Raises:
        ValueError: if the prompt is missing or wrong, or the checkpoint cannot fill masks.
    """
    prompter = inference.find_prompter(hub, prompt, label_words, several_pieces)
    examples = [prompter.encode([text] if isinstance(text, str) else text) for text in texts]
    probabilities = inference.score(hub, prompter, examples, batch_size).softmax(dim=-1).tolist()
    return [dict(zip(prompter.prompt.labels, row)) for row in probabilities]
