"""Every family goes in and out exactly: states, scores, tokens, one update, and the files on the way back."""

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from fairseq import options, tasks
from fairseq.data import Dictionary
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.trainer import Trainer
from support import batch_of

from fairseq_maelm import MaelmModel
from fairseq_maelm.architecture.families import FAMILIES, weights_of_family
from fairseq_maelm.checkpoints.locate import CHECKPOINT_FILE
from fairseq_maelm.interop.export.exporter import Export, ExportSettings, export
from fairseq_maelm.interop.importing.importer import Imported, import_model
from fairseq_maelm.interop.loaded_checkpoint import load_with_model
from fairseq_maelm.interop.tokenizer_test_strings import HARD_STRINGS
from fairseq_maelm.text.vocabulary import TOKENIZER_FILE, open_encoder

from .sources import FOLDERS, transformers

load_file = pytest.importorskip("safetensors.torch").load_file

MASKED = "The sailor takes the <mask> to the harbour."
TEXTS = [MASKED, "The sailor takes the rope; déjà vu.", "a"]
# With a smaller epsilon, rounding errors of tiny gradients would become visible updates.
RATE, EPS, DECAY, BETA = 1e-3, 1e-5, 0.01, 0.98


class There(NamedTuple):
    """A source, its import, and the export of that, which nothing has trained."""

    source: Path
    imported: Imported
    exported: Export


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], There]:
    """Each kind, made once."""

    @cache
    def make(kind: str) -> There:
        root = tmp_path_factory.mktemp("family")
        imported = import_model(FOLDERS[kind](root / "source"), root / "imported")
        exported = export(root / "imported" / CHECKPOINT_FILE, None, root / "out", ExportSettings())
        return There(root / "source", imported, exported)

    return make


@pytest.fixture(params=FOLDERS)
def there(request: pytest.FixtureRequest, made: Callable[[str], There]) -> There:
    return made(request.param)


def tokenizer_of(folder: Path) -> Any:
    return transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)


def test_states_and_scores_agree_at_all_lengths_padded_and_not(there: There) -> None:
    for found in (there.imported.agreements, there.exported.agreements):
        assert [each.what for each in found] == ["hidden states", "masked-lm scores"]
        assert all(each.difference <= 1e-5 * max(1.0, each.size) and each.size > 0.5 for each in found)


def test_the_source_comes_back_bit_by_bit(there: There) -> None:
    """Weights with spare rows, token types and unused positions; the tokenizer's files and config.json."""
    target = there.exported.target
    assert target is not None and target.architecture == "masked-lm"
    before, after = (load_file(place / "model.safetensors") for place in (there.source, there.exported.folder))
    assert before.keys() == after.keys() and len(before) > 20
    assert not [name for name, weight in before.items() if not torch.equal(weight, after[name])]
    files = {path.name for path in there.source.iterdir()} - {"model.safetensors", "generation_config.json"}
    assert {"config.json", TOKENIZER_FILE, "tokenizer_config.json"} <= files
    written = there.exported.folder
    assert not [name for name in files if (written / name).read_bytes() != (there.source / name).read_bytes()]


def test_text_has_the_tokens_of_the_source(there: There) -> None:
    """On the hard strings: our tokenizer, that of the import's folder for transformers, and the exported one."""
    hub = MaelmModel.from_pretrained(str(there.imported.folder))
    theirs, ours, back = map(tokenizer_of, (there.source, there.imported.folder, there.exported.folder))
    order = their_ids(there)
    for text in HARD_STRINGS:
        text = text.replace("<mask>", theirs.mask_token)
        expected = theirs(text, add_special_tokens=False)["input_ids"]
        assert back(text, add_special_tokens=False)["input_ids"] == expected
        assert order[ours(text, add_special_tokens=False)["input_ids"]].tolist() == expected
        if theirs.mask_token not in text:
            assert order[hub.tokenizer.encode(text)].tolist() == expected
    text = "The sailor takes the rope."
    assert hub.decode(hub.encode(text)).lower() == text.lower() and hub.decode(hub.encode(MASKED)).count("<mask>") == 1
    # Text that spells a special symbol is text.
    assert 2 not in hub.encode("a </s> b")[1:-1].tolist()


def their_ids(there: There) -> torch.Tensor:
    """Return the source's id for each of ours, found by the token's name, or by its place if it has none."""
    tokenizer = tokenizer_of(there.source)
    dictionary = Dictionary.load(str(there.imported.folder / "dict.txt"))
    numbers = tokenizer.get_vocab()
    names = ("cls", "pad", "sep", "unk")
    special = [numbers.get(s, getattr(tokenizer, f"{name}_token_id")) for s, name in zip(dictionary.symbols, names)]
    unnamed = [re.fullmatch(r"(?:madeupword|symbol)(\d{4})", symbol) for symbol in dictionary.symbols[4:]]
    ordinary = [int(n[1]) if n else numbers[symbol] for n, symbol in zip(unnamed, dictionary.symbols[4:])]
    found = torch.tensor([*special, *ordinary, tokenizer.mask_token_id])
    assert found.sort().values.tolist() == list(range(len(found)))
    return found


