"""Sources in other forms: old and sharded files, encoders without LM head, fairseq's own, downloads; and refusals."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq.data import Dictionary

from fairseq_maelm import MaelmModel, cli
from fairseq_maelm.checkpoints.locate import CHECKPOINT_FILE
from fairseq_maelm.checkpoints.plain_data import read_state
from fairseq_maelm.interop.export.exporter import ExportSettings, export
from fairseq_maelm.interop.importing import huggingface
from fairseq_maelm.interop.importing.importer import import_model
from fairseq_maelm.interop.loaded_checkpoint import load_with_model
from fairseq_maelm.text.vocabulary import MODEL_FILE, SOURCE_FILE, TOKENIZER_FILE
from interop.export.checkpoints import MODERN, train_vocabulary, write_checkpoint

from . import sources
from .sources import transformers

safetensors = pytest.importorskip("safetensors.torch")

TEXT = "The sailor takes the rope; déjà vu."
BOTH = ["hidden states", "masked-lm scores"]


@pytest.fixture(scope="module")
def roberta(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sources.roberta_folder(tmp_path_factory.mktemp("roberta") / "source")


@pytest.fixture(scope="module")
def imported_roberta(roberta: Path) -> Path:
    return import_model(roberta, roberta.parent / "imported").folder


def compared(source: Path, tmp_path: Path) -> list[str]:
    return [each.what for each in import_model(source, tmp_path / "imported").agreements]


def refused(source: Path, tmp_path: Path, match: str, data: Any = None) -> None:
    with pytest.raises((ValueError, FileNotFoundError), match=match):
        import_model(source, tmp_path / "imported", data)
    assert not (tmp_path / "imported").exists() and not list(tmp_path.glob("*.unfinished"))


def test_old_files_shards_and_half_precision_are_read(tmp_path: Path) -> None:
    """pytorch_model.bin in two shards and half precision gives the results of transformers in single precision."""
    folder = sources.roberta_folder(tmp_path / "source")
    model = transformers.AutoModelForMaskedLM.from_pretrained(folder)
    state = {name: weight.bfloat16() for name, weight in model.state_dict().items()}
    (folder / "model.safetensors").unlink()
    names, shards = sorted(state), ("pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin")
    for shard, part in zip(shards, (names[::2], names[1::2])):
        torch.save({name: state[name].clone() for name in part}, folder / shard)
    index = {name: shards[number % 2] for number, name in enumerate(names)}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    assert compared(folder, tmp_path) == BOTH
    weights = read_state(tmp_path / "imported" / CHECKPOINT_FILE)["model"]
    expected = state["roberta.encoder.layer.1.output.dense.weight"].float()
    assert torch.equal(weights["encoder.layers.1.fc2.weight"], expected)


def test_weights_are_more_exact_than_the_data_type_of_config_json(tmp_path: Path) -> None:
    """Version 5 of transformers rounds such weights when it opens the folder, and the import keeps them."""
    half = dict.fromkeys(["dtype", "torch_dtype"], "bfloat16")
    assert compared(sources.edit_config(sources.bert(tmp_path / "source"), **half), tmp_path) == BOTH


def test_a_model_may_have_no_padding_id(tmp_path: Path) -> None:
    assert compared(without_padding_id(sources.bert(tmp_path / "source")), tmp_path) == BOTH


def without_padding_id(folder: Path) -> Path:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "pad_token_id": None}))
    return folder


def test_roberta_needs_its_padding_id(tmp_path: Path) -> None:
    refused(without_padding_id(sources.roberta_folder(tmp_path / "source")), tmp_path, "positions are counted from")


def test_berts_of_the_first_versions_are_read(tmp_path: Path) -> None:
    """They have TensorFlow's names of LayerNorm's weights and, as published, a head for the next sentence."""
    folder = sources.bert(tmp_path / "source")
    weights = transformers.BertForPreTraining(transformers.AutoConfig.from_pretrained(folder)).state_dict()
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    for new, name in old.items():
        weights = {each.replace(new, name): weight for each, weight in weights.items()}
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin")
    assert compared(folder, tmp_path) == BOTH
    done = export(tmp_path / "imported" / CHECKPOINT_FILE, None, tmp_path / "out", ExportSettings())
    after = safetensors.load_file(done.folder / "model.safetensors")
    heads = [name for name in weights if "pooler" in name or "seq_relationship" in name]
    assert len(heads) == 4 and all(torch.equal(after[name], weights[name]) for name in heads)


def test_further_heads_are_told_and_come_back(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A class of its own may have heads that no state depends on; weights in the layers or the LM head are not."""
    folder = sources.bert(tmp_path / "source")
    weights = safetensors.load_file(folder / "model.safetensors")
    heads = {"cls.species.weight": torch.randn(6, 48), "cls.chain.weight": torch.randn(2, 48)}
    safetensors.save_file({**weights, **heads}, folder / "model.safetensors")
    assert compared(folder, tmp_path) == BOTH
    assert "further heads, cls.chain, cls.species: their weights" in caplog.text
    checkpoint = tmp_path / "imported" / CHECKPOINT_FILE
    done = export(checkpoint, None, tmp_path / "out", ExportSettings())
    after = safetensors.load_file(done.folder / "model.safetensors")
    assert all(torch.equal(after[name], weight) for name, weight in heads.items())
    alone = export(checkpoint, None, tmp_path / "alone", ExportSettings(architecture="encoder")).folder
    assert not heads.keys() & safetensors.load_file(alone / "model.safetensors").keys()
    for name in ("bert.encoder.layer.0.adapter.weight", "cls.predictions.transform.gate.weight", "bert.norm.weight"):
        safetensors.save_file({**weights, name: torch.ones(48)}, folder / "model.safetensors")
        with pytest.raises(ValueError, match=f"does not have 1 of its weights, such as {name.removeprefix('bert.')}"):
            import_model(folder, tmp_path / "refused")


POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 435\n"


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("model.safetensors", POINTER, "model.safetensors is a Git LFS pointer"),
        (TOKENIZER_FILE, POINTER, "tokenizer.json is a Git LFS pointer"),
        (
            "adapter_config.json",
            '{"base_model_name_or_path": "x/y"}',
            r"adapter \(adapter_config.json\) of the model x/y",
        ),
    ],
)
def test_what_stands_in_place_of_a_model_is_named(
    file: str, content: str, message: str, roberta: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(roberta, tmp_path / "source"))
    (folder / file).write_text(content)
    refused(folder, tmp_path, message)


def test_a_pointer_in_place_of_a_checkpoint_is_named(tmp_path: Path) -> None:
    (tmp_path / "model.pt").write_text(POINTER)
    refused(tmp_path / "model.pt", tmp_path, "model.pt is a Git LFS pointer, .* `git lfs pull`")


def test_unmerged_adapters_are_named(roberta: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(roberta, tmp_path / "source"))
    weights = safetensors.load_file(folder / "model.safetensors")
    adapted = {f"base_model.model.{name}": weight for name, weight in weights.items()}
    adapted["base_model.model.roberta.encoder.layer.0.attention.self.query.lora_A.default.weight"] = torch.ones(2, 48)
    safetensors.save_file(adapted, folder / "model.safetensors")
    refused(folder, tmp_path, "LoRA adapters, such as .*lora_A.default.weight: merge them")


def test_a_folder_of_the_hubs_cache_is_read(roberta: Path, tmp_path: Path) -> None:
    """Its only snapshot is the model; of several, the user chooses."""
    cache = tmp_path / "models--FacebookAI--roberta-base"
    shutil.copytree(roberta, cache / "snapshots" / "0a1b")
    assert compared(cache, tmp_path) == BOTH
    assert "| source | FacebookAI/roberta-base |" in (tmp_path / "imported" / "README.md").read_text()
    shutil.rmtree(tmp_path / "imported")
    (cache / "snapshots" / "2c3d").mkdir()
    refused(cache, tmp_path, "with 2 snapshots: give one, such as .*/snapshots/0a1b")


