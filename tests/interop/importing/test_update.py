"""One update of an imported MLM by fairseq's trainer equals one of transformers' model by torch's AdamW."""

from pathlib import Path

import pytest
import torch
from fairseq import options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.trainer import Trainer
from support import batch_of

from fairseq_maelm.checkpoints.weight_names import BERT, weights_of_family
from fairseq_maelm.interop.importing.run import CHECKPOINT_FILE, import_model
from fairseq_maelm.interop.loaded_checkpoint import load_with_model
from fairseq_maelm.text.imported import open_encoder

from .sources import transformers
from .test_import import bert

RATE, EPS, DECAY, BETA = 1e-3, 1e-6, 0.01, 0.98
TEXTS = ["The sailor takes the rope to the harbour.", "An old ship.", "The cook fries the fish, and the sailor rows."]


@pytest.mark.parametrize("optimizer", ["adam", "fused_adamw"])
def test_an_update_equals_that_of_transformers(optimizer: str, tmp_path: Path) -> None:
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    folder, imported = bert(tmp_path / "source", **dropout), tmp_path / "imported"
    words = import_model(folder, imported).model_options
    source = load_with_model(imported / CHECKPOINT_FILE)
    kept, mask = source.source_files, source.model.mask_index
    assert kept is not None

    rows = [[0, *tokens.tolist()] for tokens in open_encoder(imported).encode(TEXTS)]
    masked = [[2, 4], [1], [3, 5, 7]]
    net_input, target = batch_of(rows, masked, mask_index=mask, view=source.checkpoint.view)
    size = sum(map(len, rows))
    batch = {"net_input": net_input, "target": target, "ntokens": size, "nsentences": len(rows)}
    training = [str(imported), "--task", "maelm", "--criterion", "maelm", "--masked-input", "kept", *words]
    training += ["--tokens-per-sample", "40", "--batch-size", "4", "--cpu", "--clip-norm", "0"]
    training += ["--dropout", "0", "--attention-dropout", "0"]
    training += ["--optimizer", optimizer, "--lr", str(RATE), "--weight-decay", str(DECAY)]
    training += ["--adam-eps", str(EPS), "--adam-betas", f"(0.9, {BETA})"]
    config = convert_namespace_to_omegaconf(options.parse_args_and_arch(options.get_training_parser(), training))
    task = tasks.setup_task(config.task)
    model = task.build_model(config.model).train()
    model.load_state_dict(dict(source.checkpoint.weights), strict=True)
    criterion = task.build_criterion(config.criterion)
    trainer = Trainer(config, task, model, criterion)
    trainer._dummy_batch = batch
    with torch.no_grad():
        our_loss = float(criterion(model, batch)[0]) / len(target)
    trainer.train_step([batch])

    theirs = transformers.BertForMaskedLM.from_pretrained(folder, attn_implementation="eager").train()
    tokens = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=1)
    labels = torch.full_like(tokens, -100)
    for row, places in enumerate(masked):
        labels[row, places] = kept.order[tokens[row, places]]
        tokens[row, places] = mask
    # Our model has them in its positions, whose gradient they share.
    theirs.bert.embeddings.token_type_embeddings.requires_grad_(False)
    # fairseq adds epsilon to the root of the second moment before its correction, and torch after it.
    adamw = torch.optim.AdamW(theirs.parameters(), RATE, (0.9, BETA), EPS / (1 - BETA) ** 0.5, DECAY)
    loss = theirs(kept.order[tokens], attention_mask=(tokens != 1).long(), labels=labels).loss
    loss.backward()
    before = {name: weight.clone() for name, weight in theirs.state_dict().items()}
    adamw.step()

    assert our_loss == pytest.approx(float(loss), rel=1e-5) and our_loss > 1.0
    ours = kept.restore(
        weights_of_family(model.state_dict(), BERT, source.options, "masked-lm", None),
        BERT,
        source.model.max_positions(),
    )
    expected = theirs.state_dict()
    for name, weight in ours.items():
        assert not torch.equal(expected[name], before[name])
        torch.testing.assert_close(weight, expected[name], rtol=0, atol=1e-5)
