"""Fine-tuning on small tables: `maelm finetune` against regressions on frozen states and on words.

    python studies/small_tables/small_tables.py POOLS --encoder maelm-english-14m-uncased --output results.jsonl

POOLS has a folder for each task with train.tsv and test.tsv: one or two texts and a label, without a header, as `maelm
prepare sentences` reads them. Labels of tasks whose names end in "number" are numbers. Rows are drawn from train.tsv by
seed; the first rows of test.tsv are the test. The same command goes on where it was interrupted; --table prints means.
"""

import argparse
import csv
import json
import random
import re
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegressionCV, RidgeCV
from sklearn.preprocessing import StandardScaler

from fairseq_maelm import MaelmModel

METHODS = ("fine-tuned", "frozen", "tf-idf", "two vectors")


def read_rows(path: Path) -> list[list[str]]:
    """Return the rows of a table without header: texts and the label."""
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def regression_score(features: tuple[Any, Any], train: list[str], test: list[str], numbers: bool) -> float:
    """Return the score on the test rows of a linear model of the training rows: accuracy or Pearson's r, in percent."""
    if numbers:
        model = RidgeCV(alphas=np.logspace(-2, 5, 15)).fit(features[0], np.array(train, float))
        return float(100 * np.corrcoef(model.predict(features[1]), np.array(test, float))[0, 1])
    folds = max(2, min(5, min(train.count(label) for label in set(train))))
    model = LogisticRegressionCV(
        Cs=np.logspace(-3, 3, 13), cv=folds, scoring="neg_log_loss", max_iter=2000, use_legacy_attributes=False,
        l1_ratios=(0.0,),
    )  # fmt: skip
    return float(100 * np.mean(model.fit(features[0], train).predict(features[1]) == np.array(test)))


def pooled_states(model: Any, rows: list[list[str]]) -> np.ndarray:
    """Return the mean of all states of each row <float>[n, D]; the texts of a pair are read together."""
    length = model.model.encoder.max_positions()
    tokens = [model.encode(*row[:-1], max_length=length, masks=False) for row in rows]
    return np.stack([model.extract_features(each)[0].mean(dim=0).detach().cpu().numpy() for each in tokens])


def features_of(model: Any, rows: list[list[str]]) -> dict[str, np.ndarray]:
    """Return what the regressions on states read, by method; "two vectors" only for pairs."""
    features = {"frozen": pooled_states(model, rows)}
    if len(rows[0]) == 3:
        one, other = (model.embed([row[side] for row in rows]).numpy() for side in (0, 1))
        cosine = (one * other).sum(1) / np.linalg.norm(one, axis=1) / np.linalg.norm(other, axis=1)
        features["two vectors"] = np.concatenate([cosine[:, None], np.abs(one - other), one * other], axis=1)
    return features


def baselines(
    features: dict[str, np.ndarray], train: list[list[str]], tested: dict[str, np.ndarray], test: list[list[str]],
    numbers: bool,
) -> dict[str, float]:  # fmt: skip
    """Return the scores of regressions on frozen states, on words and, for pairs, on the texts' two vectors."""
    labels = [row[-1] for row in train], [row[-1] for row in test], numbers
    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    texts = [[" ".join(row[:-1]) for row in rows] for rows in (train, test)]
    scores = {"tf-idf": regression_score((words.fit_transform(texts[0]), words.transform(texts[1])), *labels)}
    for method in features:
        scaler = StandardScaler().fit(features[method])
        scaled = scaler.transform(features[method]), scaler.transform(tested[method])
        scores[method] = regression_score(scaled, *labels)
    return scores


