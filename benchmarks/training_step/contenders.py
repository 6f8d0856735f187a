"""Who is measured. Imports nothing but the standard library: workers with another fairseq read this file too."""

from dataclasses import dataclass

from training_step.settings import Settings


@dataclass(frozen=True)
class Contender:
    """One line of the comparison."""

    name: str  # as on the command line
    kind: str  # which session trains it: "ours", "fairseq", "authors" or "huggingface"
    label: str  # in tables and plots
    description: str  # what is trained, by which optimizer
    needs: str = ""  # what must be there besides the package, or ""
    gated: bool = False  # its feed-forward networks are GeGLU, with three matrices
    decoder_layers: int | None = None  # of MAE-LM's decoder, where they are not the size's


CONTENDERS = {
    contender.name: contender
    for contender in (
        Contender("maelm", "ours", "MAE-LM, ours", "encoder on visible tokens, shallow decoder; fairseq's Trainer"),
        Contender(
            "mlm",
            "ours",
            "MLM, ours",
            "--masked-input kept --decoder-layers 0; fairseq's Trainer",
            decoder_layers=0,
        ),
        Contender(
            "modern",
            "ours",
            "MAE-LM, modern, ours",
            "maelm with the layers and rotary positions of ModernBERT, as wide as in modernbert; fairseq's Trainer",
            gated=True,
        ),
        Contender(
            "modern_mlm",
            "ours",
            "MLM, modern, ours",
            "modern with --masked-input kept --decoder-layers 0; fairseq's Trainer",
            gated=True,
            decoder_layers=0,
        ),
        Contender("roberta", "fairseq", "RoBERTa, fairseq", "stock model, task masked_lm and optimizer adam"),
        Contender(
            "authors",
            "authors",
            "MAE-LM, authors' code",
            "their fairseq fork: arch ae, task masked_lm, optimizer adam, as in run_pretrain.sh",
            "--authors-code, a copy of their repository",
        ),
        Contender(
            "modernbert",
            "huggingface",
            "ModernBERT, Hugging Face",
            "ModernBertForMaskedLM with as many layers of the same width, GeGLU of 2/3 of the feed-forward width "
            "(equal parameters a layer), global attention without +local, and the head on predicted positions; torch's "
            "fused AdamW",
            "transformers",
            gated=True,
        ),
    )
}
# What may follow the name of one of ours after a plus sign, and the words of the command line that it stands for.
CHANGES = {
    "compile": ["--compile"],
    # Layers compiled for a shape each and replayed as CUDA graphs; only here, until it is measured.
    "graphs": ["--compile"],
    "recompute": ["--checkpoint-activations"],
    "adam": ["--optimizer", "adam"],
    "sdpa": ["--attention", "sdpa"],
    # The benchmark's own backend in the place of sdpa; see training_step.flex.
    "flex": ["--attention", "sdpa"],
    "cross": ["--decoder-attention", "cross"],
    "shared": ["--decoder-attention", "shared"],
    "local": ["--local-attention", "128", "--rotary-base", "160000", "--local-rotary-base", "10000"],
}
# Published ModernBERT reads so many tokens in two of three layers.
WINDOW = int(CHANGES["local"][1])


def split_name(name: str) -> tuple[Contender, list[str]]:
    """Split "maelm+compile+adam" into the contender and its ``CHANGES``; a ValueError names those that there are."""
    plain, *changes = name.split("+")
    if plain not in CONTENDERS:
        raise ValueError(f"there is no contender {name!r}; choose from {', '.join(CONTENDERS)}")
    possible = {"ours": list(CHANGES), "huggingface": ["compile", "local"]}.get(CONTENDERS[plain].kind, [])
    possible = [] if plain == "adapt" else possible
    for change in changes:
        if change not in possible:
            raise ValueError(f"{plain} does not support +{change}, only {', '.join(possible) or 'its plain form'}")
    return CONTENDERS[plain], changes


