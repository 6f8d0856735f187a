"""The decoder's input: encoder states at their original positions, the mask embedding everywhere else (section 3)."""

from torch import Tensor

from fairseq_maelm.batch import Layout


def reassemble(visible: Tensor, mask_embedding: Tensor, layout: Layout) -> Tensor:
    """Return the encoder's states <float>[B, S, D] at their original positions, and mask embeddings elsewhere.

    Args:
        visible: <float>[B, S, D] states of the visible tokens.
        mask_embedding: <float>[D].
        layout: original positions.

    Returns:
        <float>[B, T, D]. Padding gets the mask embedding, which nothing reads.
    """
    batch, _, width = visible.shape
    slots = batch * layout["padded_length"]
    states = visible.reshape(-1, width)
    if layout["encoder_padded"] or len(states) != len(layout["decoder_rows"]):
        states = states.index_select(0, layout["decoder_rows"])
    # The embedding is in single precision even if the states are in half precision.
    full = mask_embedding.to(states.dtype).expand(slots, width).index_copy(0, layout["decoder_slots"], states)
    return full.view(batch, layout["padded_length"], width)
