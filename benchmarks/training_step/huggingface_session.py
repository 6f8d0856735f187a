"""Hugging Face's ModernBERT with a plain training loop: autocast, clipping, torch's fused AdamW."""

from contextlib import nullcontext
from typing import Any

import torch
from fairseq import tasks
from fairseq.data import Dictionary

from training_step.clocks import Stages
from training_step.contenders import CONTENDERS, WINDOW, Contender, fairseq_options, feed_forward_width
from training_step.fairseq_data import Batches
from training_step.fairseq_session import configuration
from training_step.settings import Settings

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_IGNORED = -100  # label of positions that are not predicted


def build_model(settings: Settings, vocabulary: int, pad: int, local: bool) -> torch.nn.Module:
    """Return a ModernBERT with random weights, with or without local attention."""
    from fairseq_maelm.files.optional_imports import import_transformers

    transformers = import_transformers()
    config = transformers.ModernBertConfig(
        vocab_size=vocabulary,
        hidden_size=settings.width,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        pad_token_id=pad,
        bos_token_id=0,
        eos_token_id=2,
        intermediate_size=feed_forward_width(CONTENDERS["modernbert"], settings),
        local_attention=WINDOW,
        global_attn_every_n_layers=3 if local else 1,
        max_position_embeddings=settings.length,
        embedding_dropout=settings.dropout,
        mlp_dropout=settings.dropout,
        attention_dropout=settings.dropout,
        cls_token_id=0,
        sep_token_id=2,
        sparse_prediction=True,
        sparse_pred_ignore_index=_IGNORED,
    )
    return transformers.ModernBertForMaskedLM(config)


class HuggingFaceSession:
    """See ``training_step.session.Session``; the contender is of kind "huggingface".

    Its batches are those of fairseq's stock task, with its masks; ``data`` is a folder of `maelm prepare corpus` or
    fairseq-preprocess. ``changes`` may have "compile" and "local".
    """

    def __init__(self, contender: Contender, settings: Settings, data: str, changes: list[str]) -> None:
        self.contender = contender
        self.settings = settings
        self.compiled, self.local = "compile" in changes, "local" in changes
        self.stages = Stages(settings.device)
        self._data = data

    def build(self) -> dict[str, Any]:
        """Make data, model and optimizer."""
        self.batches, dictionary = stock_batches(self.settings, self._data)
        self._pad, vocabulary = dictionary.pad(), len(dictionary)
        sizes = self.batches.sizes(self._pad)
        self.batches.convert(self._labeled)
        torch.manual_seed(1)
        model = build_model(self.settings, vocabulary, self._pad, self.local)
        self.model = model.to(self.settings.device).train()
        if self.compiled:
            # Timers inside would break the graph.
            self._run = torch.compile(self.model)
        else:
            self.stages.watch("encoder forward", self.model.base_model)
            self._run = self.model
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-6, weight_decay=0.01, fused=True
        )
        self.scaler = torch.amp.GradScaler(
            self.settings.device, init_scale=128.0, enabled=self.settings.precision == "fp16"
        )
        parameters = sum(parameter.numel() for parameter in self.model.parameters())
        name = type(self.model).__name__
        return {**sizes, "vocabulary": vocabulary, "parameters": parameters, "command": [name]}

    def _labeled(self, batch: Any) -> dict[str, torch.Tensor]:
        labels = batch["target"].masked_fill(batch["target"] == self._pad, _IGNORED)
        # No attention mask: there is no padding, and a mask would keep torch from its fastest attention.
        named = {"input_ids": batch["net_input"]["src_tokens"], "labels": labels}
        return {name: tensor.to(self.settings.device, non_blocking=True) for name, tensor in named.items()}

    def load(self) -> Any:
        """Return the next batch of the stock task in the form that these models take."""
        return self._labeled(self.batches.load())

    def take_prepared(self) -> Any:
        """Return the next of the batches in memory."""
        return self.batches.take_prepared()

    def step(self, batch: Any) -> bool:
        """Forward, backward, clip, update."""
        settings, stages = self.settings, self.stages
        self.optimizer.zero_grad(set_to_none=True)
        autocast = nullcontext()
        if settings.precision != "fp32":
            autocast = torch.autocast(settings.device, _DTYPES[settings.precision])
        stages.start("forward")
        with autocast:
            loss = self._run(**batch).loss
        stages.end("forward")
        stages.timed("backward", self.scaler.scale(loss).backward)()
        stages.timed("scale and clip", self._clip)()
        stages.timed("optimizer", self._update)()
        return True

    def _clip(self) -> None:
        self.scaler.unscale_(self.optimizer)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 2.0)

    def _update(self) -> None:
        self.scaler.step(self.optimizer)
        self.scaler.update()


def stock_batches(settings: Settings, data: str) -> tuple[Batches, Dictionary]:
    """Return the batches of fairseq's stock task masked_lm, and its vocabulary."""
    config = configuration(fairseq_options("roberta", settings, data))
    task = tasks.setup_task(config.task)
    task.load_dataset("train")
    iterator = task.get_batch_iterator(
        dataset=task.dataset("train"),
        max_sentences=settings.sequences,
        num_workers=settings.num_workers,
        data_buffer_size=config.dataset.data_buffer_size,
        seed=config.common.seed,
    )
    return Batches(iterator, task.dataset("train"), settings), task.source_dictionary
