"""Every command with good input, in the form of a case."""

from typing import NamedTuple

TRAIN = "--recipe tiny --gpus 0 --set batch-sequences=4 sequence-length=32 sequences-per-gpu=4 max-update=1"

# Every command with good input.
GOOD = {
    "fill": "fill 'the <mask>' --checkpoint {pretrained} --vocabulary {data}",
    "predict": "predict {sentences.tsv} --checkpoint {classifier} --vocabulary {sentences}",
    "predict tags": "predict {words.conll} --checkpoint {tagger} --vocabulary {tagging}",
    "predict answers": "predict {squad.json} --checkpoint {reader} --vocabulary {squad}",
    "predict prompts": "predict {pairs.tsv} --checkpoint {pretrained} --vocabulary {data} --prompt {pair_prompt.json} "
    "--several-pieces",
    "answer": "answer {text.txt} Who? --checkpoint {reader} --vocabulary {data}",
    "score": "score {text.txt} --checkpoint {pretrained} --vocabulary {data} --output {new}",
    "evaluate squad": "evaluate squad {squad.json} {predictions.json} --null-odds {odds.json}",
    "analyze": "analyze --checkpoint a={pretrained} --text {text.txt} --vocabulary {data} --output {new} --tokens 400",
    "export": "export --checkpoint {pretrained} --vocabulary {data} --output {new} --format maelm",
    "import": "import {hf} --output {new}",
    "finetune": "finetune {sentences} --checkpoint {pretrained} --output {new} --gpus 0 --epochs 1 --batch-size 8",
    "pretrain": f"pretrain {{data}} --output {{new}} {TRAIN}",
    "prepare corpus": "prepare corpus {documents.txt} --output {new} --vocabulary {data} --workers 1",
    "prepare sentences": "prepare sentences --vocabulary {data} --train {sentences.tsv} --output {new}",
    "prepare glue": "prepare glue {glue} --vocabulary {data} --output {new} --accept-counts",
    "prepare tagging": "prepare tagging --vocabulary {data} --train {words.conll} --valid {words.conll} --output {new}",
    "prepare squad": "prepare squad --vocabulary {data} --valid {squad.json} --output {new}",
    "sweep": "sweep sentences --data {folder} --checkpoint a={pretrained} --output {new} --dry-run",
}


class Case(NamedTuple):
    """A bad input: what it is, the command line, and a pattern for the line that answers it."""

    name: str
    line: str
    expected: str
