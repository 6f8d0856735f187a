"""The options of the pretraining task."""

from dataclasses import dataclass
from typing import Optional

from fairseq.dataclass import ChoiceEnum
from omegaconf import MISSING

from fairseq_maelm.data.blocks import BREAK_MODES
from fairseq_maelm.data.masking import MAX_LENGTH
from fairseq_maelm.data.masking_variants import ENCODER_POSITIONS, MASKED_INPUTS
from fairseq_maelm.options import option
from fairseq_maelm.tasks.encoder_task import EncoderTaskConfig


@dataclass
class MaelmTaskConfig(EncoderTaskConfig):
    """Options of the task."""

    data: str = option(
        MISSING,
        help="folder written by `maelm prepare corpus`, or several folders, separated by colons; each epoch reads one "
        "of them",
    )
    sample_break_mode: ChoiceEnum(list(BREAK_MODES)) = option(  # type: ignore[valid-type]
        "complete_doc",
        help="where text is split into sequences. 'none': after every --tokens-per-sample tokens; 'complete': after "
        "as many whole lines as fit; 'complete_doc': the same, and at the end of every document; 'eos': after every "
        "line",
    )
    tokens_per_sample: int = option(
        512,
        help="maximum number of tokens in a sequence, <s> included",
        minimum=3,  # blocks of <s> and a single token are left out
        maximum=MAX_LENGTH,
    )
    half_length_until: float = option(
        0.0,
        help="share of --max-update until which each sequence is cut into two, which costs less and learns faster at "
        "first",
        minimum=0,
        below=1,
    )
    masked_input: ChoiceEnum(list(MASKED_INPUTS)) = option(  # type: ignore[valid-type]
        "dropped",
        help="encoder's input at masked positions: nothing with 'dropped' (MAE-LM), <mask> with 'kept' (MLM) and "
        "'reset', random real tokens with 'random' and 'random_kept'; with 'reset' and 'random' the decoder still "
        "gets the mask embedding",
    )
    encoder_mask_fraction: float = option(
        0.0,
        help="with --masked-input dropped: probability that a mask stays in the encoder's input (delta)",
        minimum=0,
        maximum=1,
    )
    encoder_positions: ChoiceEnum(list(ENCODER_POSITIONS)) = option(  # type: ignore[valid-type]
        "original", help="positions of the encoder's input: the original ones, or consecutive ones"
    )
    mask_prob: float = option(0.15, help="fraction of tokens to predict", above=0, below=1)
    mask_prob_end: Optional[float] = option(
        None,
        help="fraction of tokens to predict in the last eighth of the run, reached in equal steps from --mask-prob "
        "(default: --mask-prob)",
        above=0,
        below=1,
    )
    valid_mask_prob: Optional[float] = option(
        None,
        help="fraction of tokens to predict in validation, for comparisons of runs with different fractions (default: "
        "--mask-prob-end, or else --mask-prob)",
        above=0,
        below=1,
    )
    leave_unmasked_prob: float = option(
        0.0, help="fraction of the predicted tokens that the encoder reads unchanged in training (BERT: 0.1)", minimum=0
    )
    random_token_prob: float = option(
        0.0,
        help="fraction of the predicted tokens that the encoder reads as random real tokens in training (BERT: 0.1)",
        minimum=0,
    )
    mask_whole_words: bool = option(False, help="mask whole words instead of single tokens")
    protect_special_tokens: bool = option(False, help="never mask <s> and </s>")
    initial_output_bias: ChoiceEnum(["zeros", "frequencies"]) = option(  # type: ignore[valid-type]
        "zeros",
        help="initial bias of the LM head: zeros, or each symbol's log frequency in the training text, so that "
        "the model need not learn frequencies first",
    )
    general_data: Optional[str] = option(
        None,
        help="one or more folders of general text with the same vocabulary, separated by colons; the valid split of "
        "the first one is the validation set 'general' (--valid-subset valid,general)",
    )
    general_ratio: float = option(
        0.0, help="fraction of each epoch's tokens that come from the general text's train split", minimum=0, below=1
    )
    general_loss_bound: Optional[float] = option(
        None,
        help="stop training, without saving, if the loss on 'general' rises by more than this many bits per masked "
        "token above its value before the first update",
        above=0,
    )
