"""Labels of words for ``maelm predict``."""

import argparse

from fairseq_maelm.finetuning.predicted import Predicted
from fairseq_maelm.finetuning.tagging.files import read, relabeled
from fairseq_maelm.finetuning.tagging.predict import Tagger
from fairseq_maelm.finetuning.tagging.tag_command import metrics_of, tag_text
from fairseq_maelm.lines import numbered_lines


def predict_input(args: argparse.Namespace) -> Predicted:
    """Label the words of a file in the layout of training, or of plain text."""
    if args.input.is_dir():
        raise ValueError("labels are written into a file as it was: give the file, not the folder made from it")
    tagger = Tagger(args.checkpoint, args.vocabulary, args.batch_size, args.device)
    if args.input.suffix == ".txt":
        lines = tag_text(tagger, [line for _, line in numbered_lines(args.input)])
        return Predicted("".join(f"{line}\n" for line in lines), None)
    file = read(args.input, tagger.settings.layout, labeled=False)
    labels = tagger.label_as_in_files([sentence.words for sentence in file.sentences])
    own = {label for sentence in file.sentences for label in sentence.labels}
    lines = relabeled(file, labels, add="" in own)
    metrics = None if own & {"", "_"} else metrics_of(file, labels, tagger.settings)
    return Predicted("".join(line + file.newline for line in lines), metrics)
