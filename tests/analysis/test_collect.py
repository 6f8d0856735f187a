"""Inputs under each condition, and sums over batches that equal the sum over one big matrix."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from support import dictionary_of, model_of, random_sequences

from fairseq_maelm.analysis.analysis_settings import AnalysisSettings
from fairseq_maelm.analysis.collect import TextBlocks, Vocabulary, choose_blocks, collect, condition_input, model_inputs
from fairseq_maelm.data.masking import MaskDraw
from fairseq_maelm.text.dictionary import special_tokens

PAD, MASK = 1, 39
VOCABULARY = Vocabulary(PAD, MASK, 0, 2, special_tokens(dictionary_of(40)), True)


class Blocks:
    """Sequences in memory."""

    def __init__(self, lengths: list[int]) -> None:
        self.sequences = random_sequences(lengths)
        self.sizes = np.array(lengths)

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, index: int) -> np.ndarray:
        return self.sequences[index]


def encoder_of(**changes: Any) -> Any:
    """Return a model of this package with the interface of the analysis."""
    model = model_of(**changes)

    def hidden_states(tokens: torch.Tensor, positions: torch.Tensor | None = None) -> Any:
        return model.encoder(tokens, positions).all_states

    return SimpleNamespace(vocabulary=VOCABULARY, num_layers=2, width=32, hidden_states=hidden_states)


def settings_of(**changes: Any) -> AnalysisSettings:
    chosen: dict[str, Any] = {"conditions": ("whole", "masked", "dropped"), "tokens": 10_000, "text": Path()}
    return AnalysisSettings(**{**chosen, "batch_tokens": 60, "double": True, **changes})


def test_conditions_show_what_they_say() -> None:
    tokens = np.array([[0, 10, 11, 12, 2], [0, 20, 2, PAD, PAD]])
    masked = np.array([[False, True, False, True, False], [False, True, False, False, False]])
    draw = MaskDraw(masked, masked, tokens)
    lengths = np.array([5, 3])
    whole, positions = condition_input("whole", tokens, lengths, draw, VOCABULARY)
    assert positions is None
    assert np.array_equal(whole, tokens)
    seen, positions = condition_input("masked", tokens, lengths, draw, VOCABULARY)
    assert positions is None
    assert seen.tolist() == [[0, MASK, 11, MASK, 2], [0, MASK, 2, PAD, PAD]]
    seen, positions = condition_input("dropped", tokens, lengths, draw, VOCABULARY)
    assert positions is not None
    assert seen.tolist() == [[0, 11, 2], [0, 2, PAD]]
    assert positions.tolist() == [[0, 2, 4], [0, 2, 0]]


@pytest.mark.parametrize("skip_special", [False, True])
def test_sums_equal_one_matrix_of_all_representations(skip_special: bool) -> None:
    """The reference is computed sequence by sequence, without padding, with the masks of the inputs."""
    encoder, blocks = encoder_of(), Blocks([9, 14, 5, 14, 20, 7, 11])
    settings = settings_of(skip_special_tokens=skip_special)
    grams = collect(encoder, blocks, settings)
    rows: dict[tuple[str, str, int], list[torch.Tensor]] = {}
    for _, inputs in model_inputs(encoder, blocks, settings, "cpu"):
        assert inputs["whole"].tokens.numel() <= settings.batch_tokens
        for condition, batch in inputs.items():
            positions = [None] * len(batch.tokens) if batch.positions is None else batch.positions
            for sequence, places in zip(batch.tokens, positions):
                kept = sequence != PAD
                alone = sequence[kept]
                states = encoder.hidden_states(alone[None], None if places is None else places[kept][None])
                left_out = torch.from_numpy(VOCABULARY.special)[alone] if skip_special else alone == PAD
                for layer, each in enumerate(states):
                    rows.setdefault((condition, "mask", layer), []).append(each[0][alone == MASK])
                    rows.setdefault((condition, "real", layer), []).append(each[0][(alone != MASK) & ~left_out])
    for (condition, tokens, layer), parts in rows.items():
        matrix = torch.cat(parts).double()
        accumulator = getattr(grams[condition], tokens)[layer]
        assert accumulator.rows == len(matrix), (condition, tokens)
        assert torch.allclose(accumulator.gram(), matrix.T @ matrix, rtol=1e-4, atol=1e-3), (condition, tokens, layer)
    both = grams["masked"].sets(1)
    assert both["all"].rows == both["real"].rows + both["mask"].rows
    if not skip_special:
        assert both["all"].rows == grams["whole"].real[1].rows == sum(blocks.sizes)
        assert grams["dropped"].real[1].rows == both["real"].rows
    assert set(grams["whole"].sets(0)) == set(grams["dropped"].sets(0)) == {"real"}


def test_chosen_layers_alone_are_kept() -> None:
    encoder, blocks = encoder_of(), Blocks([9, 14])
    all_layers, last = (collect(encoder, blocks, settings_of(layers=layers)) for layers in (None, (2,)))
    assert len(last["whole"].real) == 1
    assert torch.equal(last["whole"].real[0].gram(), all_layers["whole"].real[2].gram())


def test_bert_masking_replaces_and_leaves() -> None:
    blocks = Blocks([60] * 40)
    settings = settings_of(mask_prob=0.5, leave_unmasked_prob=0.3, random_token_prob=0.3, tokens=10**6)
    shown = {"kept": 0, "mask": 0, "replaced": 0}
    for _, inputs in model_inputs(encoder_of(), blocks, settings, "cpu"):
        whole, masked = inputs["whole"].tokens, inputs["masked"].tokens
        shown["mask"] += int((masked == MASK).sum())
        shown["replaced"] += int(((masked != whole) & (masked != MASK)).sum())
        shown["kept"] += int((masked == whole).sum())
    total = sum(shown.values())
    assert shown["mask"] / total == pytest.approx(0.2, abs=0.03)
    assert shown["replaced"] / total == pytest.approx(0.15, abs=0.03)


def test_protected_symbols_are_never_masked() -> None:
    protected = Vocabulary(PAD, MASK, 0, 2, VOCABULARY.special, False)
    encoder = encoder_of()
    encoder.vocabulary = protected
    for _, inputs in model_inputs(encoder, Blocks([12] * 30), settings_of(mask_prob=0.6), "cpu"):
        assert not (inputs["masked"].tokens[:, 0] == MASK).any()
        assert (inputs["masked"].tokens == MASK).any()


def test_blocks_are_chosen_up_to_the_token_limit() -> None:
    sizes = np.array([10, 30, 20, 40, 10, 25])
    chosen = choose_blocks(sizes, 60, seed=1)
    assert 60 <= sizes[chosen].sum() < 60 + sizes[chosen[-1]]
    assert sorted(choose_blocks(sizes, 10**6, seed=1).tolist()) == list(range(6))


def test_lines_are_packed_within_documents(tmp_path: Path) -> None:
    encoder: Any = SimpleNamespace(
        vocabulary=VOCABULARY, encode_line=lambda line: list(map(int, line.split(" "))) if line else []
    )
    (tmp_path / "text.txt").write_text("10  11 \n12\n13 14 15\n\n16\n17 18 19 20 21 22\n23\n")
    blocks = TextBlocks(tmp_path / "text.txt", encoder, 6, 100)
    packed = [[0, 10, 11, 2, 12, 2], [0, 13, 14, 15, 2], [0, 16, 2], [0, 17, 18, 19, 20, 21], [0, 22, 2, 23, 2]]
    assert [block.tolist() for block in blocks] == packed and blocks.sizes.tolist() == [6, 5, 3, 6, 5]
    assert len(TextBlocks(tmp_path / "text.txt", encoder, 6, 3)) == 1, "reading ends after enough tokens"