def test_the_hub_computes_what_transformers_does_from_text_on(there: There) -> None:
    """Scores, filled masks, and the states of the import's folder as stock transformers opens it."""
    hub = MaelmModel.from_pretrained(str(there.imported.folder))
    tokenizer, model = tokenizer_of(there.source), open_mlm(there)
    stock = transformers.AutoModel.from_pretrained(there.imported.folder).eval()
    order = their_ids(there)
    words = [text.replace("<mask>", tokenizer.mask_token) for text in TEXTS]
    theirs = tokenizer(words, return_tensors="pt", padding=True, return_token_type_ids=False)
    ours = hub.encode_batch(TEXTS)
    assert torch.equal(order[ours], theirs["input_ids"])
    inside = theirs["attention_mask"].bool()
    with torch.no_grad():
        logits = model(**theirs).logits
        expected, states = logits[inside][:, order], model.base_model(**theirs).last_hidden_state[inside]
        found, same = hub.model(ours)[0][ours.ne(1)], stock(ours, theirs["attention_mask"]).last_hidden_state[inside]
    assert expected.std() > 0.1 and states.std() > 0.1
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(same, states, rtol=0, atol=1e-5)
    best = logits[theirs["input_ids"] == tokenizer.mask_token_id].softmax(dim=-1).topk(3).values[0]
    assert [each.probability for each in hub.fill_mask(MASKED, topk=3)[0]] == pytest.approx(best.tolist(), rel=1e-4)


def open_mlm(there: There) -> Any:
    """Open the source without dropout."""
    return transformers.AutoModelForMaskedLM.from_pretrained(there.source, attn_implementation="eager").eval()


# Two token types, positions with rows in front, relative positions, and rotary ones.
@pytest.mark.parametrize("kind", ["bert", "roberta", "mpnet", "modernbert"])
def test_an_update_equals_that_of_transformers(kind: str, made: Callable[[str], There]) -> None:
    """One step by fairseq's trainer and this package's AdamW, and one by torch's AdamW, on the same batch."""
    there = made(kind)
    source = load_with_model(there.imported.folder / CHECKPOINT_FILE)
    kept, mask = source.source_files, source.model.mask_index
    assert kept is not None
    rows = [
        [0, *tokens.tolist()] for tokens in open_encoder(there.imported.folder).encode(TEXTS[1:] + ["An old ship."])
    ]
    masked = [[2, 4], [1], [1, 3]]
    net_input, target = batch_of(rows, masked, mask_index=mask, view=source.checkpoint.view)
    batch = {"net_input": net_input, "target": target, "ntokens": sum(map(len, rows)), "nsentences": len(rows)}
    trainer = trainer_of(there.imported, source.checkpoint.weights)
    trainer._dummy_batch = batch
    with torch.no_grad():
        our_loss = float(trainer.criterion(trainer.model, batch)[0]) / len(target)
    trainer.train_step([batch])

    theirs = open_mlm(there)
    tokens = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=1)
    labels = torch.full_like(tokens, -100)
    for row, places in enumerate(masked):
        labels[row, places] = kept.order[tokens[row, places]]
        tokens[row, places] = mask
    for name, parameter in theirs.named_parameters():
        # Our model has token type 0 in its positions, whose gradient they share.
        parameter.requires_grad_("token_type" not in name)
    adamw = torch.optim.AdamW(theirs.parameters(), RATE, (0.9, BETA), EPS, DECAY)
    loss = theirs(kept.order[tokens], attention_mask=(tokens != 1).long(), labels=labels).loss
    loss.backward()
    before = {name: weight.clone() for name, weight in theirs.state_dict().items()}
    adamw.step()

    assert our_loss == pytest.approx(loss.item(), rel=1e-5) and our_loss > 1.0
    family = FAMILIES[source.imported_as]
    trained = weights_of_family(trainer.model.state_dict(), family, source.options, "masked-lm", None)
    positions = source.model.max_positions()
    for name, weight in kept.restore(trained, family, positions).items():
        expected = theirs.state_dict()[name]
        assert not torch.equal(expected, before[name])
        if "position_embeddings" in name:
            # Ours have no rows in front; they hold token type 0, and decay with it.
            weight, expected = weight[-positions:], expected[-positions:]
            types = kept.weights.get("embeddings.token_type_embeddings.weight")
            expected = expected if types is None else expected - RATE * DECAY * types[0]
        torch.testing.assert_close(weight, expected, rtol=0, atol=1e-5)


def trainer_of(imported: Imported, weights: dict[str, torch.Tensor]) -> Trainer:
    """Return fairseq's trainer with the options that the import has printed, and with its weights."""
    words = [str(imported.folder), "--task", "maelm", "--criterion", "maelm", "--masked-input", "kept"]
    words += [*imported.model_options, "--tokens-per-sample", "40", "--batch-size", "4", "--cpu", "--clip-norm", "0"]
    words += ["--dropout", "0", "--attention-dropout", "0", "--optimizer", "fused_adamw", "--lr", str(RATE)]
    words += ["--weight-decay", str(DECAY), "--adam-eps", str(EPS), "--adam-betas", f"(0.9, {BETA})"]
    config = convert_namespace_to_omegaconf(options.parse_args_and_arch(options.get_training_parser(), words))
    task = tasks.setup_task(config.task)
    model = task.build_model(config.model).train()
    model.load_state_dict(dict(weights), strict=True)
    return Trainer(config, task, model, task.build_criterion(config.criterion))
