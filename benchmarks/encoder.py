"""Pretrain the encoder that comes with the package, or its twin by MLM, on a machine that is there for minutes.

    python benchmarks/encoder.py --data DATA --method maelm --flops 5e16 --output encoder --runs runs

Whenever a checkpoint was saved, about every two minutes, OUTPUT/METHOD gets its weights in half precision, a folder of
`maelm export --complete` of 28 MB, and OUTPUT/METHOD.json says how many FLOPs it took. The same command with such a
folder, on another machine too, trains for the FLOPs that are left, from these weights: with a new schedule and other
masks, and an optimizer whose memory of some 20 updates starts anew. DATA is prepared with the encoder's vocabulary.
"""

import argparse
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from fairseq_maelm.launch.screen import LOG_FILE  # noqa: E402
from fairseq_maelm.sweep.log import log_records  # noqa: E402

METHODS: dict[str, list[str]] = {"maelm": [], "mlm": ["masked-input=kept", "decoder-layers=0"]}
RECIPE = ROOT / "benchmarks" / "encoder.yaml"
TOY = ["batch-sequences=2", "sequences-per-gpu=2", "sequence-length=32", "encoder-layers=2", "encoder-embed-dim=32"]
TOY += ["encoder-ffn-embed-dim=32", "encoder-attention-heads=2", "save-interval-updates=10"]
MAELM = [sys.executable, "-m", "fairseq_maelm"]
# Less is not worth a new schedule.
LEAST_SHARE = 0.02


class Encoder:
    """One encoder that is trained in parts."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.folder, self.record = options.output / options.method, options.output / f"{options.method}.json"
        self.parts: list[dict[str, Any]] = json.loads(self.record.read_text()) if self.record.exists() else []
        self.run_folder = options.runs / f"{options.method}_{len(self.parts) + 1}"
        self.left = options.flops - sum(part["flops"] for part in self.parts)
        self._exported = 0.0
        # Exports replace the folder that it may begin with.
        self.words = self._command()
        self.wanted = 0

    def _command(self) -> list[str]:
        """Return the training of what is left."""
        own = [str(self.options.data), "--output", str(self.run_folder), "--recipe", str(RECIPE)]
        own += ["--flops", f"{self.left:g}", "--precision", self.options.precision]
        if self.folder.exists():
            own += ["--checkpoint", str(self.folder)]
        on_cpu = self.options.device == "cpu"
        # Other masks, and another order of the text.
        settings = [f"seed={len(self.parts) + 1}", *METHODS[self.options.method], *(TOY if on_cpu else [])]
        return [*MAELM, "pretrain", *own, "--gpus", str(int(not on_cpu)), "--set", *settings, *self.options.set]

    def train(self) -> int:
        """Train and export what is saved; return the status of the training."""
        shown = subprocess.run([*self.words, "--dry-run"], capture_output=True, text=True)
        words = shown.stdout.split()
        if shown.returncode:
            raise SystemExit(shown.stderr)
        self.wanted = int(words[words.index("--max-update") + 1])
        process = subprocess.Popen(self.words)
        try:
            while process.poll() is None:
                time.sleep(1)
                self.export()
        finally:
            process.terminate()
        self.export()
        return process.returncode

    def export(self) -> None:
        """Export the last checkpoint, unless that is done."""
        checkpoint = self.run_folder / "checkpoint_last.pt"
        if not checkpoint.exists() or checkpoint.stat().st_mtime == self._exported:
            return
        self._exported = checkpoint.stat().st_mtime
        new = self.folder.with_suffix(".new")
        words = ["export", "--checkpoint", str(checkpoint), "--output", str(new), "--format", "modernbert"]
        if subprocess.run([*MAELM, *words, "--complete", "--dtype", "float16"]).returncode:
            shutil.rmtree(new, ignore_errors=True)
            return
        shutil.rmtree(self.folder, ignore_errors=True)
        new.rename(self.folder)
        half = self.record.with_suffix(".half")
        half.write_text(json.dumps([*self.parts, self.part()], indent=1) + "\n", encoding="utf-8")
        half.replace(self.record)

    def part(self) -> dict[str, Any]:
        """Return what is known of this part: FLOPs, updates, seconds, and the loss on held-out text."""
        log = self.run_folder / LOG_FILE
        valid = [record for _, record in log_records(log, ["valid"])]
        last = valid[-1] if valid else {}
        updates = int(last.get("valid_num_updates", 0))
        speed = [record["wps"] for _, record in log_records(log, ["train_inner"]) if record.get("wps")]
        return {
            "updates": updates,
            "of": self.wanted,
            "flops": self.left * updates / self.wanted,
            "loss": last.get("valid_loss"),
            "tokens_per_second": sorted(speed)[len(speed) // 2] if speed else None,
        }


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of `maelm prepare corpus`")
    parser.add_argument("--method", choices=METHODS, default="maelm", help="(maelm)")
    parser.add_argument("--flops", type=float, required=True, help="in all, earlier calls included")
    parser.add_argument("--output", type=Path, required=True, help="folder of the weights")
    parser.add_argument("--runs", type=Path, required=True, help="folder of the checkpoints, which need not be kept")
    parser.add_argument("--precision", choices=("fp32", "bf16", "fp16"), default="bf16", help="(bf16)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu rehearses at toy size (cuda)")
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE", help="changes of the recipe")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    encoder = Encoder(options)
    if encoder.left < LEAST_SHARE * options.flops:
        print(f"{encoder.folder} has had its FLOPs")
        return
    raise SystemExit(encoder.train())


if __name__ == "__main__":
    main()
