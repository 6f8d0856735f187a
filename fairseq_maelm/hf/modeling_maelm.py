"""MAE-LM models for Hugging Face transformers: MPNet with other relative positions.

Exported folders contain copies of the files ``*_maelm.py``, so that ``trust_remote_code=True`` opens them without
fairseq or fairseq_maelm. Shapes are as in layers_maelm.py.
"""

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutputWithPooling
from transformers.models.mpnet.modeling_mpnet import (
    MPNetClassificationHead,
    MPNetEmbeddings,
    MPNetForQuestionAnswering,
    MPNetForSequenceClassification,
    MPNetForTokenClassification,
    MPNetPreTrainedModel,
)

from .configuration_maelm import MaelmConfig
from .layers_maelm import MaelmEncoder, hide


class MaelmPreTrainedModel(MPNetPreTrainedModel):
    """The base class, with loading, saving and weight initialization."""

    config_class = MaelmConfig
    base_model_prefix = "mpnet"
    supports_gradient_checkpointing = True
    _supports_sdpa = True


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
    ) -> tuple | BaseModelOutputWithPooling:
        """Encode tokens <int64>[B, S], or their embeddings <float>[B, S, D].

        ``attention_mask`` <int64>[B, S] is 1 at tokens and 0 at padding, by default derived from ``input_ids``.
        ``position_ids`` <int64>[B, S] are positions in the original sequence plus 2, by default consecutive. Older
        versions of transformers pass ``head_mask=None``.
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
        if attention_mask is not None:
            bias = hide(bias, attention_mask, states.dtype)
        weights_wanted = self.config.output_attentions if output_attentions is None else output_attentions
        states_wanted = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        all_states, all_weights = self.encoder(states, bias, weights_wanted)
        output = BaseModelOutputWithPooling(
            last_hidden_state=all_states[-1],
            hidden_states=tuple(all_states) if states_wanted else None,
            attentions=tuple(all_weights) if weights_wanted else None,
        )
        if self.config.return_dict if return_dict is None else return_dict:
            return output
        # None is the pooled output, which MPNet's heads skip.
        return (output[0], None, *output.to_tuple()[1:])


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
