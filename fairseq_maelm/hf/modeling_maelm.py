"""MAE-LM models for Hugging Face transformers: MPNet with other relative positions, and MAE-LM's masked prediction.

Exported folders contain copies of the files ``*_maelm.py``, so that ``trust_remote_code=True`` opens them without
fairseq or fairseq_maelm. Shapes are as in layers_maelm.py.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutputWithPooling, MaskedLMOutput
from transformers.models.mpnet.modeling_mpnet import (
    MPNetClassificationHead,
    MPNetEmbeddings,
    MPNetForQuestionAnswering,
    MPNetForSequenceClassification,
    MPNetForTokenClassification,
    MPNetPreTrainedModel,
)

from .configuration_maelm import MaelmConfig
from .layers_maelm import OFFSET, MaelmDecoder, MaelmEncoder, MaelmLMHead, hide


class MaelmPreTrainedModel(MPNetPreTrainedModel):
    """The base class, with loading, saving and weight initialization."""

    config_class = MaelmConfig
    base_model_prefix = "mpnet"
    supports_gradient_checkpointing = True
    _supports_sdpa = True

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, MaelmLMHead):
            nn.init.zeros_(module.bias)


class MaelmModel(MaelmPreTrainedModel):
    """The encoder; it has no pooler, because MAE-LM does not train one."""

    def __init__(self, config: MaelmConfig) -> None:
        super().__init__(config)
        self.embeddings = MPNetEmbeddings(config)
        self.encoder = MaelmEncoder(config)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        """Return the token embeddings."""
        return self.embeddings.word_embeddings

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the token embeddings."""
        self.embeddings.word_embeddings = value

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        head_mask: None = None,
        masks: Tensor | None = None,
    ) -> tuple | BaseModelOutputWithPooling:
        """Encode tokens <int64>[B, S], or their embeddings <float>[B, S, D].

        ``attention_mask`` <int64>[B, S] is 1 at tokens and 0 at padding, by default derived from ``input_ids``.
        ``position_ids`` <int64>[B, S] are positions in the original sequence plus 2, by default consecutive. Older
        versions of transformers pass ``head_mask=None``. ``masks`` <bool>[B, S] are tokens that the others do not read,
        and that pass only the layers which predict them.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give either input_ids or inputs_embeds")
        if attention_mask is None and input_ids is not None:
            attention_mask = input_ids.ne(self.config.pad_token_id)
        states = self.embeddings.word_embeddings(input_ids) if inputs_embeds is None else inputs_embeds
        length = states.shape[1]
        self.encoder.check_length(length)
        states = self.embeddings(input_ids=input_ids, position_ids=position_ids, inputs_embeds=states)
        places = torch.arange(length, device=states.device)[None, :] if position_ids is None else position_ids
        bias = self.encoder.position_bias(places)
        if attention_mask is not None and masks is not None:
            attention_mask = attention_mask.bool()[:, None] & (masks[:, :, None] | ~masks[:, None])
        if attention_mask is not None:
            bias = hide(bias, attention_mask, states.dtype)
        weights_wanted = self.config.output_attentions if output_attentions is None else output_attentions
        states_wanted = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        all_states, all_weights = self.encoder(states, bias, weights_wanted, masks)
        output = BaseModelOutputWithPooling(
            last_hidden_state=all_states[-1],
            hidden_states=tuple(all_states) if states_wanted else None,
            attentions=tuple(all_weights) if weights_wanted else None,
        )
        if self.config.return_dict if return_dict is None else return_dict:
            return output
        # None is the pooled output, which MPNet's heads skip.
        return (output[0], None, *output.to_tuple()[1:])


class MaelmForMaskedLM(MaelmPreTrainedModel):
    """Masked token prediction as in pretraining, by default with masks dropped from the encoder's input.

    Raises:
        ValueError: the configuration has no ``mask_token_id``.
    """

    def __init__(self, config: MaelmConfig) -> None:
        if config.mask_token_id is None:
            raise ValueError("mask_token_id is not set: give MaelmConfig the id of the mask symbol")
        super().__init__(config)
        self.mpnet = MaelmModel(config)
        self.decoder = MaelmDecoder(config) if config.decoder_layers and config.decoder_attention == "self" else None
        self.lm_head = MaelmLMHead(config)
        self.post_init()

    def get_output_embeddings(self) -> None:
        """Return None: the head reads the token embeddings directly, so there is nothing to tie."""
        return None

    def resize_token_embeddings(
        self, new_num_tokens: int | None = None, *arguments: Any, **options: Any
    ) -> nn.Embedding:
        """Resize the token embeddings, and the head's bias with zeros for new symbols; arguments as in transformers.

        Raises:
            ValueError: the new size would remove the mask symbol.
        """
        mask = self.config.mask_token_id
        if new_num_tokens is not None and new_num_tokens <= mask:
            raise ValueError(
                f"with {new_num_tokens} symbols there would be none for <mask>, whose id is {mask}: keep {mask + 1} "
                "or more"
            )
        embeddings = super().resize_token_embeddings(new_num_tokens, *arguments, **options)
        if len(embeddings.weight) != len(self.lm_head.bias):
            self.lm_head.resize(len(embeddings.weight))
        return embeddings

    def encode(self, input_ids: Tensor, inside: Tensor, **options: Any) -> tuple[Tensor, Tensor, Any]:
        """Encode the visible tokens of sequences <int64>[B, T], and scatter the states to their original positions.

        ``inside`` <bool>[B, T] is True at tokens and False at padding; ``options`` are the encoder's.

        Returns:
            states <float>[B, T, D] with the mask embedding at other positions, position ids <int64>[B, T], and the
            encoder's output. If layers of the encoder predict masks, the states at masks are theirs.
        """
        masked = input_ids == self.config.mask_token_id
        if self.config.decoder_attention == "shared":
            position_ids = (inside.cumsum(dim=1) - 1).clamp(min=0) + OFFSET
            output = self.mpnet(input_ids, inside, position_ids, return_dict=True, masks=masked, **options)
            return output.last_hidden_state, position_ids, output
        dropped = masked if self.config.masked_input == "dropped" else torch.zeros_like(masked)
        visible = inside & ~dropped
        position_ids = (inside.cumsum(dim=1) - 1).clamp(min=0) + OFFSET
        # Visible tokens move to the left and keep their order.
        order = visible.logical_not().to(torch.uint8).argsort(dim=1, stable=True)
        if not (torch.jit.is_tracing() or torch.compiler.is_compiling()):
            order = order[:, : max(1, int(visible.sum(dim=1).max()))]
        taken = visible.gather(1, order)
        places = position_ids.gather(1, order)
        if self.config.encoder_positions == "consecutive":
            places = (taken.cumsum(dim=1) - 1).clamp(min=0) + OFFSET
        output = self.mpnet(input_ids.gather(1, order), taken, places, return_dict=True, **options)
        returned = taken & ~masked.gather(1, order) if self.config.masked_input == "reset" else taken
        mask_embedding = self.mpnet.embeddings.word_embeddings.weight[self.config.mask_token_id]
        states = torch.where(returned[..., None], output.last_hidden_state, mask_embedding)
        full = mask_embedding.expand(*input_ids.shape, -1)
        return full.scatter(1, order[..., None].expand_as(states), states), position_ids, output

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> tuple | MaskedLMOutput:
        """Compute logits <float>[B, T, V] at every position of tokens <int64>[B, T] with masks.

        ``attention_mask`` <int64>[B, T] is 1 at tokens and 0 at padding, by default derived from ``input_ids``.
        ``labels`` <int64>[B, T] are the original tokens, -100 where no loss is computed. Attentions and hidden states
        are those of the encoder, for its input tokens only.
        """
        self.mpnet.encoder.check_length(input_ids.shape[1])
        inside = input_ids.ne(self.config.pad_token_id) if attention_mask is None else attention_mask.bool()
        wanted = {"output_attentions": output_attentions, "output_hidden_states": output_hidden_states}
        states, position_ids, encoded = self.encode(input_ids, inside, **wanted)
        embeddings = self.mpnet.embeddings
        if self.decoder is not None:
            states = self.decoder(states, position_ids, embeddings.position_embeddings, inside)
        logits = self.lm_head(states, embeddings.word_embeddings.weight)
        loss = None if labels is None else F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        output = MaskedLMOutput(
            loss=loss, logits=logits, hidden_states=encoded.hidden_states, attentions=encoded.attentions
        )
        return output if (self.config.return_dict if return_dict is None else return_dict) else output.to_tuple()


# The following constructors bypass those of MPNet's heads, which would build MPNet's encoder.


class MaelmForSequenceClassification(MaelmPreTrainedModel, MPNetForSequenceClassification):
    """Sequence classification or regression with MPNet's head (identical to RoBERTa's) on the first token."""

    def __init__(self, config: MaelmConfig) -> None:
        MPNetPreTrainedModel.__init__(self, config)
        self.num_labels = config.num_labels
        self.mpnet = MaelmModel(config)
        self.classifier = MPNetClassificationHead(config)
        self.post_init()


class MaelmForTokenClassification(MaelmPreTrainedModel, MPNetForTokenClassification):
    """Token classification with a linear head."""

    def __init__(self, config: MaelmConfig) -> None:
        MPNetPreTrainedModel.__init__(self, config)
        self.num_labels = config.num_labels
        self.mpnet = MaelmModel(config)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()


class MaelmForQuestionAnswering(MaelmPreTrainedModel, MPNetForQuestionAnswering):
    """Extractive question answering with a linear head for the answer's start and end."""

    def __init__(self, config: MaelmConfig) -> None:
        MPNetPreTrainedModel.__init__(self, config)
        self.num_labels = config.num_labels
        self.mpnet = MaelmModel(config)
        self.qa_outputs = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()