def fine_tuned(encoder: str, train: list[list[str]], test: list[list[str]], numbers: bool, seed: int) -> dict[str, Any]:
    """Return the score of the three commands of a user, and the share of the way from the frozen solution."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for split, rows in (("train", train), ("test", test)):
            (folder / f"{split}.tsv").write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")
        pair = ["--text-pair", "1"] if len(train[0]) == 3 else []
        columns = ["--text", "0", *pair, "--label", str(len(train[0]) - 1)]
        target = ["--regression"] if numbers else []
        run(
            folder,
            ["prepare", "sentences", "--train", "train.tsv", "--vocabulary", encoder, "--output", "task", *target],
        )
        run(folder, ["finetune", "task", "--checkpoint", encoder, "--output", "run", "--seed", str(seed)])
        run(folder, ["predict", "test.tsv", *columns, "--checkpoint", "run", "--metrics", "metrics.json"])
        measured = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
        log = (folder / "run" / "training.log").read_text(encoding="utf-8")
    kept = re.findall(r"(\d+) % is kept", log)
    return {"fine-tuned": measured["pearson" if numbers else "accuracy"], "kept": int(kept[-1]) if kept else 100}


def run(folder: Path, words: list[str]) -> str:
    """Run a command of `maelm` in a folder, and return its output; a failure ends the study."""
    done = subprocess.run(["maelm", *words], cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"maelm {' '.join(words)}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout + done.stderr


def measure(args: argparse.Namespace) -> None:
    """Write a line of results for each encoder, task, number of rows and seed that has none yet."""
    keys = ("encoder", "task", "rows", "seed")
    lines = args.output.read_text(encoding="utf-8").splitlines() if args.output.exists() else []
    done = {tuple(json.loads(line)[key] for key in keys) for line in lines}
    model = MaelmModel.from_pretrained(args.encoder)
    name = args.name or Path(args.encoder).name
    # The commands run in another folder.
    encoder = str(Path(args.encoder).resolve()) if Path(args.encoder).exists() else args.encoder
    for task in args.tasks:
        pool, numbers = read_rows(args.pools / task / "train.tsv"), task.endswith("number")
        test = read_rows(args.pools / task / "test.tsv")[: args.tests]
        tested: dict[str, np.ndarray] = {}
        for rows, seed in product(args.rows, range(1, args.seeds + 1)):
            if (name, task, rows, seed) in done:
                continue
            tested = tested or features_of(model, test)
            train = random.Random(f"{task} {seed}").sample(pool, rows)
            record = dict(zip(keys, (name, task, rows, seed), strict=True))
            record |= baselines(features_of(model, train), train, tested, test, numbers)
            record |= fine_tuned(encoder, train, test, numbers, seed)
            with open(args.output, "a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")


def table(path: Path) -> str:
    """Return the means over seeds as a table in Markdown."""
    cells: dict[tuple[str, int, str], list[dict[str, Any]]] = defaultdict(list)
    for line in path.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        cells[record["encoder"], record["rows"], record["task"]].append(record)
    lines = ["| encoder, rows | task | " + " | ".join(METHODS) + " | seeds |", "|---" * (len(METHODS) + 3) + "|"]
    for (encoder, rows, task), records in sorted(cells.items()):
        means = [[record[method] for record in records if method in record] for method in METHODS]
        shown = [f"{statistics.mean(values):.1f}" if values else "" for values in means]
        lines.append(f"| {encoder}, {rows} | {task} | {' | '.join(shown)} | {len(records)} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, or print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pools", type=Path, metavar="POOLS", nargs="?", help="folder with a folder for each task")
    parser.add_argument("--encoder", help="checkpoint, folder of maelm import, or encoder of the package")
    parser.add_argument("--name", help="the encoder's name in the records (default: the last part of its path)")
    parser.add_argument("--tasks", nargs="+", default=["sst2", "genres", "scicite", "cola", "qqp", "stsb_number"])
    parser.add_argument("--rows", nargs="+", type=int, default=[180])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tests", type=int, default=600, help="number of test rows")
    parser.add_argument("--output", type=Path, required=True, help="records, one line of JSON each")
    parser.add_argument("--table", action="store_true", help="print the means of the records")
    args = parser.parse_args()
    if args.table:
        print(table(args.output))
    elif args.pools is None or args.encoder is None:
        sys.exit("give POOLS and --encoder, or --table")
    else:
        measure(args)


if __name__ == "__main__":
    main()
