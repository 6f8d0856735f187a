"""Who is measured. Imports nothing but the standard library: workers with another fairseq read this file too."""

from dataclasses import dataclass

from training_step.settings import Settings


@dataclass(frozen=True)
class Contender:
    """One line of the comparison.

    Attributes:
        name: as on the command line.
        kind: which session trains it: "ours", "fairseq", "authors" or "huggingface".
        label: in tables and plots.
        description: what is trained, by which optimizer.
        needs: what must be there besides the package, or "".
    """

    name: str
    kind: str
    label: str
    description: str
    needs: str = ""


CONTENDERS = {
    contender.name: contender
    for contender in (
        Contender("maelm", "ours", "MAE-LM, ours", "encoder on visible tokens, shallow decoder; fairseq's Trainer"),
        Contender("mlm", "ours", "MLM, ours", "--masked-input kept --decoder-layers 0; fairseq's Trainer"),
        Contender("roberta", "fairseq", "RoBERTa, fairseq", "stock model, task masked_lm and optimizer adam"),
        Contender(
            "authors",
            "authors",
            "MAE-LM, authors' code",
            "their fairseq fork: arch ae, task masked_lm, optimizer adam, as in run_pretrain.sh",
            "--authors-code, a copy of their repository",
        ),
        Contender(
            "mpnet",
            "huggingface",
            "MPNet, Hugging Face",
            "MPNetForMaskedLM as a masked language model, which scores every position; torch's fused AdamW",
            "transformers",
        ),
        Contender(
            "modernbert",
            "huggingface",
            "ModernBERT, Hugging Face",
            "ModernBertForMaskedLM with as many layers of the same width, GeGLU of 2/3 of the feed-forward width "
            "(equal parameters a layer) and the head on predicted positions only; torch's fused AdamW",
            "transformers",
        ),
    )
}
COMPILED = "+compile"


def split_name(name: str) -> tuple[Contender, bool]:
    """A contender and whether it is to be compiled, from a name such as "maelm" or "maelm+compile".

    Raises:
        ValueError: names the contenders that there are.
    """
    plain = name.removesuffix(COMPILED)
    if plain not in CONTENDERS:
        raise ValueError(f"there is no contender {name!r}; choose from {', '.join(CONTENDERS)}")
    compiled = name != plain
    if compiled and CONTENDERS[plain].kind not in ("ours", "huggingface"):
        raise ValueError(f"{plain} has no compiled form: {COMPILED} goes with maelm, mlm, mpnet and modernbert")
    return CONTENDERS[plain], compiled


def label(name: str) -> str:
    """What tables and plots call a contender."""
    contender, compiled = split_name(name)
    return contender.label + (", compiled" if compiled else "")


def gated_width(settings: Settings) -> int:
    """Feed-forward width of GeGLU with three matrices that has the parameters of the usual two: 2/3 of it."""
    return 2 * settings.ffn // 3


def fairseq_options(name: str, settings: Settings, data: str) -> list[str]:
    """The words after ``fairseq-train`` that train a contender of kind "ours", "fairseq" or "authors"."""
    contender, _ = split_name(name)
    dropout, masking = str(settings.dropout), str(settings.masking)
    options = [data, "--sample-break-mode", "none", "--tokens-per-sample", str(settings.length)]
    options += ["--mask-prob", masking, "--dropout", dropout, "--attention-dropout", dropout]
    options += ["--encoder-layers", str(settings.layers), *_widths("encoder", settings)]
    options += ["--batch-size", str(settings.sequences), "--required-batch-size-multiple", "1"]
    options += ["--adam-betas", "(0.9, 0.98)", "--adam-eps", "1e-6", "--weight-decay", "0.01", "--clip-norm", "2.0"]
    options += ["--lr-scheduler", "polynomial_decay", "--lr", "1e-4", "--warmup-updates", "1000"]
    options += ["--total-num-update", "100000", "--seed", "1", "--disable-validation", "--no-save"]
    # Batches that wait in a queue were made while nobody looked at the clock: none, or few beside the timed steps.
    buffered = "2" if settings.num_workers else "0"
    options += ["--num-workers", str(settings.num_workers), "--data-buffer-size", buffered]
    if settings.device == "cpu":
        options.append("--cpu")
    return options + _of_model(contender, settings)


def _widths(part: str, settings: Settings) -> list[str]:
    return [
        *[f"--{part}-embed-dim", str(settings.width), f"--{part}-ffn-embed-dim", str(settings.ffn)],
        *[f"--{part}-attention-heads", str(settings.heads)],
    ]


def _of_model(contender: Contender, settings: Settings) -> list[str]:
    positions = ["--max-positions", str(settings.length)]
    if contender.kind == "ours":
        ours = ["--task", "maelm", "--criterion", "maelm", "--arch", "maelm_base", *positions]
        if contender.name == "mlm":
            return [*ours, "--masked-input", "kept", "--decoder-layers", "0"]
        return [*ours, "--decoder-layers", str(settings.decoder_layers)]
    stock = ["--task", "masked_lm", "--criterion", "masked_lm", "--optimizer", "adam"]
    if contender.kind == "fairseq":
        return [*stock, "--arch", "roberta_base", *positions]
    decoder = ["--gen-decoder-layers", str(settings.decoder_layers), *_widths("decoder", settings)]
    return [*stock, "--arch", "ae_base", "--no-return-mask", "--rel-pos", "1", *decoder]
