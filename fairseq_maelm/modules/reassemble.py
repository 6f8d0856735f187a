"""The decoder's input: encoder states at their original positions, the mask embedding everywhere else (section 3)."""

from torch import Tensor

from fairseq_maelm.batch import Layout


def reassemble(visible: Tensor, mask_embedding: Tensor, layout: Layout) -> Tensor:
    """Put the encoder's states <float>[B, S, D] back among the masked positions: <float>[B, T, D].

    Padding holds the mask embedding <float>[D] too; nothing reads it.
    """
    batch, _, width = visible.shape
    slots = batch * layout["full_length"]
    states = visible.reshape(-1, width)
    if layout["encoder_padded"] or len(states) != len(layout["visible_rows"]):
        states = states.index_select(0, layout["visible_rows"])
    # A weight is in single precision where states are in half.
    full = mask_embedding.to(states.dtype).expand(slots, width).index_copy(0, layout["visible_slots"], states)
    return full.view(batch, layout["full_length"], width)
