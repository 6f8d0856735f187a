"""Random parameters for the method in one file."""

import math

import torch
from maelm_in_one_file import Config, State
from torch import Tensor


def random_state(
    config: Config,
    vocabulary_size: int,
    width: int,
    ffn: int,
    max_positions: int,
    seed: int,
    dtype: torch.dtype = torch.float64,
    share_decoder_positions: bool = False,
) -> State:
    """Random parameters under the names that the package's state dict has.

    Nothing is left at 0 or 1 and nothing is small: every parameter, the biases and the relative table included,
    moves the output visibly, so that no mistake hides behind an initialization.
    """
    shapes: dict[str, tuple[int, ...]] = {
        "encoder.embed_tokens.weight": (vocabulary_size, width),
        "encoder.embed_positions.weight": (max_positions, width),
        "lm_head.dense.weight": (width, width),
        "lm_head.dense.bias": (width,),
        "lm_head.bias": (vocabulary_size,),
    }
    norms = ["encoder.layernorm_embedding", "lm_head.layer_norm"]
    if config.bucket is not None:
        shapes["encoder.relative_attention_bias.weight"] = (config.relative_num_buckets, config.encoder_attention_heads)
    if config.decoder_layers > 0:
        norms.append("decoder.layernorm_embedding")
        if not share_decoder_positions:
            shapes["decoder.embed_positions.weight"] = (max_positions, width)
    for stack, layers in (("encoder", config.encoder_layers), ("decoder", config.decoder_layers)):
        for name in (f"{stack}.layers.{layer}" for layer in range(layers)):
            for leaf, out_width, in_width in (
                ("self_attn.qkv_proj", 3 * width, width),
                ("self_attn.out_proj", width, width),
                ("fc1", ffn, width),
                ("fc2", width, ffn),
            ):
                shapes[f"{name}.{leaf}.weight"] = (out_width, in_width)
                shapes[f"{name}.{leaf}.bias"] = (out_width,)
            norms += [f"{name}.self_attn_layer_norm", f"{name}.final_layer_norm"]
    return _draw(shapes, norms, width, seed, dtype)


def _draw(shapes: dict[str, tuple[int, ...]], norms: list[str], width: int, seed: int, dtype: torch.dtype) -> State:
    generator = torch.Generator().manual_seed(seed)

    def normal(shape: tuple[int, ...], deviation: float) -> Tensor:
        # Drawn in float64 whatever the dtype: the float32 and the float64 state of one seed are then the same numbers.
        return (torch.randn(shape, generator=generator, dtype=torch.float64) * deviation).to(dtype)

    state = {}
    for name, shape in shapes.items():
        if "relative" in name:
            state[name] = normal(shape, 1.0)
        elif "embed" in name:
            state[name] = normal(shape, 0.5)
        elif len(shape) == 1:
            state[name] = normal(shape, 0.2)
        else:
            # 1 / sqrt(fan-in) keeps the size of the activations through the product.
            state[name] = normal(shape, 1 / math.sqrt(shape[1]))
    for name in norms:
        state[f"{name}.weight"] = 1 + normal((width,), 0.2)
        state[f"{name}.bias"] = normal((width,), 0.2)
    return state