@pytest.fixture(scope="module")
def modern(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of ModernBERT, with local attention."""
    folder = tmp_path_factory.mktemp("modern")
    data = train_vocabulary(folder / "data")
    options = {**MODERN, "decoder_layers": 0, "encoder_layers": 4, "local_attention": 6}
    write_checkpoint(folder / "checkpoint.pt", data, {"masked_input": "kept"}, **options)
    return export(folder / "checkpoint.pt", data, folder / "source", ExportSettings("modernbert")).folder


_NOT_SUCH, _OTHER_VALUES = "config.json does not describe such a model", "computes different values"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer_types": 5}, _NOT_SUCH),
        ({"rope_parameters": {"rope_theta": 3.0}}, _NOT_SUCH),
        ({"rope_parameters": {"full_attention": {"rope_theta": [3.0]}}}, _NOT_SUCH),
        ({"pad_token_id": True}, "Field 'pad_token_id' with value True|cannot compute its outputs"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0, not a whole number of 1 or more"),
        ({"max_position_embeddings": 1}, "max_position_embeddings is 1, too few"),
        ({"model_type": ["maelm"]}, "model_type .* is not one of"),
        ({"rope_parameters": sources.rope(full_attention=10.5, sliding_attention=1e4)}, _OTHER_VALUES),
        ({"layer_types": ["full_attention", "sliding_attention", "full_attention", "full_attention"]}, _OTHER_VALUES),
        ({"hidden_activation": "silu"}, _OTHER_VALUES),
        # What sequences of the compared lengths may not show.
        ({"rope_scaling": {"rope_type": "linear", "factor": 1.0}}, "rope_scaling is .*, but our encoder has None"),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 1.0}}},
            "its rotary positions are scaled",
        ),
        ({"is_decoder": True}, "is_decoder is True, but our encoder has False"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings is False, but our encoder has True"),
        # What would take too much memory.
        ({"num_hidden_layers": 1001}, "num_hidden_layers in config.json is '1001', not a number up to 1000"),
        ({"hidden_size": 10**9}, "hidden_size in config.json is '1000000000', not a number up to 10000000"),
        ({"num_labels": 10**6}, "num_labels in config.json is '1000000', not a number up to 100000"),
    ],
)
def test_a_wrong_config_json_is_refused(changes: dict[str, Any], message: str, modern: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(modern, tmp_path / "source"))
    refused(sources.edit_config(folder, **changes), tmp_path, message)


@pytest.mark.parametrize(("kind", "family"), [("electra", "ElectraForPreTraining"), ("mpnet", "MPNetModel")])
def test_an_encoder_without_lm_head_goes_in_and_out(kind: str, family: str, tmp_path: Path) -> None:
    """A discriminator, and a sentence encoder with its pooler and the files of sentence-transformers."""
    folder = sources.FOLDERS[kind](tmp_path / "source")
    (folder / "model.safetensors").unlink()
    getattr(transformers, family)(transformers.AutoConfig.from_pretrained(folder)).save_pretrained(folder)
    (folder / "1_Dense").mkdir()
    files = {"modules.json": "[]", "1_Dense/config.json": "{}", "1_Dense/model.safetensors": "weights"}
    for name, content in {**files, "1_Dense/code.py": "never kept"}.items():
        (folder / name).write_text(content)
    assert compared(folder, tmp_path) == BOTH[:1]
    done = export(tmp_path / "imported" / CHECKPOINT_FILE, None, tmp_path / "out", ExportSettings())
    assert done.target is not None and done.target.architecture == "encoder"
    before, after = (safetensors.load_file(place / "model.safetensors") for place in (folder, done.folder))
    before = {name.removeprefix("electra."): weight for name, weight in before.items() if "discriminator" not in name}
    assert before.keys() == after.keys() and len(before) > 20
    assert all(torch.equal(weight, after[name]) for name, weight in before.items())
    for place in (done.folder, tmp_path / "imported"):
        assert {name: (place / name).read_text() for name in files} == files
        assert not (place / "1_Dense" / "code.py").exists()
    with pytest.raises(ValueError, match="an encoder without LM head, like the model that it was imported from"):
        MaelmModel.from_pretrained(str(tmp_path / "imported")).fill_mask("The <mask>.")


def test_masks_are_written_as_in_the_source_or_here(tmp_path: Path) -> None:
    hub = MaelmModel.from_pretrained(str(import_model(sources.bert(tmp_path / "source"), tmp_path / "imported").folder))
    assert hub.fill_mask("the [MASK] takes a [MASK].") == hub.fill_mask("the <mask> takes a <mask>.")


def test_transformers_default_of_layer_norm_is_carried(tmp_path: Path) -> None:
    """The comparison of the import would find another number."""
    folder = sources.edit_config(sources.roberta_folder(tmp_path / "source"), layer_norm_eps=None)
    words = import_model(folder, tmp_path / "imported").model_options
    assert words[words.index("--layer-norm-eps") + 1] == "1e-12"


# fairseq's RoBERTa


def test_a_model_without_tokenizer_is_refused(tmp_path: Path) -> None:
    """Its texts would become <unk>, since transformers invents a tokenizer without tokens."""
    folder = sources.bert(tmp_path / "source")
    for path in folder.iterdir():
        if path.name != "config.json" and path.suffix != ".safetensors":
            path.unlink()
    refused(folder, tmp_path, "there is no tokenizer in .*: put tokenizer.json, or .* or vocab.txt,")


def test_a_tokenizer_of_special_tokens_alone_is_refused(tmp_path: Path) -> None:
    tokenizer = sources.byte_pairs(sources.folder_of(tmp_path / "source"), sources.SPECIAL, ["<mask>"])
    model = sources.tokenizers.models.WordLevel(
        {token: number for number, token in enumerate([*sources.SPECIAL, "<mask>"])}
    )
    tokenizer.model = model
    refused(sources.save(tmp_path / "source", "Roberta", tokenizer, 9), tmp_path, "special tokens alone")


def test_weights_of_data_parallel_are_refused(tmp_path: Path) -> None:
    folder = sources.roberta_folder(tmp_path / "source")
    weights = safetensors.load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save({f"module.{name}": weight for name, weight in weights.items()}, folder / "pytorch_model.bin")
    refused(folder, tmp_path, 'begin with "module.": save the model in DataParallel, model.module')


def test_a_wrong_name_of_a_special_token_is_ignored(tmp_path: Path) -> None:
    folder = sources.roberta_folder(tmp_path / "source")
    (folder / "tokenizer_config.json").write_text(json.dumps({"mask_token": ["<mask>"], "extra_special_tokens": [{}]}))
    assert compared(folder, tmp_path) == BOTH


def test_a_folder_is_imported_with_its_own_vocabulary_only(roberta: Path, tmp_path: Path) -> None:
    refused(roberta, tmp_path, "--vocabulary is for checkpoint files", tmp_path)


def test_fairseq_roberta_is_imported(tmp_path: Path) -> None:
    checkpoint = sources.fairseq_checkpoint(tmp_path / "source")
    assert compared(checkpoint, tmp_path) == BOTH
    theirs = sources.RobertaModel.from_pretrained(
        str(checkpoint.parent), "model.pt", str(checkpoint.parent), bpe="sentencepiece",
        sentencepiece_model=str(checkpoint.parent / MODEL_FILE),
    ).eval()  # fmt: skip
    ours = MaelmModel.from_pretrained(str(tmp_path / "imported"))
    text = "The sailor takes the rope to the harbour."
    assert torch.equal(ours.encode(text), theirs.encode(text))
    with torch.no_grad():
        torch.testing.assert_close(ours.extract_features(ours.encode(text)), theirs.extract_features(ours.encode(text)))


def test_a_sentencepiece_model_that_no_export_expresses_is_read_and_told(tmp_path: Path, caplog: Any) -> None:
    checkpoint = sources.fairseq_checkpoint(tmp_path / "source")
    model = checkpoint.parent / MODEL_FILE
    model.write_bytes(model.read_bytes() + b"\x1a\x02\x20\x00")  # remove_extra_whitespaces is false
    assert compared(checkpoint, tmp_path) == BOTH
    assert "`maelm export` will refuse" in caplog.text
    assert len(MaelmModel.from_pretrained(str(tmp_path / "imported")).encode(TEXT)) > 10


def test_the_epsilon_of_a_fork_of_fairseq_is_carried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """fairseq has no option for it, but a fork's model may have one number, or several."""
    from fairseq_maelm.interop.importing import fairseq_roberta

    checkpoint, honest = sources.fairseq_checkpoint(tmp_path / "source"), fairseq_roberta._model_options
    numbers = [1e-12]

    def of_a_fork(model: Any) -> dict[str, Any]:
        for place, part in enumerate(each for each in model.modules() if isinstance(each, torch.nn.LayerNorm)):
            part.eps = numbers[place % len(numbers)]
        return honest(model)

    monkeypatch.setattr(fairseq_roberta, "_model_options", of_a_fork)
    words = import_model(checkpoint, tmp_path / "first").model_options
    assert words[words.index("--layer-norm-eps") + 1] == "1e-12"
    numbers.append(1e-6)
    refused(checkpoint, tmp_path, "computes different values")


def test_gpt2_pairs_of_fairseq_are_read(tmp_path: Path) -> None:
    """With encoder.json and vocab.bpe, as in roberta.base, text is encoded as by fairseq's code."""
    from fairseq.data.encoders.gpt2_bpe_utils import Encoder

    checkpoint = sources.gpt2_checkpoint(tmp_path / "source")
    import_model(checkpoint, tmp_path / "imported")
    dictionary = Dictionary.load(str(checkpoint.parent / "dict.txt"))
    merges = (checkpoint.parent / "vocab.bpe").read_text().split("\n")[1:-1]
    pieces = json.loads((checkpoint.parent / "encoder.json").read_text())
    encoder = Encoder(pieces, [tuple(each.split(" ")) for each in merges])
    hub = MaelmModel.from_pretrained(str(tmp_path / "imported"))
    for text in (TEXT, "  two  spaces\tand a tab", "日本語 don't 1234"):
        expected = [dictionary.index(str(number)) for number in encoder.encode(text)]
        assert hub.encode(text).tolist() == [0, *expected, 2]


def test_a_checkpoint_of_fairseq_without_its_dictionary_is_refused(tmp_path: Path) -> None:
    checkpoint = sources.fairseq_checkpoint(tmp_path / "source")
    (tmp_path / "source" / MODEL_FILE).unlink()
    with (tmp_path / "source" / "dict.txt").open("a") as file:
        file.write("another 1\n")
    refused(checkpoint, tmp_path, r"it has \d+ embeddings, but the dict.txt that was given has \d+ symbols")
    (tmp_path / "source" / "dict.txt").unlink()
    refused(checkpoint, tmp_path, "there is no dict.txt")


# The tokenizer, and the files of the source


def test_who_may_read_one_file_may_read_all(imported_roberta: Path) -> None:
    assert {file.stat().st_mode for file in imported_roberta.iterdir()} == {
        (imported_roberta / "dict.txt").stat().st_mode
    }


def test_a_space_in_front_of_text_is_kept(tmp_path: Path) -> None:
    """A tokenizer with a space in front of text has add_prefix_space, or transformers 4 would remove the space."""
    tokenizer = sources.byte_pairs(sources.folder_of(tmp_path / "source"), sources.SPECIAL, ["<mask>"])
    tokenizer.pre_tokenizer = sources.tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=True)
    source = sources.save(tmp_path / "source", "Roberta", tokenizer, tokenizer.get_vocab_size())
    tokenizer.save(str(source / TOKENIZER_FILE))  # as it is: transformers 4 has taken the space away
    folder = import_model(source, tmp_path / "imported").folder
    assert json.loads((folder / "tokenizer_config.json").read_text())["add_prefix_space"] is True
    found = transformers.AutoTokenizer.from_pretrained(folder)("the sailor")["input_ids"]
    assert found == tokenizer.encode("the sailor").ids


