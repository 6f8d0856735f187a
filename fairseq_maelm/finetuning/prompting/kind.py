"""Prompt tasks for the commands: names, options for ``maelm predict``."""

import argparse

from fairseq_maelm.finetuning.kinds import Kind


def _add_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("prompts: pretrained checkpoints, and those fine-tuned with a prompt")
    group.add_argument(
        "--prompt", metavar="PROMPT",
        help="prompt: a GLUE task, such as SST-2, or a .yaml or .json file (default: the checkpoint's "
        "prompt, if any)",
    )  # fmt: skip
    group.add_argument(
        "--several-pieces", action="store_true",
        help="allow label words of several pieces; a word's score is the mean log-probability of its pieces",
    )  # fmt: skip


KIND = Kind(("maelm_prompt", "maelm"), _add_options, accepts=("sentences",))
