"""Comparison of an exported folder under several versions of transformers.

    python versions.py run FOLDER OUTPUT.json       by an interpreter for each version of transformers
    python versions.py compare OUTPUT.json ...      ids must be equal, outputs equal up to rounding

``run`` opens the folder as the class in its config.json and as an encoder, saves it by transformers, opens the copy,
and compares. It needs neither fairseq nor fairseq_maelm: the folder may contain its code. For our own classes it also
runs a training step with and without recomputed activations, and adds symbols.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

TEXTS = [
    "The <mask> is old.",
    "In 1897, the <mask> of the river had three <mask>; nobody lived there!",
    "caf\u00e9 cafe\u0301 \u00c5ngstr\u00f6m \u4f60\u597d \U0001f600 x\u00b2 \u2264 10\u2030",
    "",
    "  spaces\tand\nlines  ",
]
AUTO_CLASSES = {
    "Model": "AutoModel",
    "ForMaskedLM": "AutoModelForMaskedLM",
    "ForSequenceClassification": "AutoModelForSequenceClassification",
    "ForTokenClassification": "AutoModelForTokenClassification",
    "ForQuestionAnswering": "AutoModelForQuestionAnswering",
}
TOLERANCE = 1e-5


def numbers(model: Any, batch: Any) -> list[float]:
    """Return about 2,000 numbers of the model's first output for a padded batch, without padding."""
    import torch

    with torch.no_grad():
        output = model.eval()(**batch)[0]
    if output.shape[:2] == batch["input_ids"].shape:
        output = output[batch["attention_mask"].bool()]
    flat = output.flatten()
    return flat[:: max(1, len(flat) // 2000)].tolist()


def train(model: Any, batch: Any) -> bool:
    """Return whether recomputed activations give equal gradients; also add symbols to the model."""
    import torch

    gradients = []
    for recompute in (False, True):
        if recompute:
            model.gradient_checkpointing_enable()
        model.zero_grad()
        torch.manual_seed(1)
        model.train()(**batch)[0].sum().backward()
        gradients.append([each.grad.clone() for each in model.parameters() if each.grad is not None])
    model.resize_token_embeddings(model.config.vocab_size + 8)
    model(**batch)
    return all(torch.equal(one, other) for one, other in zip(*gradients))


def run(folder: str, output: Path) -> None:
    """Compute with the installed transformers and write the results."""
    import transformers

    transformers.utils.logging.set_verbosity_error()
    config = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
    architecture = config["architectures"][0]
    kind = next(ending for ending in reversed(AUTO_CLASSES) if architecture.endswith(ending))
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    batch = tokenizer(TEXTS, padding=True, truncation=True, return_tensors="pt")
    results = {}
    for name in dict.fromkeys((AUTO_CLASSES[kind], "AutoModel")):
        model = getattr(transformers, name).from_pretrained(folder, trust_remote_code=True)
        results[name] = numbers(model, batch)
        with tempfile.TemporaryDirectory() as copy:
            model.save_pretrained(copy)
            again = getattr(transformers, name).from_pretrained(copy, trust_remote_code=True)
            if numbers(again, batch) != results[name]:
                sys.exit(f"{folder}: transformers {transformers.__version__} changes the model by saving it")
        if model.supports_gradient_checkpointing and not train(model, batch):
            sys.exit(f"{folder}: transformers {transformers.__version__} recomputes other gradients")
    ids = [tokenizer(text)["input_ids"] for text in TEXTS] + [tokenizer(TEXTS[0], TEXTS[1])["input_ids"]]
    content = {"transformers": transformers.__version__, "folder": folder, "ids": ids, "outputs": results}
    output.write_text(json.dumps(content), encoding="utf-8")
    print(f"{folder}: transformers {transformers.__version__}: {architecture} and AutoModel open, save and reopen")


def compare(paths: list[Path]) -> None:
    """Compare the results of several versions for one folder."""
    first, *others = (json.loads(path.read_text(encoding="utf-8")) for path in paths)
    if not others:
        sys.exit("give the outputs of two versions or more")
    for other in others:
        versions = f"{first['folder']}: transformers {first['transformers']} and {other['transformers']}"
        if other["ids"] != first["ids"]:
            sys.exit(f"{versions}: the tokens differ")
        pairs = [(a, b) for name, values in first["outputs"].items() for a, b in zip(values, other["outputs"][name])]
        difference = max(abs(a - b) for a, b in pairs)
        size = max(abs(a) for a, _ in pairs)
        print(f"{versions}: equal tokens; largest difference {difference:.1e} of values up to {size:.1f}")
        if difference > TOLERANCE * max(1.0, size):
            sys.exit("that is more than rounding")


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Compare an exported folder under several versions of transformers.")
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run")
    running.add_argument("folder")
    running.add_argument("output", type=Path)
    commands.add_parser("compare").add_argument("outputs", type=Path, nargs="+")
    args = parser.parse_args()
    if args.command == "run":
        run(args.folder, args.output)
    else:
        compare(args.outputs)


if __name__ == "__main__":
    main()