def label(name: str) -> str:
    """Return a contender's name in tables and plots."""
    contender, changes = split_name(name)
    return ", ".join([contender.label, *changes])


def feed_forward_width(contender: Contender, settings: Settings) -> int:
    """Return the settings' width, or 2/3 of it: three matrices then have as many parameters as the usual two."""
    return 2 * settings.ffn // 3 if contender.gated else settings.ffn


def window(name: str) -> int | None:
    """Return the tokens that two of three layers of a contender read, or None for all tokens."""
    _, changes = split_name(name)
    return WINDOW if "local" in changes else None


def decoder_layers(name: str, settings: Settings) -> int:
    """Return the contender's number, or else that of the settings; a shared decoder has as many as by default."""
    contender, _ = split_name(name)
    if decoder_attention(name) == "shared":
        from fairseq_maelm.architecture.encoder_options import shared_layers

        return shared_layers(settings.layers)
    return settings.decoder_layers if contender.decoder_layers is None else contender.decoder_layers


def decoder_attention(name: str) -> str:
    """Return the value of ``--decoder-attention`` of one of ours or of the authors' code."""
    _, changes = split_name(name)
    return next((change for change in ("cross", "shared") if change in changes), "self")


def fairseq_options(name: str, settings: Settings, data: str) -> list[str]:
    """Return fairseq-train's arguments for a contender of kind "ours", "fairseq" or "authors"."""
    contender, _ = split_name(name)
    dropout, masking = str(settings.dropout), str(settings.masking)
    options = [data, "--sample-break-mode", "none", "--tokens-per-sample", str(settings.length)]
    options += ["--mask-prob", masking, "--dropout", dropout, "--attention-dropout", dropout]
    options += ["--encoder-layers", str(settings.layers), *_widths("encoder", contender, settings)]
    options += ["--batch-size", str(settings.sequences), "--required-batch-size-multiple", "1"]
    options += ["--adam-betas", "(0.9, 0.98)", "--adam-eps", "1e-6", "--weight-decay", "0.01", "--clip-norm", "2.0"]
    options += ["--lr-scheduler", "polynomial_decay", "--lr", "1e-4", "--warmup-updates", "1000"]
    options += ["--total-num-update", "100000", "--seed", "1", "--disable-validation", "--no-save"]
    # Batches that wait in a queue were made outside the timed steps: there must be none, or few.
    buffered = "2" if settings.num_workers else "0"
    options += ["--num-workers", str(settings.num_workers), "--data-buffer-size", buffered]
    if settings.device == "cpu":
        options.append("--cpu")
    return options + _of_model(name, settings)


def _widths(part: str, contender: Contender, settings: Settings) -> list[str]:
    ffn = feed_forward_width(contender, settings)
    return [
        *[f"--{part}-embed-dim", str(settings.width), f"--{part}-ffn-embed-dim", str(ffn)],
        *[f"--{part}-attention-heads", str(settings.heads)],
    ]


def _of_model(name: str, settings: Settings) -> list[str]:
    contender, _ = split_name(name)
    positions = ["--max-positions", str(settings.length)]
    if contender.kind == "ours":
        arch = "maelm_modern_150m" if contender.gated else "maelm_base"
        ours = ["--task", "maelm", "--criterion", "maelm", "--arch", arch, "--decoder-attention", "self", *positions]
        kept = ["--masked-input", "kept"] if contender.decoder_layers == 0 else []
        return [*ours, *kept, "--decoder-layers", str(decoder_layers(name, settings))]
    stock = ["--task", "masked_lm", "--criterion", "masked_lm", "--optimizer", "adam"]
    if contender.kind == "fairseq":
        return [*stock, "--arch", "roberta_base", *positions]
    decoder = ["--gen-decoder-layers", str(settings.decoder_layers), *_widths("decoder", contender, settings)]
    return [*stock, "--arch", "ae_base", "--no-return-mask", "--rel-pos", "1", *decoder]
