"""The command ``maelm prepare glue``."""

import argparse
import logging
import sys

from fairseq_maelm.checkpoints.locate import add_vocabulary
from fairseq_maelm.finetuning.sentences.glue import TASKS, GlueSettings, prepare_task
from fairseq_maelm.options import add_allow_unknown, add_output, add_settings, settings_of
from fairseq_maelm.text.vocabulary import vocabulary_files

logger = logging.getLogger(__name__)

AFTER_INTERRUPT = "the same command prepares the remaining tasks"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``maelm prepare glue``."""
    parser.description = (
        "Checks GLUE's files and encodes each task into a folder for fine-tuning. Tasks that are already prepared from "
        "the same files are kept."
    )
    add_vocabulary(parser, required=True)
    add_allow_unknown(parser)
    add_output(parser, "folder for all tasks")
    add_settings(parser, GlueSettings)


def run(args: argparse.Namespace) -> None:
    """Prepare the tasks and print the paths of their folders."""
    from fairseq_maelm.text.dictionary import load_dictionary  # takes seconds

    settings = settings_of(GlueSettings, args)
    # Refuse a dictionary and a tokenizer that do not belong together before any file is read.
    vocabulary_files(args.vocabulary)
    load_dictionary(str(args.vocabulary))
    tasks = settings.tasks or tuple(task for task in TASKS if (settings.glue / task).is_dir())
    if not tasks:
        raise FileNotFoundError(f"{settings.glue} has none of the folders {', '.join(TASKS)}")
    missing = [task for task in TASKS if task not in tasks]
    if missing and not settings.tasks:
        logger.warning("%s has no %s", settings.glue, ", ".join(missing))
    for task in tasks:
        manifest = prepare_task(task, settings, args.vocabulary, args.output / task, args.allow_unknown)
        for split, facts in manifest["splits"].items():
            logger.info(
                "%s %s: %s examples, %s truncated", task, split, f"{facts['examples']:,}", f"{facts['truncated']:,}"
            )
        sys.stdout.write(f"{args.output / task}\n")
