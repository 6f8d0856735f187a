"""Bad words of single commands, and bad arguments of the hub, a row each."""

from collections.abc import Iterator

import torch

from robustness.commands import GOOD, TRAIN, Case

_SINGLE = r"""
evaluate squad {squad.json} {predictions.json} --output {squad.json} | squad.json exists already
evaluate squad {squad.json} {predictions.json} --output {predictions.json} | predictions.json exists already
predict {squad.json} --checkpoint {reader} --vocabulary {squad} --output {same} --null-odds {same} | two results
predict {squad.json} --checkpoint {reader} --vocabulary {squad} --null-odds {odds.json} | odds.json exists already
predict {words.conll} --checkpoint {tagger} --vocabulary {tagging} --output {squad.json} | squad.json exists already
predict {sentences.tsv} --checkpoint {pretrained} --vocabulary {data} | give --prompt, or fine-tune it first
predict {sentences.tsv} --checkpoint {classifier} --vocabulary {data} | fine-tuned on another task|no label|there is no
predict {words.conll} --checkpoint {tagger} --vocabulary {data} | was not written by `maelm prepare tagging`
predict {sentences.tsv} --checkpoint {classifier} --vocabulary {sentences} --threshold 1 | is for checkpoints of
predict {pairs.tsv} --checkpoint {classifier} --vocabulary {sentences} | on single texts, .* omit --text-pair
predict {sentences.tsv} --checkpoint {pair_classifier} --vocabulary {sentences} | on pairs .* with --text and --text-
predict {sentences} --checkpoint {pair_classifier} | on pairs of texts, but .* has single texts: give a task
predict {tags_bad.csv} --text s --label y --checkpoint {tagged} --vocabulary {tags} | tags_bad.csv:3 has the label 'd'
finetune {tags} --checkpoint {pretrained} --output {new} --gpus 0 --class-weights balanced | any number of labels: omit
predict {tags} --checkpoint {classifier} | valid.idx has rows with none or several labels, but here
predict {twice.csv} --text s --checkpoint {classifier} --vocabulary {sentences} | twice.csv:1 has 2 columns named 's'
predict {semicolons.csv} --text s --checkpoint {classifier} --vocabulary {sentences} | give --delimiter ';'
prepare sentences --train {twice.csv} --text t --label u --vocabulary {data} --output {new} | has no column 'u', only
prepare sentences --train {ignored.tsv} --vocabulary {data} --output {new} | a label is -100, .* leave it out
prepare tagging --train {words.conll} --valid {ignored.conll} --vocabulary {data} --output {new} | has the label -100
predict {tagging} --checkpoint {tagger} | is a folder: give the labeled file
fill 'no mask' --checkpoint {pretrained} --vocabulary {data} | 'no mask' has no <mask> to fill
fill a b --checkpoint {pretrained} --vocabulary {data} | 'a' has no <mask> to fill .2 of 2 texts were refused
prepare sentnces --train {sentences.tsv} | invalid choice: 'sentnces' .*; did you mean sentences.
fill '<mask>' --checkpont {pretrained} --vocabulary {data} | no option --checkpont; did you mean --checkpoint.
prepare corpus {sentences.tsv} --output {new} | sentences.tsv is a table: write its texts to a .txt file
prepare tagging --train {words.conll} --valid {tree.conllu} --vocabulary {data} --output {new} | --valid is conllu, but
prepare tagging --train {squad.json} --valid {words.conll} --vocabulary {data} --output {new} | is one JSON value: write
prepare corpus {text.txt} --output {new} --vocabulary {data} | no input has a blank line.* give --line-documents if
prepare corpus {records.jsonl} --output {new} --line-documents | has no effect: omit it
prepare corpus {records.jsonl} --output {new} --vocabulary {data} | records.jsonl:2: the field 'text' is None
prepare corpus {squad.json} --output {new} | squad.json is one JSON value: write one record per line
fill '<mask>' --checkpoint {classifier} --vocabulary {sentences} | head|fine-tuned|there is no dict.txt
fill '<mask>' --checkpoint {folder} --vocabulary {data} | there is neither checkpoint_best.pt nor checkpoint_last.pt in
answer {text.txt} '' --checkpoint {reader} --vocabulary {data} | a question is empty
answer {text.txt} Who? --checkpoint {pretrained} --vocabulary {data} | was not fine-tuned to answer questions
finetune {data} --checkpoint {pretrained} --output {new} | data is not a task folder
finetune {sentences} --checkpoint {pretrained} --output {new} --gpus 0 -- --lr abc | the options: argument --lr
finetune {sentences} --checkpoint {pretrained} --output {new} --gpus 0 --metric f2 | logs no f2, but
finetune {sentences} --checkpoint {pretrained} --output {new} --gpus 0 --precision fp16 | --precision fp16 needs a GPU
pretrain {text.txt} --output {new} --recipe tiny | there is no dict.txt in
pretrain {new}2 --output {new} --recipe tiny | there is no folder
import {folder} --download --output {new} | omit --download
pretrain {data} --output {new} | or --recipe with one of
pretrain {data}:{bad/data-dictionary-order} --output {new} --recipe tiny | dict.txt differs from \S*/data/dict.txt
pretrain {data}:{folder}/nowhere --output {new} --recipe tiny | there is no folder \S*nowhere
pretrain {data}:{bad/data-no-text} --output {new} --recipe tiny | no files train.bin and train.idx in \S*no-text
pretrain {data} --output {new} --recipe nowhere | there is no recipe nowhere
pretrain {data} --output {new} --arch maelm_small | no recipe for --arch maelm_small: give --recipe with one of adapt,
pretrain {data} --output {new} --recipe modern_17m --set lr-scheduler=cosine | of maelm pretrain: --set phase-ratio=none
pretrain {data} --output {new} --recipe tiny --set lr | give NAME=VALUE
pretrain {data} --output {new} --recipe tiny --set max_tokens=64 | max_tokens=64: give --set sequences-per-gpu
pretrain {data} --output {new} --recipe tiny --set max-update=0 | or the recipe: must be at least 1, not 0
pretrain {data} --output {new} --recipe modern_17m --set max-update=2 | max-update=2 leaves no update for the last phase
pretrain {data} --checkpoint {pretrained} --output {data} --replace | --output \S*data is the folder of the data or of
finetune {sentences} --checkpoint {pretrained} --output {sentences} | is the folder of the data or of --checkpoint: name
pretrain {data} --checkpoint {pretrained} --output {new} --set finetune-from-model=a.pt | omit --set finetune-from-model
pretrain {data} --checkpoint {pretrained} --output {new} --set batch-sequences=few | 'few' is not an integer
pretrain {data} --checkpoint {pretrained} --output {new} --set passes=0 | must be above 0 and below inf, not 0
pretrain {data} --checkpoint {pretrained} --output {new} --set sequence-length=999 | has \d+ positions, so give at most
pretrain {data} --checkpoint {pretrained} --output {new} --set max-positions=32 | --max-positions 32 contradicts the
fill '<mask>' --checkpoint {hf}/model.safetensors --vocabulary {data} | holds weights without .* `maelm import \S*hf
import {hf}/model.safetensors --output {new} | holds weights without .* `maelm import \S*hf
pretrain {data} --output {new} --recipe tiny --gpus 3 --dry-run | is not a multiple of .* --set batch-sequences=
pretrain {data} --output {folder} --recipe tiny --replace | --replace would rename \S* with \S*data, which
finetune {tagging} --checkpoint {pretrained} --output {new} --class-weights balanced | is for tables of texts and labels
finetune {sentences} --checkpoint {pretrained} --output {new} --gpus 99 | --gpus 99, but torch finds
import {pretrained} --output {new} --cased --vocabulary {data} | --cased is for folders, but .* omit the option
import {hf} --output {new} --vocabulary {data} | --vocabulary is for checkpoint files, but .* omit the option
import {hf} --output {new} --positions 16 | --positions 16: .* so give a number from \d+ to 65536
import {sentences} --output {new} | there is no config.json in \S*sentences
import {folder}/nowhere --output {new} | there is no folder or checkpoint \S*nowhere
export --checkpoint {pretrained} --vocabulary {sentences} --output {new} --with-mlm-head | there is none in
export --checkpoint {pretrained} --vocabulary {data} --output {new} --with-mlm-head --complete | cannot be combined
export --checkpoint {classifier} --vocabulary {sentences} --output {new} --with-mlm-head | leaves out the decoder, but
finetune {sentences} --checkpoint {pretrained} --output {new} --gpus 0 -- --max-tokens-valid 8 | --max-tokens-valid 8 is
finetune {sentences} --checkpoint {pretrained} --output {new} --gpus 0 -- --save-dir {folder} | give --output instead of
finetune {sentences} --checkpoint {pretrained} --output {new} --gpus 0 -- --max-sentences 5 | give --batch-size instead
pretrain {data} --recipe tiny --output {new} --gpus 0 -- --save-dir {folder} | give --output instead of --save-dir after
pretrain {data} --recipe tiny --output {new} --gpus 0 -- --max-update 5 | give --set max-update instead of --max-update
pretrain {data} --recipe tiny --output {new} --gpus 0 -- --fp16 | give --precision instead of --fp16 after
pretrain {data} --recipe tiny --output {new} --gpus 0 --set save-dir={folder} | save-dir=\S*: give --output instead
pretrain {data} --checkpoint {pretrained} --output {new} -- --tokens-per-sample 99 | give --set sequence-length instead
export --checkpoint {pretrained} --vocabulary {data} --output {new} --format maelm --head nowhere | --head|nowhere
analyze --checkpoint a={pretrained} --output {new} | --text
analyze --checkpoint {pretrained} --data {data} --output {new} | NAME=
export --checkpoint {pretrained} --vocabulary {data} --output {new} --format fairseq --averaged-weights | holds no
finetune {sentences} --checkpoint {pretrained} --output {new} --recipe SNLI | there is no recipe SNLI
prepare glue {glue} --vocabulary {data} --output {new} --train-file RTE | 'RTE' must be TASK=FILE
prepare glue {glue} --vocabulary {data} --output {new} --train-file SNLI={sentences.tsv} | where TASK is one of CoLA
prepare glue {glue} --vocabulary {data} --output {new} --tasks CoLA | there is no .*CoLA/train.tsv
prepare sentences --train {sentences.tsv} --vocabulary {data} --output {new} --max-length 5 | must be at least 6, not 5
prepare corpus {documents.txt} --output {new} --shards 101 | must be at least 1 and at most 100
prepare corpus {documents.txt} --output {new} --valid-fraction 0 | must be above 0 and below 1
prepare corpus {documents.txt} --output {new} --valid-fraction 0.001 | the fraction 0.001 of .* rounds to 0
prepare corpus {documents.txt} --output {new} --valid-documents 9999 | 9999 for validation leave none for training
prepare corpus {documents.txt} --output {new} --valid-fraction 0.1 --valid-documents 3 | exclude each other
prepare corpus {documents.txt} --output {new} --shards 100 | documents are too few for 100 shards
prepare corpus {documents.txt} --output {new} --preset titlecase | invalid choice: 'titlecase'
prepare corpus {documents.txt} --output {new} --vocabulary-size 50000 | 50000 pieces is too large for this text, which
prepare corpus {documents.txt} --output {new} --character-coverage 0.5 | must be at least 0.98 and at most 1.0, not 0.5
prepare corpus {documents.txt} --output {new} --sentencepiece-model {text.txt} --vocabulary-size 9 | has no effect
prepare corpus {documents.txt} --output {new} --valid {documents.txt} | is among the inputs and --valid more than once
prepare corpus {documents.txt} --output {new} --valid {bad/blank.txt} | validation split is empty: the files given with
evaluate squad {squad.json} {predictions.json} --threshold 0 | applies to the scores in --null-odds
evaluate squad {squad.json} {predictions.json} --null-odds {odds.json} --squad-version 1.1 | every question has
predict {text.txt} --keep-labels --checkpoint {tagger} --vocabulary {tagging} | plain text has no labels
predict {words.conll} --column UPOS --checkpoint {tagger} --vocabulary {tagging} | must be a number
analyze --checkpoint a={pretrained} --checkpoint a={pretrained} --data {data} --output {new} | models are named a
analyze --checkpoint a={pretrained} --text {text.txt} --data {data} --split x --output {new} | --split is a part of
prepare sentences --train {pairs.tsv} --valid {pairs.tsv} --valid-fraction 0 --vocabulary {data} --output {new} | omit
prepare sentences --train {pairs.tsv} --valid {pairs.tsv} --seed 2 --vocabulary {data} --output {new} | no effect
predict {header.tsv} --checkpoint {pretrained} --vocabulary {data} --prompt {prompt.json} --several-pieces | a header
analyze --checkpoint a={pretrained} --data {data} --output {new} --layers 0 9 | has no layer 9
score {text.txt} {pairs.tsv} --checkpoint {pretrained} --vocabulary {data} --output {new} | give either files
score {text.txt} --compare {folder} --checkpoint {pretrained} --vocabulary {data} --output {new} | --compare needs pairs
pretrain {data} --output {new} --arch roberta_base --recipe tiny --gpus 0 | roberta_base is not one of them: give
pretrain {data} --output {new} --arch maelm_huge --recipe tiny --gpus 0 | invalid choice: 'maelm_huge'
pretrain {data} --output {new} --recipe tiny --gpus 0 --set sequence-length=1024 max-positions=32 | up to 1024 tokens
pretrain {data} --output {new} --recipe tiny --gpus 0 --set sequence-length=131072 | must be at least 3 and at most
pretrain {data} --output {new} --recipe tiny --arch maelm_modern_tiny --set decoder-layers=0 | cannot predict the
pretrain {data} --output {new} --recipe tiny --set finetune-from-model={pretrained} | --encoder-attention-heads 4, not
pretrain {data} --output {new} --recipe tiny --set rate=3 | unrecognized arguments: --rate 3
sweep sentences --data {folder} --checkpoint a={pretrained} --output {new} '--options=--dropuot 0.1' | --dropuot
sweep sentences --data {folder} --checkpoint a={pretrained} --output {new} --only lr=7 | none of these values
sweep sentences --data {folder} --checkpoint a={pretrained} --output {new} --large | has no grid for large models
sweep sentences --data {folder} --checkpoint a={pretrained} --output {new} --gpus 0 --jobs 2 | give neither --jobs nor
sweep sentences --data {folder} --checkpoint a={pretrained} --output {new} --precision fp16 | fp16 needs a GPU
sweep sentences --data {folder} --checkpoint a={pretrained} --checkpoint a=random --output {new} | are named a
sweep sentences --data {folder} --checkpoint x=random:y --output {new} | takes its size from another checkpoint
report {data} | is not the folder of a sweep
sweep sentences --data {text.txt} --checkpoint a={pretrained} --output {new} | text.txt
"""
_SETS_OF_LABELS = {
    "{tags.csv} --label-separator ';' --valid {tags_bad.csv}": "tags_bad.csv:3 has the label 'd', but the known",
    "{tags_twice.csv} --label-separator ';'": "tags_twice.csv:2 has the label 'a' twice: remove one of them",
    "{tags.csv} --label-separator '|'": "tags.csv: no row has two labels with '|' between them: give the character",
    "{tags_none.csv} --label-separator ';'": "tags_none.csv has 0 different labels",
    "{tags.csv} --label-separator ';' --regression": "is for classes, and --regression for numbers: omit one of them",
    "{tags.jsonl}": "the label 'a;b' has the separator of labels: give another by --label-separator",
}
_TRAINED = {
    "--criterion masked_lm": "the task maelm cannot use masked_lm: give --criterion maelm",
    "--criterion cross_entropy": r"cannot use cross_entropy \(fairseq's default\): give --criterion maelm",
    "--task masked_lm --criterion masked_lm": "MaskedLMTask does not work with this model|the options: ",
    "--optimizer muon --muon-momentum 1.0": "--muon-momentum must be at least 0 and below 1",
    "--mask-prob 1.5": "--mask-prob must be above 0 and below 1, not 1.5",
    "--dropout 1.0": "--dropout must be at least 0 and below 1",
    "--bf16": "use --precision bf16",
}
# Options of fairseq-train; those above show that a command makes one line of what is wrong with any of them.
TRAINED = {
    "--encoder-mask-fraction 1.5": "--encoder-mask-fraction must be at least 0 and at most 1",
    "--leave-unmasked-prob -0.1": "--leave-unmasked-prob must be at least 0",
    "--leave-unmasked-prob 0.6 --random-token-prob 0.6": "are fractions of the same tokens: their sum must not exceed",
    "--optimizer fused_adamw --adam-betas 0.9": "--adam-betas must be two numbers",
    "--optimizer fused_adamw --adam-betas (0.9,1.0)": r"two numbers in \[0, 1\)",
    "--optimizer fused_adamw --weight-decay -0.1": "--weight-decay must be at least 0",
    "--optimizer muon --muon-lr-ratio 0": "--muon-lr-ratio must be above 0",
    "--encoder-attention-heads 3": "is not a multiple of its number of attention heads",
    "--relative-num-buckets 6": "--relative-num-buckets must be a positive multiple",
    "--relative-num-buckets 0": "--relative-num-buckets must .*--relative-buckets none",
    "--relative-num-buckets 32 --relative-max-distance 8": "--relative-max-distance .8. must exceed",
    "--decoder-layers 0": "cannot predict the masked tokens.*--masked-input kept",
    "--encoder-layers 0": "--encoder-layers must be at least 1",
    "--attention-dropout -0.1": "--attention-dropout must be",
    "--init-std 0": "--init-std must be above 0",
    "--embedding-init-std -0.1": "--embedding-init-std must be above 0",
    "--layer-norm-eps 0.1": "--layer-norm-eps must be at least 1e-14 and at most 0.01",
    "--rotary-base 1": "--rotary-base must be at least 2 and at most 2147483647, not 1",
    "--local-rotary-base 2147483648": "--local-rotary-base must be at least 2",
    "--positions rotary --relative-buckets t5": "--relative-buckets t5 cannot be combined with --positions rotary",
    "--decoder-positions rotary --share-decoder-positions": "--share-decoder-positions shares a table",
    "--decoder-positions rotary --decoder-attention-heads 128": "heads of even width.*decoder have 1",
    "--decoder-attention cross --decoder-layers 0 --masked-input kept": "needs a decoder: --decoder-layers is 0",
    "--local-attention 8 --global-every 0": "--global-every must be at least 1",
    "--decoder-attention shared --decoder-layers 3": "predicts with layers of the encoder, and the encoder has 2",
    "--decoder-attention shared --decoder-embed-dim 64": "whose embed dim is 128: omit --decoder-embed-dim 64",
    "--decoder-attention shared --share-decoder-positions": "always has the encoder's positions",
    "--decoder-attention shared --masked-input kept": "does not see, .* omit --masked-input kept, or",
    "--decoder-attention shared --encoder-mask-fraction 1": "does not see, .* omit --encoder-mask-fraction 1, or",
    "--decoder-attention shared --encoder-positions consecutive": "omit --encoder-positions consecutive, or",
    "--decoder-attention causal": "invalid choice: 'causal' .choose from",
    "--decoder-attention cross --encoder-mask-fraction 0.5 --masked-input kept": "combined with --masked-input",
    "--share-decoder-positions --decoder-embed-dim 64": "needs a decoder as wide as the encoder",
    "--encoder-mask-fraction 0.5 --masked-input kept": "cannot be combined with --masked-input kept",
}