@pytest.mark.parametrize("lower_case", [True, False])
def test_other_settings_than_the_tokenizers_are_told(tmp_path: Path, caplog: Any, lower_case: bool) -> None:
    """With do_lower_case false, transformers keeps capitals although tokenizer.json removes them."""
    settings = sources.bert(tmp_path / "source") / "tokenizer_config.json"
    changes = {"tokenizer_class": "BertTokenizer", "do_lower_case": lower_case}
    settings.write_text(json.dumps({**json.loads(settings.read_text()), **changes}))
    import_model(settings.parent, tmp_path / "imported")
    assert ("reads text in" in caplog.text) is not lower_case


def test_with_our_ids_two_texts_are_joined_as_fairseq_does(tmp_path: Path) -> None:
    """fairseq, which may have fine-tuned the model, joins texts by two separators, and BERT by one."""
    import_model(sources.bert(tmp_path / "source"), tmp_path / "imported")
    done = export(tmp_path / "imported" / CHECKPOINT_FILE, None, tmp_path / "out", ExportSettings("maelm"))
    for folder, between in ((tmp_path / "imported", [2]), (done.folder, [2, 2])):
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        a, b = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in ("the rope", "a sailor"))
        assert tokenizer("the rope", "a sailor")["input_ids"] == [0, *a, *between, *b, 2]


