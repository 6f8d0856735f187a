"""The configuration of MAE-LM models with ModernBERT's layers for Hugging Face transformers."""

from typing import Any

from transformers import PretrainedConfig


class MaelmModernConfig(PretrainedConfig):
    """ModernBERT's sizes under its names, and the layers that predict masks.

    Args:
        vocab_size: number of symbols V.
        hidden_size: width D.
        intermediate_size: width of the feed-forward networks.
        num_hidden_layers: number of layers L.
        num_attention_heads: number of heads H.
        max_position_embeddings: length of the longest sequence.
        norm_eps: epsilon of all LayerNorms.
        layer_types: "full_attention" or "sliding_attention" for each layer; by default all are full.
        local_attention: window of sliding attention: a token reads tokens at most half a window away.
        global_rope_theta: rotary base of layers with full attention.
        local_rope_theta: rotary base of layers with sliding attention.
        embedding_dropout: dropout of embeddings.
        mlp_dropout: dropout of the outputs of attention and of feed-forward networks.
        attention_dropout: dropout of attention weights.
        initializer_range: standard deviation for initializing new weights.
        mask_token_id: id of the mask symbol, which no visible token reads.
        decoder_layers: number n of layers that masks pass: spread evenly over the encoder, up to its last layer.
        **kwargs: options of ``PretrainedConfig``.
    """

    model_type = "maelm-modern"

    def __init__(
        self,
        vocab_size: int = 50_368,
        hidden_size: int = 768,
        intermediate_size: int = 1152,
        num_hidden_layers: int = 22,
        num_attention_heads: int = 12,
        max_position_embeddings: int = 512,
        norm_eps: float = 1e-5,
        layer_types: list[str] | None = None,
        local_attention: int = 128,
        global_rope_theta: float = 10_000.0,
        local_rope_theta: float = 10_000.0,
        embedding_dropout: float = 0.0,
        mlp_dropout: float = 0.0,
        attention_dropout: float = 0.0,
        initializer_range: float = 0.02,
        mask_token_id: int | None = None,
        decoder_layers: int = 1,
        **kwargs: Any,
    ) -> None:
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.intermediate_size = intermediate_size
        self.num_hidden_layers = num_hidden_layers
        self.num_attention_heads = num_attention_heads
        self.max_position_embeddings = max_position_embeddings
        self.norm_eps = norm_eps
        self.layer_types = layer_types or ["full_attention"] * num_hidden_layers
        self.local_attention = local_attention
        self.global_rope_theta = global_rope_theta
        self.local_rope_theta = local_rope_theta
        self.embedding_dropout = embedding_dropout
        self.mlp_dropout = mlp_dropout
        self.attention_dropout = attention_dropout
        self.initializer_range = initializer_range
        self.mask_token_id = mask_token_id
        self.decoder_layers = decoder_layers
        super().__init__(**{"pad_token_id": 1, "tie_word_embeddings": True, **kwargs})
