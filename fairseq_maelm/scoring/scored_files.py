"""Score the sentences in files block by block, so that an interruption loses at most one block."""

import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from fairseq_maelm.files.atomic import read_json, write_json
from fairseq_maelm.files.prepared_folder import made_from, prepare_folder
from fairseq_maelm.models.hub import open_checkpoint
from fairseq_maelm.models.vocabulary_folder import find_tokenizer
from fairseq_maelm.options import UsageError
from fairseq_maelm.scoring import results
from fairseq_maelm.scoring.likelihood import CheckpointScorer, Sentence, pseudo_log_likelihoods
from fairseq_maelm.scoring.reading import Item, input_files, read_items
from fairseq_maelm.text.unknown import check_known

logger = logging.getLogger(__name__)

_BEGUN, _PROGRESS = "scores.begun", "progress.json"
# The most sentences, and the most tokens, that are computed and written together; a longer sentence is a block alone.
# Other numbers change the last bits of the sums.
_BLOCK_SENTENCES, _BLOCK_TOKENS = 2048, 65_536


def score_files(
    texts: Sequence[Path],
    output: Path,
    checkpoint: Path,
    vocabulary: Path | None,
    device: str,
    settings: dict[str, Any],
    compare: Path | None,
    allow_unknown: bool = False,
) -> dict[str, Any]:
    """Score the sentences in files, or resume an interrupted run, and return the summary of ``results.summarize``.

    Args:
        texts: files and folders; see ``input_files``.
        output: new folder for the scores.
        checkpoint: file of the model.
        vocabulary: folder of the vocabulary, by default the checkpoint's.
        device: device of the model.
        settings: "method", "first", "precision" and "batch_tokens", options of ``maelm score``.
        compare: output folder of another model for the same pairs.
        allow_unknown: go on if most tokens are unknown.

    Raises:
        ValueError: a text cannot be scored, or ``compare`` has scores of different sentences.
    """
    files = input_files(texts)
    items = read_items(files, settings["first"])
    if compare is not None and not items[0].side:
        raise UsageError("--compare needs pairs (.tsv, .jsonl): single sentences have no accuracy")
    others = None if compare is None else results.read_scores(compare)
    if compare is not None and others is not None:
        results.refuse_other_items(compare, others, items)
    hub = open_checkpoint(checkpoint, vocabulary, device, precision=settings["precision"])
    scorer = CheckpointScorer(hub)
    sentences = scorer.encode([item.text for item in items], [item.place for item in items])
    check_known(hub.tokenizer.encoder, ", ".join(map(str, texts)), allow_unknown)
    tokenizer = find_tokenizer([vocabulary or checkpoint.parent, checkpoint.parent])
    origin = made_from(settings, {"checkpoint": [checkpoint], "vocabulary": [tokenizer], "texts": files})

    prepare_folder(
        output, results.KIND, origin, lambda result: _write(result, scorer, items, sentences, settings), resumes=True
    )
    return results.summarize(results.read_scores(output), others)


def _write(
    result: Path, scorer: CheckpointScorer, items: list[Item], sentences: list[Sentence], settings: dict[str, Any]
) -> dict[str, Any]:
    """Score the sentences that an earlier run has not scored; partial scores are next to the output folder."""
    begun, progress = result.parent / _BEGUN, result.parent / _PROGRESS
    named = results.have_names(items)
    header = results.header_of(named)
    if progress.exists() and begun.exists():
        state = read_json(progress)
        logger.info("resuming after %s of %s sentences", f"{state['done']:,}", f"{len(items):,}")
    else:
        # A run that was killed while it published its scores leaves its progress without them.
        progress.unlink(missing_ok=True)
        begun.write_text(header, encoding="utf-8")
        state = {"done": 0, "bytes": len(header)}
    with (
        begun.open("r+b") as stream,
        tqdm(total=len(items), initial=state["done"], desc="scoring", unit=" sentences") as bar,
    ):
        # Drop the part of a block that a killed run has written.
        stream.truncate(state["bytes"])
        stream.seek(state["bytes"])
        for block in _blocks([len(sentence.tokens) for sentence in sentences], state["done"]):
            found = pseudo_log_likelihoods(scorer, sentences[block], settings["method"], settings["batch_tokens"])
            lines = [results.line_of(item, values, named) for item, values in zip(items[block], found)]
            stream.write("".join(lines).encode("utf-8"))
            stream.flush()
            os.fsync(stream.fileno())
            write_json(progress, {"done": block.start + len(found), "bytes": stream.tell()})
            bar.update(len(found))
    os.replace(begun, result / results.SCORES_FILE)
    return {"sentences": len(items)}


def _blocks(lengths: Sequence[int], start: int) -> Iterator[slice]:
    """Yield the blocks from sentence ``start`` on, which begins one."""
    tokens = 0
    for end, length in enumerate(lengths[start:], start):
        tokens += length
        if end > start and (tokens > _BLOCK_TOKENS or end - start == _BLOCK_SENTENCES):
            yield slice(start, end)
            start, tokens = end, length
    if start < len(lengths):
        yield slice(start, len(lengths))
