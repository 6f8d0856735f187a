"""MAE-LM models with ModernBERT's layers and parameter names, whose own layers predict the masks.

Shapes: B sequences, T tokens, D width, H heads, V vocabulary.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput, MaskedLMOutput

from .configuration_maelm_modern import MaelmModernConfig


class MaelmModernLayer(nn.Module):
    """ModernBERT's layer: LayerNorm before attention and before the gated feed-forward network, no biases."""

    def __init__(self, config: MaelmModernConfig, number: int) -> None:
        super().__init__()
        width, inner = config.hidden_size, config.intermediate_size
        self.kind, self.heads = config.layer_types[number], config.num_attention_heads
        self.dropout, self.attention_dropout = config.mlp_dropout, config.attention_dropout
        # The embeddings have a LayerNorm already.
        self.attn_norm = _norm(config) if number else nn.Identity()
        self.attn = _linears(Wqkv=(width, 3 * width), Wo=(width, width))
        self.mlp_norm = _norm(config)
        self.mlp = _linears(Wi=(width, 2 * inner), Wo=(inner, width))

    def forward(self, states: Tensor, readable: dict[str, Tensor], turns: dict[str, tuple[Tensor, Tensor]]) -> Tensor:
        """Transform states <float>[B, T, D].

        ``readable`` has, for each kind of layer, the keys that a query reads, <bool>[B, 1, T, T]; ``turns`` the cosines
        and sines <float>[T, D / H / 2] of the rotary positions.
        """
        packed = self.attn["Wqkv"](self.attn_norm(states)).unflatten(-1, (3, self.heads, -1))
        query, key, value = packed.permute(2, 0, 3, 1, 4)
        query, key = (_rotate(each, *turns[self.kind]) for each in (query, key))
        rate = self.attention_dropout if self.training else 0.0
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=readable[self.kind], dropout_p=rate)
        attended = self.attn["Wo"](attended.transpose(1, 2).flatten(2))
        states = states + F.dropout(attended, self.dropout, self.training)
        inner, gate = self.mlp["Wi"](self.mlp_norm(states)).chunk(2, dim=-1)
        return states + F.dropout(self.mlp["Wo"](F.gelu(inner) * gate), self.dropout, self.training)


def _norm(config: MaelmModernConfig) -> nn.LayerNorm:
    return nn.LayerNorm(config.hidden_size, eps=config.norm_eps, bias=False)


def _linears(**sizes: tuple[int, int]) -> nn.ModuleDict:
    return nn.ModuleDict({name: nn.Linear(*size, bias=False) for name, size in sizes.items()})


