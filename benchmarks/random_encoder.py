"""Make what the benchmark of adaptation needs: an encoder of published size with random weights, and text for it.

    python benchmarks/random_encoder.py bert TEXT FOLDER      or: modernbert

The weights do not matter for cost, and neither do the words, so that nothing is downloaded. FOLDER gets `source` as
transformers saves it, its `maelm import` as `imported`, TEXT in its vocabulary as `data`, and a copy of TEXT.
"""

import argparse
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from fairseq_maelm.files.optional_imports import import_transformers

SPECIAL = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}


def source(kind: str, text: Path, **changes: Any) -> tuple[Any, Any]:
    """Return a tokenizer of the text's word pieces, and bert-base's or ModernBERT-base's model with random weights.

    Where the text has too few words, rows of the embeddings stay without tokens.
    """
    import tokenizers
    import torch

    transformers = import_transformers()
    pieces = tokenizers.BertWordPieceTokenizer(lowercase=True)
    pieces.train([str(text)], vocab_size=30_522, special_tokens=list(SPECIAL.values()), show_progress=False)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=pieces._tokenizer, **SPECIAL)
    # The defaults of both configurations are the published sizes.
    config = transformers.BertConfig(**changes)
    if kind == "modernbert":
        numbers = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("pad", "cls", "sep")}
        numbers |= {"bos_token_id": numbers["cls_token_id"], "eos_token_id": numbers["sep_token_id"]}
        config = transformers.ModernBertConfig(**numbers, **changes)
    torch.manual_seed(1)
    return tokenizer, transformers.AutoModelForMaskedLM.from_config(config)


def main(words: list[str] | None = None, **changes: Any) -> None:
    """Write the folder; changes are those of the model's configuration."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=["bert", "modernbert"])
    parser.add_argument("text", type=Path)
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args(words)
    folder: Path = arguments.folder
    folder.mkdir(parents=True)
    shutil.copy(arguments.text, folder / "text.txt")
    for part in source(arguments.kind, arguments.text, **changes):
        part.save_pretrained(folder / "source")
    maelm = [sys.executable, "-m", "fairseq_maelm.cli"]
    subprocess.run([*maelm, "import", folder / "source", "--output", folder / "imported"], check=True)
    prepare = [*maelm, "prepare", "corpus", folder / "text.txt", "--vocabulary", folder / "imported"]
    subprocess.run([*prepare, "--output", folder / "data"], check=True)


if __name__ == "__main__":
    main()
