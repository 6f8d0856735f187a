"""The sub-command ``maelm prepare glue``."""

import argparse
import logging
import sys

from fairseq_maelm.arguments import add_output, add_settings, add_verify, add_vocabulary, settings_of
from fairseq_maelm.finetuning.glue_layout import TASKS
from fairseq_maelm.finetuning.sentences.glue import GlueSettings, prepare_task
from fairseq_maelm.prepared_folder import verify_outputs
from fairseq_maelm.text.dictionary import load_dictionary
from fairseq_maelm.text.imported import vocabulary_files

AFTER_INTERRUPT = "the same command prepares the tasks that are left"

logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``maelm prepare glue``."""
    parser.description = (
        "Checks GLUE's files and encodes them into folders for the task maelm_sentences, one for each of GLUE's. "
        "Tasks that are already there, made from the same files, are kept."
    )
    add_vocabulary(parser, required=True)
    add_output(parser, "folder for all tasks")
    add_settings(parser, GlueSettings)
    add_verify(parser)


def run(args: argparse.Namespace) -> None:
    """Prepare the tasks and write their folders to standard output."""
    settings = settings_of(GlueSettings, args)
    # A dictionary and a tokenizer that do not belong together are refused before any file is read.
    vocabulary_files(args.vocabulary)
    load_dictionary(str(args.vocabulary))
    tasks = settings.tasks or tuple(task for task in TASKS if (settings.glue / task).is_dir())
    if not tasks:
        raise FileNotFoundError(f"{settings.glue} holds no folder named {', '.join(TASKS)}")
    missing = [task for task in TASKS if task not in tasks]
    if missing and not settings.tasks:
        logger.warning("%s has no %s", settings.glue, ", ".join(missing))
    for task in tasks:
        manifest = prepare_task(task, settings, args.vocabulary, args.output / task)
        for split, facts in manifest["splits"].items():
            logger.info(
                "%s %s: %s examples, %s truncated", task, split, f"{facts['examples']:,}", f"{facts['truncated']:,}"
            )
        if args.verify:
            verify_outputs(args.output / task)
        sys.stdout.write(f"{args.output / task}\n")