def test_a_special_token_without_a_role_does_not_prevent_an_export(tmp_path: Path) -> None:
    """ModernBERT has one: transformers reads it as a token, and our tokenizer as text."""
    import_model(sources.modernbert_folder(tmp_path / "source"), tmp_path / "imported")
    done = export(tmp_path / "imported" / CHECKPOINT_FILE, None, tmp_path / "out", ExportSettings(complete=True))
    assert len(transformers.AutoTokenizer.from_pretrained(done.folder)("<|endoftext|>")["input_ids"]) == 3


def test_rounded_weights_give_the_source_s_states_for_both_token_types(tmp_path: Path) -> None:
    source = sources.bert(tmp_path / "source")
    import_model(source, tmp_path / "imported")
    settings = ExportSettings(dtype="float16")
    done = export(tmp_path / "imported" / CHECKPOINT_FILE, None, tmp_path / "out", settings)
    theirs, ours = (transformers.AutoModel.from_pretrained(place).eval() for place in (source, done.folder))
    tokens, types = torch.tensor([[2, 9, 10, 3, 11, 12, 3]]), torch.tensor([[0, 0, 0, 0, 1, 1, 1]])
    for kinds in (torch.zeros_like(types), types):
        expected, found = (each(tokens, token_type_ids=kinds).last_hidden_state for each in (theirs, ours))
        torch.testing.assert_close(found, expected, atol=2e-3, rtol=0.0)

    assert (theirs(tokens).last_hidden_state - expected).abs().max() > 0.02


