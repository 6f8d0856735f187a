"""The sub-command ``maelm score``: sentences and minimal pairs scored by a masked language model."""

import argparse
import json
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from fairseq_maelm import options
from fairseq_maelm.files.atomic import read_json, write_json
from fairseq_maelm.files.prepared_folder import made_from, prepare_folder
from fairseq_maelm.modules.autocast import PRECISIONS
from fairseq_maelm.options import UsageError, existing_path
from fairseq_maelm.scoring import results
from fairseq_maelm.scoring.likelihood import METHODS, CheckpointScorer, Sentence, pseudo_log_likelihoods, refusal
from fairseq_maelm.scoring.reading import Item, input_files, read_items

logger = logging.getLogger(__name__)

AFTER_INTERRUPT = "the same command resumes"

_BEGUN, _PROGRESS = "scores.begun", "progress.json"
# Sentences that are computed and written together. Another number changes the last bits of the sums.
_BLOCK = 2048


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``maelm score``."""
    parser.description = (
        "Scores sentences by pseudo-log-likelihood: the sum of the log-probabilities, in nats, that a masked language "
        "model gives to each token when it is hidden. For minimal pairs it reports how often the good sentence scores "
        "higher; ties count half. The same command resumes an interrupted run."
    )
    parser.add_argument(
        "texts", nargs="+", type=existing_path, metavar="TEXTS",
        help="files of sentences, one per line, or files of pairs: .tsv (good sentence, tab, bad sentence), .jsonl "
        "with the fields sentence_good and sentence_bad (BLiMP), or a folder of .jsonl files",
    )  # fmt: skip
    options.add_checkpoint(parser, "pretrained checkpoint")
    options.add_vocabulary(parser)
    options.add_output(parser, "new folder for the scores")
    parser.add_argument(
        "--method", choices=METHODS, default=METHODS[0], help="tokens hidden together: each token alone, or with the "
        "rest of its word (Kauf and Ivanova, 2023)",
    )  # fmt: skip
    parser.add_argument(
        "--compare", type=existing_path, metavar="FOLDER", help="another model's --output for the same pairs; the "
        "difference between the models is reported with its 95 %% interval",
    )  # fmt: skip
    parser.add_argument(
        "--first", type=options.number(int, 1), metavar="N", help="score only the first N sentences or pairs of each "
        "file",
    )  # fmt: skip
    parser.add_argument("--precision", choices=PRECISIONS, default="fp32", help="precision of the computation")
    options.add_batch_tokens(parser, 4096)
    options.add_json(parser)
    options.add_device(parser)


def run(args: argparse.Namespace) -> None:
    """Score the sentences, and write the summary to standard output."""
    files = input_files(args.texts)
    items = read_items(files, args.first)
    if args.compare is not None and not items[0].side:
        raise UsageError("--compare needs pairs (.tsv, .jsonl): single sentences have no accuracy")
    others = None if args.compare is None else results.read_scores(args.compare)
    if others is not None:
        results.refuse_other_items(args.compare, others, items)
    scorer, sources = _open(args)
    sentences = _encode(scorer, items)
    origin = made_from(
        {name: getattr(args, name) for name in ("method", "first", "precision", "batch_tokens")},
        {**sources, "texts": files},
    )
    prepare_folder(
        args.output, results.KIND, origin, lambda result: _write(args, scorer, items, sentences, result), resumes=True
    )
    summary = results.summarize(results.read_scores(args.output), others)
    sys.stdout.write(json.dumps(summary) + "\n" if args.json else results.table(summary))


def _open(args: argparse.Namespace) -> tuple[CheckpointScorer, dict[str, Sequence[Path]]]:
    """Open the model, and return it with the files that determine its scores."""
    from fairseq_maelm.models import hub

    folder, data = str(args.checkpoint.parent), str((args.vocabulary or args.checkpoint.parent).absolute())
    interface = hub.load(folder, args.checkpoint.name, data, precision=args.precision).to(args.device)
    tokenizer = Path(hub.find_tokenizer(folder, data))
    return CheckpointScorer(interface), {"checkpoint": [args.checkpoint], "vocabulary": [tokenizer]}


def _write(
    args: argparse.Namespace,
    scorer: CheckpointScorer,
    items: Sequence[Item],
    sentences: Sequence[Sentence],
    result: Path,
) -> dict[str, Any]:
    """Score the sentences that an earlier run has not scored; unfinished scores are next to the result's folder."""
    begun, progress = result.parent / _BEGUN, result.parent / _PROGRESS
    if progress.exists() and begun.exists():
        state = read_json(progress)
        logger.info("resuming after %s of %s sentences", f"{state['done']:,}", f"{len(items):,}")
    else:
        begun.write_text(results.HEADER, encoding="utf-8")
        state = {"done": 0, "bytes": len(results.HEADER)}
    with (
        begun.open("r+b") as stream,
        tqdm(total=len(items), initial=state["done"], desc="scoring", unit=" sentences") as bar,
    ):
        # Drop the part of a block that a killed run has written.
        stream.truncate(state["bytes"])
        stream.seek(state["bytes"])
        for start in range(state["done"], len(items), _BLOCK):
            block = slice(start, start + _BLOCK)
            found = pseudo_log_likelihoods(scorer, sentences[block], args.method, args.batch_tokens)
            stream.write("".join(map(results.line_of, items[block], found)).encode("utf-8"))
            stream.flush()
            os.fsync(stream.fileno())
            write_json(progress, {"done": start + len(found), "bytes": stream.tell()})
            bar.update(len(found))
    os.replace(begun, result / results.SCORES_FILE)
    return {"sentences": len(items)}


def _encode(scorer: CheckpointScorer, items: Sequence[Item]) -> list[Sentence]:
    """Encode all sentences; raise a ValueError if one of them cannot be scored."""
    sentences = scorer.encode([item.text for item in items])
    for item, sentence in zip(items, sentences):
        if problem := refusal(scorer, sentence):
            raise ValueError(f"{item.place}: {problem}")
    return sentences
