"""Fine-tune an exported encoder for search by sentence-transformers, and measure it on the queries of a split."""

import argparse
import csv
import json
import logging
import math
from pathlib import Path

from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.evaluation import InformationRetrievalEvaluator
from sentence_transformers.losses import MultipleNegativesRankingLoss
from sentence_transformers.util import mine_hard_negatives


def read_texts(path: Path) -> dict[str, str]:
    """Return the texts of a .jsonl file by id; a title and its text are joined by a space."""
    with path.open(encoding="utf-8") as lines:
        records = [json.loads(line) for line in lines]
    return {record["_id"]: f"{record.get('title', '')} {record['text']}".strip() for record in records}


def read_judgments(path: Path) -> dict[str, set[str]]:
    """Return the ids of each query's relevant documents, which have a score above zero."""
    relevant: dict[str, set[str]] = {}
    with path.open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines, delimiter="\t"):
            if int(row["score"]) > 0:
                relevant.setdefault(row["query-id"], set()).add(row["corpus-id"])
    return relevant


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("beir", type=Path, metavar="BEIR", help="folder with corpus.jsonl, queries.jsonl and qrels/")
    parser.add_argument("encoder", metavar="ENCODER", help="folder of `maelm export`, or of this script")
    parser.add_argument("--output", type=Path, required=True, metavar="FOLDER", help="new folder for the model")
    parser.add_argument("--split", default="test", metavar="NAME", help="split to measure: qrels/NAME.tsv (test)")
    parser.add_argument("--epochs", type=int, default=5, metavar="N", help="training epochs (5); 0 only measures")
    parser.add_argument("--batch-size", type=int, default=32, metavar="N", help="pairs per update (32)")
    parser.add_argument("--lr", type=float, default=5e-5, metavar="X", help="peak learning rate (5e-5)")
    parser.add_argument("--max-length", type=int, default=256, metavar="N", help="maximum tokens per text (256)")
    parser.add_argument("--hard-negatives", type=int, default=0, metavar="N", help="number per pair, from ENCODER (0)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="random seed of data order and dropout (1)")
    return parser


def training_pairs(
    model: SentenceTransformer, documents: dict[str, str], queries: dict[str, str], args: argparse.Namespace
) -> Dataset:
    """Return the queries of the training split with their documents, and with hard negatives if there are to be any."""
    judged = read_judgments(args.beir / "qrels" / "train.tsv").items()
    pairs = [(queries[query], documents[each]) for query, relevant in judged for each in sorted(relevant)]
    data = Dataset.from_dict({"query": [query for query, _ in pairs], "document": [text for _, text in pairs]})
    if args.hard_negatives:
        more = {"num_negatives": args.hard_negatives, "output_format": "n-tuple"}
        data = mine_hard_negatives(data, model, corpus=list(documents.values()), range_max=50, verbose=False, **more)
    return data


def train(model: SentenceTransformer, pairs: Dataset, args: argparse.Namespace) -> None:
    """Contrast the document of each query with those of the other queries in the batch, and with hard negatives."""
    settings = SentenceTransformerTrainingArguments(
        output_dir=str(args.output / "training"), save_strategy="no", report_to="none", seed=args.seed,
        num_train_epochs=args.epochs, per_device_train_batch_size=args.batch_size, learning_rate=args.lr,
        warmup_steps=math.ceil(0.1 * args.epochs * len(pairs) / args.batch_size), weight_decay=0.01, logging_steps=10,
        # A document that two queries of a batch share would be a negative of both.
        batch_sampler="no_duplicates",
    )  # fmt: skip
    loss = MultipleNegativesRankingLoss(model)  # cosines, divided by a temperature of 0.05
    SentenceTransformerTrainer(model=model, args=settings, train_dataset=pairs, loss=loss).train()


def main() -> None:
    """Fine-tune, save the model, and write its metrics to standard output."""
    parser = make_parser()
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s | %(message)s", datefmt="%H:%M:%S")
    if args.output.exists():
        parser.error(f"{args.output} exists already: name another folder")
    documents, queries = (read_texts(args.beir / f"{name}.jsonl") for name in ("corpus", "queries"))
    measured = read_judgments(args.beir / "qrels" / f"{args.split}.tsv")
    model = SentenceTransformer(args.encoder)
    model.max_seq_length = args.max_length
    # Some tasks have no pairs to train on.
    if args.epochs:
        train(model, training_pairs(model, documents, queries, args), args)
    model.save(str(args.output))
    measure = InformationRetrievalEvaluator(queries, documents, measured, precision_recall_at_k=[100])
    scores = measure(model)
    print(json.dumps({each: round(100 * scores[f"cosine_{each}"], 1) for each in ("ndcg@10", "recall@100", "mrr@10")}))


if __name__ == "__main__":
    main()
