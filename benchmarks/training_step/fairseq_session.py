"""Training by fairseq's own Trainer: ours, fairseq's stock RoBERTa, and the authors' fork."""

import logging
from pathlib import Path
from typing import Any

import torch

from training_step import authors_code
from training_step.clocks import Stages
from training_step.contenders import CHANGES, Contender, fairseq_options
from training_step.fairseq_data import Batches
from training_step.settings import Settings


class FairseqSession:
    """See ``training_step.session.Session``; the contender is of kind "ours", "fairseq" or "authors".

    ``data`` is a folder of `maelm prepare corpus` or fairseq-preprocess, and ``code`` the authors' repository, for
    their code only. ``extra`` are more words for the command line of ours.
    """

    def __init__(
        self,
        contender: Contender,
        settings: Settings,
        data: str,
        code: Path | None,
        extra: list[str],
        changes: list[str],
    ) -> None:
        self.contender = contender
        self.settings = settings
        self.code, self._flex = code, "flex" in changes
        self._graphs = "graphs" in changes
        # With its changes, on which the number of decoder layers depends.
        self.words = fairseq_options("+".join([contender.name, *changes]), settings, data)
        if contender.kind == "ours":
            self.words += [*extra, *(word for change in changes for word in CHANGES[change])]
        self.stages = Stages(settings.device)

    def build(self) -> dict[str, Any]:
        """Make data, model and trainer, as fairseq-train does."""
        config = self._configuration()
        from fairseq import tasks, utils
        from fairseq.trainer import Trainer

        task = tasks.setup_task(config.task)
        # Weights and dropout of every run are the same.
        utils.set_torch_seed(1)
        model = task.build_model(config.model)
        self.trainer = Trainer(config, task, model, task.build_criterion(config.criterion))
        sizes = self.use(self.settings)
        self._watch()
        parameters = sum(parameter.numel() for parameter in model.parameters())
        vocabulary = len(task.source_dictionary)
        return {**sizes, "vocabulary": vocabulary, "parameters": parameters, "command": self.words}

    def use(self, settings: Settings) -> dict[str, float]:
        """Make batches of another number of sequences for the same model; see ``Batches.sizes``."""
        from fairseq import utils

        task = self.trainer.task
        self.settings = settings
        self.batches = Batches(self.trainer.get_train_iterator(1), task.dataset("train"), settings)
        self.trainer.begin_epoch(1)
        sizes = self.batches.sizes(self._unpredicted(task))
        if settings.device == "cuda":
            self.batches.convert(utils.move_to_cuda)
        return sizes

    def _configuration(self) -> Any:
        if self.contender.kind == "authors":
            if self.code is None:
                raise ValueError("the authors' code is not part of this project: give its folder with --authors-code")
            authors_code.import_fork(self.code)
        elif self.contender.kind == "ours":
            import fairseq_maelm

            fairseq_maelm.register()
            if self._flex:
                from training_step import flex

                flex.replace_sdpa(self.settings.device)
            _set_compilation(self._graphs)
        # fairseq says much at every start.
        logging.getLogger("fairseq").setLevel(logging.WARNING)
        if self.contender.kind == "ours":
            self.words += ours_defaults(self.words, self.settings.precision)
        elif self.settings.precision != "fp32":
            self.words.append(f"--{self.settings.precision}")
        config = configuration(self.words, self.code if self.contender.kind == "authors" else None)
        if self.contender.kind == "ours" and self.settings.device == "cpu":
            from fairseq_maelm.launch.memory import choose_allocation

            choose_allocation(config)  # as fairseq-train does when it looks for a checkpoint
        return config

    def load(self) -> Any:
        """Return the next batch of the epoch's iterator."""
        return self.batches.load()

    def take_prepared(self) -> Any:
        """Return the next of the batches in memory."""
        return self.batches.take_prepared()

    def step(self, batch: Any) -> bool:
        """Make one update by the trainer, logged as fairseq-train logs it."""
        from fairseq.logging import metrics

        if self._graphs:
            torch.compiler.cudagraph_mark_step_begin()
        with metrics.aggregate("train_inner"):
            return self.trainer.train_step([batch], raise_oom=True) is not None

    def _unpredicted(self, task: Any) -> int | None:
        if self.contender.kind == "ours":
            return None
        # The authors' targets have <mask> where nothing is to be predicted.
        return int(task.mask_idx if self.contender.kind == "authors" else task.source_dictionary.pad())

    def _watch(self) -> None:
        stages, trainer = self.stages, self.trainer
        model, criterion = trainer.get_model(), trainer.get_criterion()
        stages.watch("encoder forward", getattr(model.encoder, "sentence_encoder", model.encoder))
        decoder = getattr(model, "gen_decoder", getattr(model, "decoder", None))
        stages.watch("decoder forward", getattr(decoder, "sentence_encoder", decoder))
        criterion.forward = stages.timed("forward", criterion.forward)
        trainer.optimizer.backward = stages.timed("backward", trainer.optimizer.backward)
        trainer.optimizer.multiply_grads = stages.timed("scale and clip", trainer.optimizer.multiply_grads)
        trainer.clip_grad_norm = stages.timed("scale and clip", trainer.clip_grad_norm)
        trainer.task.optimizer_step = stages.timed("optimizer", trainer.task.optimizer_step)


def _set_compilation(graphs: bool) -> None:
    """Let ``--compile`` record CUDA graphs of layers, for batches of one shape, or compile as in training."""
    from fairseq_maelm.modules.layer_modes import Layer

    plain = torch.nn.Module.compile
    recorded = {"mode": "reduce-overhead", "dynamic": False}
    Layer.compile = (lambda layer, **_: plain(layer, **recorded)) if graphs else plain  # type: ignore[method-assign]


def configuration(words: list[str], fork: Path | None = None) -> Any:
    """Return the configuration that ``fairseq-train`` makes of a command line."""
    from fairseq import options
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf

    args = options.parse_args_and_arch(options.get_training_parser(), words)
    config = convert_namespace_to_omegaconf(args) if fork is None else authors_code.configuration(fork, args)
    # fairseq takes --bf16 for a sign of a TPU and then cannot train anywhere else; the authors' criterion keeps a copy.
    config.common.tpu = False
    if "tpu" in config.criterion:
        config.criterion.tpu = False
    return config


def ours_defaults(words: list[str], precision: str) -> list[str]:
    """Return our options that the user did not set: the fused optimizer and the precision."""
    from fairseq.models import MODEL_DATACLASS_REGISTRY
    from fairseq.optim import OPTIMIZER_REGISTRY

    added = []
    if "--optimizer" not in words:
        added += ["--optimizer", "fused_adamw" if "fused_adamw" in OPTIMIZER_REGISTRY else "adam"]
    if "--precision" not in words and precision != "fp32":
        own = "precision" in MODEL_DATACLASS_REGISTRY["maelm"].__dataclass_fields__
        # In fp16 losses have to be scaled, which is fairseq's part.
        added += ["--precision", precision] if own and precision == "bf16" else [f"--{precision}"]
    return added