def test_files_of_another_source_or_damaged_ones_are_not_used(imported_roberta: Path, tmp_path: Path) -> None:
    whole = safetensors.load_file(imported_roberta / SOURCE_FILE)
    for name in ("dict.txt", TOKENIZER_FILE):
        (tmp_path / name).write_bytes((imported_roberta / name).read_bytes())
    checkpoint = imported_roberta / CHECKPOINT_FILE

    def found(**changes: torch.Tensor) -> Any:
        safetensors.save_file({**whole, **changes}, tmp_path / SOURCE_FILE)
        return load_with_model(checkpoint, tmp_path).source_files

    assert found() is not None
    assert found(vocabulary=whole["vocabulary"] + 1) is None
    for change in ({"order": whole["order"] * 0}, {"file:../escape": whole["file:config.json"].clone()}):
        with pytest.raises(ValueError, match=r"source_files.safetensors cannot be read \(its content is not what"):
            found(**change)


# What the table of bad input cannot say


def test_another_window_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a window that is two tokens wider, the comparison fails."""
    honest, wider = huggingface.model_options, {"local_attention": sources.MODERN_SIZES["local_attention"] + 2}
    monkeypatch.setattr(huggingface, "model_options", lambda config: {**honest(config), **wider})
    refused(sources.modernbert_folder(tmp_path / "source"), tmp_path, "computes different values")


def test_an_untied_head_is_refused(tmp_path: Path) -> None:
    folder = sources.roberta_folder(tmp_path / "source")
    state = transformers.AutoModelForMaskedLM.from_pretrained(folder).state_dict()
    (folder / "model.safetensors").unlink()
    torch.save({**state, "lm_head.decoder.weight": state["lm_head.decoder.weight"] + 1}, folder / "pytorch_model.bin")
    refused(folder, tmp_path, "lm_head.decoder.weight differs")


def test_a_model_is_downloaded_by_its_name(
    roberta: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only with --download: settings, and weights in one of two formats."""
    import huggingface_hub

    asked: list[list[str]] = []

    def of_the_hub(name: str, allow_patterns: list[str]) -> str:
        asked.append(allow_patterns)
        if name != "FacebookAI/roberta-base":
            raise OSError("404\nnot found")
        return str(roberta)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", of_the_hub)
    monkeypatch.chdir(tmp_path)
    words = ["import", "FacebookAI/roberta-base", "--output", "imported"]
    with pytest.raises(SystemExit, match="there is no folder or checkpoint FacebookAI/roberta-base: .* --download"):
        cli.main(words)
    with pytest.raises(SystemExit, match="FacebookAI/other cannot be downloaded from the Hugging Face Hub: 404 not f"):
        cli.main(["import", "FacebookAI/other", "--output", "imported", "--download"])
    assert list(tmp_path.iterdir()) == []
    cli.main([*words, "--download"])
    assert "masked-lm scores: largest difference" in capsys.readouterr().out
    assert "| source | FacebookAI/roberta-base |" in (tmp_path / "imported" / "README.md").read_text()
    modules = [f"[1-9]_*/{name}" for name in ("model.safetensors", "pytorch_model.bin")]
    assert asked[1:] == [["*.json", "*.txt", "*.model", *modules, "model*.safetensors"]]