def _rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate queries or keys <float>[B, H, T, D / H]; elements i and i + D / H / 2 form a pair."""
    first, second = heads.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


class MaelmModernPreTrainedModel(PreTrainedModel):
    """The base class, with loading, saving and weight initialization."""

    config_class = MaelmModernConfig
    base_model_prefix = "model"
    _supports_sdpa = True

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=self.config.initializer_range)
        elif isinstance(module, nn.LayerNorm):
            nn.init.ones_(module.weight)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)


class MaelmModernModel(MaelmModernPreTrainedModel):
    """The encoder, which is ModernBERT's."""

    def __init__(self, config: MaelmModernConfig) -> None:
        super().__init__(config)
        table = nn.Embedding(config.vocab_size, config.hidden_size, config.pad_token_id)
        self.embeddings = nn.ModuleDict({"tok_embeddings": table, "norm": _norm(config)})
        self.layers = nn.ModuleList(MaelmModernLayer(config, number) for number in range(config.num_hidden_layers))
        self.final_norm = _norm(config)
        depth, count = config.num_hidden_layers, config.decoder_layers
        self.with_masks = [math.ceil(number * depth / count) - 1 for number in range(1, count + 1)]
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        """Return the token embeddings."""
        return self.embeddings["tok_embeddings"]

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the token embeddings."""
        self.embeddings["tok_embeddings"] = value

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> tuple | BaseModelOutput:
        """Encode tokens <int64>[B, T]; a mask is a token like any other.

        ``attention_mask`` <int64>[B, T] is 1 at tokens and 0 at padding, by default derived from ``input_ids``.
        """
        all_states = self.encode(input_ids, attention_mask, torch.zeros_like(input_ids, dtype=torch.bool))
        wanted = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        output = BaseModelOutput(all_states[-1], tuple(all_states) if wanted else None)
        return output if (self.config.return_dict if return_dict is None else return_dict) else output.to_tuple()

    def encode(self, input_ids: Tensor, attention_mask: Tensor | None, masks: Tensor) -> list[Tensor]:
        """Return the states <float>[B, T, D] before and after each layer, the last after the final LayerNorm.

        Tokens do not read ``masks`` <bool>[B, T], which read all tokens in the layers ``with_masks`` and skip the rest.
        """
        inside = input_ids.ne(self.config.pad_token_id) if attention_mask is None else attention_mask.bool()
        states = self.embeddings["norm"](self.embeddings["tok_embeddings"](input_ids))
        states = F.dropout(states, self.config.embedding_dropout, self.training)
        readable, turns = self._readable(inside, masks), self._turns(states)
        all_states = [states]
        for number, layer in enumerate(self.layers):
            after = layer(states, readable, turns)
            states = after if number in self.with_masks else torch.where(masks[..., None], states, after)
            all_states.append(states)
        all_states[-1] = self.final_norm(states)
        return all_states

    def _readable(self, inside: Tensor, masks: Tensor) -> dict[str, Tensor]:
        places = torch.arange(inside.shape[1], device=inside.device)
        distances = (places[:, None] - places[None, :]).abs()
        readable = inside[:, None, :] & (masks[:, :, None] | ~masks[:, None, :])
        # Padding reads itself: without a key, its states would be NaN.
        full = (readable | (distances == 0))[:, None]
        return {"full_attention": full, "sliding_attention": full & (distances <= self.config.local_attention // 2)}

    def _turns(self, states: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        """Return the cosines and sines of all positions, computed in single precision, in the dtype of the states."""
        length, device = states.shape[1], states.device
        if not torch.compiler.is_compiling() and length > self.config.max_position_embeddings:
            most = self.config.max_position_embeddings
            raise ValueError(f"{length} tokens are more than the model's {most} positions: truncate texts")
        width = self.config.hidden_size // self.config.num_attention_heads
        exponents = torch.arange(0, width, 2, dtype=torch.float32, device=device) / width
        places = torch.arange(length, dtype=torch.float32, device=device)
        bases = {"full_attention": self.config.global_rope_theta, "sliding_attention": self.config.local_rope_theta}
        angles = {kind: places[:, None] * (1.0 / base**exponents) for kind, base in bases.items()}
        return {kind: (angle.cos().to(states.dtype), angle.sin().to(states.dtype)) for kind, angle in angles.items()}


class MaelmModernForMaskedLM(MaelmModernPreTrainedModel):
    """Masked token prediction as in pretraining: by layers of the encoder, without masks in its input.

    Raises:
        ValueError: the configuration has no ``mask_token_id``.
    """

    _tied_weights_keys = {"decoder.weight": "model.embeddings.tok_embeddings.weight"}

    def __init__(self, config: MaelmModernConfig) -> None:
        if config.mask_token_id is None:
            raise ValueError("mask_token_id is not set: give MaelmModernConfig the id of the mask symbol")
        super().__init__(config)
        self.model = MaelmModernModel(config)
        dense = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.head = nn.ModuleDict({"dense": dense, "norm": _norm(config)})
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size)
        self.post_init()

    def get_output_embeddings(self) -> nn.Module:
        """Return the last linear layer, whose matrix is the token embeddings."""
        return self.decoder

    def set_output_embeddings(self, new_embeddings: nn.Linear) -> None:
        """Replace the last linear layer."""
        self.decoder = new_embeddings

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> tuple | MaskedLMOutput:
        """Compute logits <float>[B, T, V] at every position of tokens <int64>[B, T] with masks.

        ``attention_mask`` <int64>[B, T] is 1 at tokens and 0 at padding, by default derived from ``input_ids``.
        ``labels`` <int64>[B, T] are the original tokens, -100 where no loss is computed.
        """
        all_states = self.model.encode(input_ids, attention_mask, input_ids == self.config.mask_token_id)
        logits = self.decoder(self.head["norm"](F.gelu(self.head["dense"](all_states[-1]))))
        loss = None if labels is None else F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        wanted = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        output = MaskedLMOutput(loss=loss, logits=logits, hidden_states=tuple(all_states) if wanted else None)
        return output if (self.config.return_dict if return_dict is None else return_dict) else output.to_tuple()