def row_cases() -> Iterator[Case]:
    line = GOOD["predict prompts"].replace("pairs.tsv", "sentences.tsv")
    yield Case(
        "a prompt for pairs, and a table without", line, "has labels in the column where the prompt pair_prompt needs"
    )
    for row in _SINGLE.strip().splitlines():
        line, _, expected = row.partition(" | ")
        yield Case(line, line, expected)
    for options, expected in _SETS_OF_LABELS.items():
        line = f"prepare sentences --text s --label y --vocabulary {{data}} --output {{new}} --train {options}"
        yield Case(line, line, expected)
    for options, expected in _TRAINED.items():
        yield Case(f"pretrain {options}", f"pretrain {{data}} --output {{new}} {TRAIN} -- {options}", expected)


# The hub

NAN = float("nan")
TOKENS = torch.tensor([0, 5, 6, 2])
HUB: dict[str, list[tuple[str, str]]] = {
    "pretrained": [
        ("hub.encode(None)", "number 1 of the texts is None"),
        ("hub.encode(['a'])", "is list, not a string"),
        ("hub.encode('a', None)", "number 2 of the texts is None"),
        ("hub.encode('\\ud83d')", "half of a surrogate pair"),
        ("hub.encode('a ' * 30, 'b', 'c', max_length=12)", "a single text or a pair can be truncated, not 3 texts"),
        ("hub.encode('a', max_length=2)", "max_length must be at least 3"),
        ("hub.encode('a', max_length='9')", "max_length must be a whole number of tokens, not '9'"),
        ("hub.encode_batch('abc')", "sentences must be a list of strings, not 'abc'"),
        ("hub.encode_batch([])", "the list of sentences is empty"),
        ("hub.encode_batch(['a', None])", "number 2 of the sentences is None"),
        ("hub.decode([0, 5])", "decode takes tokens as <int64>.n., not list"),
        ("hub.decode(TOKENS[None])", r"not <int64>\[1, 4\]"),
        ("hub.decode(torch.tensor([-1]))", "takes token ids from 0 to 601, not -1"),
        ("hub.extract_features('abc')", "not str"),
        ("hub.extract_features(TOKENS[:0])", "needs at least one token"),
        ("hub.extract_features(TOKENS.float())", "not <float32>"),
        ("hub.extract_features(torch.tensor([0, 602, 2]))", "takes token ids from 0 to 601, not 602"),
        ("hub.extract_features(TOKENS[None, None])", r"not <int64>\[1, 1, 4\]"),
        (
            "hub.extract_features(torch.full((1, 65), 5))",
            "65 tokens and the model has 64 positions: .*encode.*max_length=64",
        ),
        ("hub.fill_mask(None)", "texts must be a list of strings, not None"),
        ("hub.fill_mask([])", "fill_mask needs at least one text"),
        ("hub.fill_mask(['<mask>', 'none'])", "'none' has no <mask> to fill"),
        ("hub.fill_mask(['<mask>', None])", "number 2 of the texts is None"),
        ("hub.fill_mask('<mask>', topk=0)", "a topk of at least 1"),
        ("hub.fill_mask('<mask>', topk=True)", "a topk of at least 1, not 1 and True"),
        ("hub.fill_mask('<mask>', topk='5')", "a topk of at least 1, not 1 and '5'"),
        ("hub.fill_mask('<mask>\\udc00')", "half of a surrogate pair"),
        ("hub.fill_mask('<mask> ' * 80)", "tokens and the model has 64 positions"),
        ("broken.fill_mask('<mask>')", "the model's probabilities are not finite"),
        ("hub.predict('head', TOKENS)", "the model has no head 'head' .it has: none"),
        ("hub.classify(['a'])", "the model has no head 'sentence_classification_head'"),
        ("[hub.register_classification_head('new', 2), hub.classify([], head='new')]", "has no names of classes"),
        ("hub.register_classification_head('a.b', 2)", "must be a string without dots, not 'a.b'"),
        ("hub.register_classification_head(None, 2)", "must be a string without dots, not None"),
        ("hub.register_classification_head('a', 0)", "must have at least 1 output"),
        ("world.hub('pretrained', dropuot=0.1)", "'dropuot' is an option of neither the task maelm nor the model"),
        ("world.hub('pretrained', dropout=2.0)", "dropout"),
        ("world.hub('nowhere')", "there is no checkpoint"),
        ("classify_by_prompt(hub, ['a'])", "the checkpoint was not fine-tuned with a prompt: give a prompt"),
        ("classify_by_prompt(hub, ['a'], 'nowhere')", "there is no prompt 'nowhere'"),
        ("classify_by_prompt(hub, 'abc', PROMPT, WORDS, True)", "not 'abc'"),
        ("classify_by_prompt(hub, [None], PROMPT, WORDS, True)", "number 1 of the texts is None"),
        ("classify_by_prompt(hub, ['\\ud800'], PROMPT, WORDS, True)", "half of a surrogate pair"),
        ("classify_by_prompt(hub, ['a'], PAIR, WORDS, True)", "sentence"),
        ("classify_by_prompt(hub, ['a'], PROMPT, WORDS, True, 0)", "batch_size must be at least 1, not 0"),
        ("classify_by_prompt(hub, ['a'], 'no mask', WORDS)", "mask"),
        ("classify_by_prompt(hub, ['a'], PROMPT, {'a': 'old'})", "at least two labels to a word each"),
        ("hub.embed('abc')", "sentences must be a list of strings, not 'abc'"),
        ("hub.embed(['a'], pooling='last')", "pooling must be 'mean' or 'first', not 'last'"),
        ("hub.embed(['a ' * 80])", "tokens and the model has 64 positions"),
        ("answer(hub, 'Who?', 'A text.')", "was not fine-tuned to answer questions"),
        ("score(hub, 'one text')", "texts must be a list of strings"),
        ("score(hub, [' '])", "has no tokens to score"),
        ("score(hub, ['long ' * 500])", "tokens and the model has"),
        ("score(hub, ['a text'], 'l2r')", "unknown method 'l2r': choose one of original, within_word_l2r"),
        ("score(broken, ['a text'])", "its weights are damaged"),
    ],
    "classifier": [
        ("score(hub, ['a text'])", "has no LM head"),
        ("hub.classify([('a', 'b')])", "the checkpoint was trained on single texts, not tuples of two"),
        ("hub.classify('abc')", "not 'abc'"),
        ("hub.classify([('a', None)])", "number 2 of the parts of number 1 of the texts is None"),
        ("hub.classify(['\\ud800'])", "half of a surrogate pair"),
        ("hub.classify(['a'], head='nowhere')", "the model has no head 'nowhere'"),
        ("hub.predict('sentence_classification_head', [0, 5])", "predict takes tokens as .*, not list"),
        ("hub.predict('sentence_classification_head', torch.tensor([9999]))", "not 9999"),
        ("hub.fill_mask('<mask>')", "head|fine-tuned"),
    ],
    "reader": [
        ("answer(hub, '', 'A text.')", "a question is empty"),
        ("answer(hub, 'Who?', '')", "no text that an answer could be taken from"),
        ("answer(hub, None, 'A text.')", "number 1 of the questions is None"),
        ("answer(hub, 'Who?', None)", "the context is None"),
        ("answer(hub, 'Who?', '\\ud800')", "the context holds half of a surrogate pair"),
        ("answer(hub, 'Who?', 'A text.', NAN)", "the threshold must be a number, in logits, or infinity, but not NaN"),
        ("answer_questions(hub, 'A text.', 'Who?')", "questions must be a list of strings, not 'Who.'"),
        ("answer_questions(hub, 'A text.', [3])", "number 1 of the questions is 3"),
    ],
}
