"""The sub-command ``maelm embed``: embeddings of a file of texts, written to a numpy file step by step."""

import argparse
import itertools
import logging
import os
import sys
from pathlib import Path

import numpy as np
from tqdm import tqdm

from fairseq_maelm.arguments import (
    UsageError,
    add_batch_tokens,
    add_checkpoint,
    add_device,
    add_output,
    add_vocabulary,
    existing_path,
    number,
)
from fairseq_maelm.files import read_json, write_json
from fairseq_maelm.finetuning.retrieval.hub import EmbeddingSettings, embed, embedding_settings
from fairseq_maelm.finetuning.retrieval.pooling import POOLINGS, SIMILARITIES
from fairseq_maelm.finetuning.retrieval.prepared import write_identifiers
from fairseq_maelm.finetuning.retrieval.reading import TextRecord, read_texts
from fairseq_maelm.finetuning.retrieval.search import EMBEDDINGS, IDENTIFIERS
from fairseq_maelm.models import hub
from fairseq_maelm.modules.autocast import PRECISIONS
from fairseq_maelm.prepared_folder import made_from, prepare_folder

logger = logging.getLogger(__name__)

AFTER_INTERRUPT = "the same command resumes"

_PROGRESS = "progress.json"
# Number of texts that are embedded and saved at a time. It decides which texts are batched together, and so affects the
# last bits of the result; a resumed run must write the same file.
_WINDOW = 4096


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``maelm embed``."""
    parser.description = (
        "Embeds texts with the encoder of a checkpoint. The result is a .npy file with a row for each text, in the "
        "file's order. The same command resumes an interrupted run."
    )
    parser.add_argument(
        "texts", type=existing_path, metavar="TEXTS",
        help="file of texts: .jsonl with _id, text and optionally title (BEIR), or one text per line",
    )  # fmt: skip
    add_checkpoint(parser, "checkpoint of retrieval, or of any other task")
    add_vocabulary(parser)
    add_output(parser, "new folder for the embeddings")
    group = parser.add_argument_group("settings (default: the checkpoint's, or mean, cosine and all positions)")
    group.add_argument("--pooling", choices=POOLINGS, help="mean of the tokens' states, or state of the first token")
    group.add_argument(
        "--similarity", choices=SIMILARITIES, help="similarity measure; with cosine, embeddings are scaled to length 1"
    )
    group.add_argument(
        "--max-length",
        type=number(int, 3),
        metavar="N",
        help="maximum number of tokens in a text; longer texts are truncated",
    )
    parser.add_argument("--dtype", choices=("float32", "float16"), default="float32", help="data type of the file")
    parser.add_argument("--precision", choices=PRECISIONS, default="fp32", help="precision of the model")
    parser.add_argument("--allow-empty", action="store_true", help="accept empty texts")
    add_batch_tokens(parser)
    add_device(parser)


def run(args: argparse.Namespace) -> None:
    """Embed all texts of a file and write the folder's name to standard output."""
    folder, data = str(args.checkpoint.parent), str((args.vocabulary or args.checkpoint.parent).absolute())
    interface = hub.load(folder, args.checkpoint.name, data, precision=args.precision).to(args.device)
    try:
        settings = embedding_settings(
            interface, pooling=args.pooling, similarity=args.similarity, max_length=args.max_length
        )
    except ValueError as error:
        raise UsageError(str(error)) from error
    names = ("dtype", "precision", "batch_tokens")
    tokenizer = Path(hub.find_tokenizer(folder, data))
    origin = made_from(
        {**settings._asdict(), **{name: getattr(args, name) for name in names}},
        {"checkpoint": [args.checkpoint], "texts": [args.texts], "vocabulary": [tokenizer]},
    )
    prepare_folder(
        args.output, "embeddings", origin, lambda result: _write(args, interface, settings, result), resumes=True
    )
    sys.stdout.write(f"{args.output}\n")


def _write(
    args: argparse.Namespace, interface: hub.MaelmHubInterface, settings: EmbeddingSettings, result: Path
) -> dict[str, int]:
    """Embed the texts that an earlier run has not embedded; the unfinished file is next to the result's folder."""
    identifiers = [record.identifier for record in read_texts(args.texts, args.allow_empty)]
    if not identifiers:
        raise ValueError(f"{args.texts} has no texts")
    shape = (len(identifiers), int(interface.model.encoder.embed_tokens.weight.shape[1]))
    begun, progress = result.parent / EMBEDDINGS, result.parent / _PROGRESS
    done = int(read_json(progress)["done"]) if progress.exists() and begun.exists() else 0
    if done:
        logger.info("resuming after %s of %s texts", f"{done:,}", f"{shape[0]:,}")
    else:
        # Written first, so that the new file is never taken for one with the rows of an earlier run.
        write_json(progress, {"done": done})
        np.lib.format.open_memmap(begun, mode="w+", dtype=np.dtype(args.dtype), shape=shape).flush()
        # Without room on the disk, writing to mapped memory would end the process without a message.
        with begun.open("r+b") as stream:
            os.posix_fallocate(stream.fileno(), 0, begun.stat().st_size)
    rows = np.lib.format.open_memmap(begun, mode="r+")
    records = itertools.islice(read_texts(args.texts, args.allow_empty), done, None)
    with tqdm(total=len(rows), initial=done, desc="embedding", unit=" texts", unit_scale=True) as bar:
        while window := list(itertools.islice(records, _WINDOW)):
            texts = [record.text for record in window]
            embedded = embed(interface, texts, args.batch_tokens, **settings._asdict()).numpy().astype(args.dtype)
            _refuse_infinite(embedded, window)
            rows[done : done + len(window)] = embedded
            rows.flush()
            done += len(window)
            write_json(progress, {"done": done})
            bar.update(len(window))
    write_identifiers(result / IDENTIFIERS, identifiers)
    os.replace(begun, result / EMBEDDINGS)
    return {"texts": shape[0], "dimension": shape[1]}


def _refuse_infinite(embedded: np.ndarray, window: list[TextRecord]) -> None:
    finite = np.isfinite(embedded).all(axis=1)
    if not finite.all():
        raise ValueError(
            f"{window[int(np.argmin(finite))].place}: the embedding is not finite in {embedded.dtype}: give --dtype "
            "float32, or another checkpoint if this one is damaged"
        )
