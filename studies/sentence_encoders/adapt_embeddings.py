"""Trains a sentence encoder on documents without labels, and measures retrieval and similarity before and after.

    python studies/sentence_encoders/adapt_embeddings.py ENCODER BEIR STSB --objective pooled --output records.jsonl

ENCODER is a folder of sentence-transformers (mean pooling, BERT), BEIR a folder with corpus.jsonl, queries.jsonl and
qrels/test.tsv, STSB a table with two sentences and a score in its last three columns. Objectives:

    none      only measure ENCODER, for instance a folder of `maelm export`
    pooled    a decoder of one layer reads the pooled vector alone and rebuilds the text, most of its own input masked;
              the encoder reads the text without its masked tokens (RetroMAE, and MAE-LM's encoder)
    words     the pooled vector predicts the set of the text's words
    contrast  a sentence and the rest of its document, against those of the batch (inverse cloze task)
    titles    a document's title, if it has one, and its text, against those of the batch

--nearness adds the squared difference from the source's cosine similarities in the batch. --mix averages the weights
with the source's before measuring, one line of results for each share. Settings are chosen by "held out": sentences of
documents that are not trained on, as queries for the rest of their documents.
"""

import argparse
import copy
import csv
import json
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import spearmanr
from sentence_transformers import SentenceTransformer
from sklearn.feature_extraction.text import TfidfVectorizer
from torch import Tensor, nn
from torch.nn import functional
from transformers.models.bert.modeling_bert import BertLayer

# Texts of an update, their tokens in training, and predicted tokens of an update.
BATCH, LENGTH, PREDICTED = 16, 192, 800
ENCODER_DROPPED, DECODER_MASKED = 0.3, 0.7
HELD_OUT = 300


def lines_of(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a file of JSON lines."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def document_text(document: dict[str, Any]) -> str:
    """Return a document's title and text."""
    return f"{document.get('title') or ''} {document['text']}".strip()


def sentences_of(text: str) -> list[str]:
    """Return the sentences of a text, as far as punctuation tells."""
    return [part for part in re.split(r"(?<=[.!?])\s+(?=[A-Z])", text) if len(part.split()) > 4]


def ndcg(scores: np.ndarray, relevant: list[set[int]]) -> list[float]:
    """Return nDCG@10 of each query in percent, from scores <float>[queries, documents]."""
    results = []
    for row, wanted in zip(scores, relevant, strict=True):
        best = np.argsort(-row)[:10]
        gain = sum(1 / np.log2(rank + 2) for rank, place in enumerate(best) if place in wanted)
        results.append(100 * gain / sum(1 / np.log2(rank + 2) for rank in range(min(10, len(wanted)))))
    return results


class Measurement:
    """The collection's test claims, sentences of held-out documents, and pairs of sentences with a similarity."""

    def __init__(self, beir: Path, stsb: Path, documents: int | None) -> None:
        corpus = lines_of(beir / "corpus.jsonl")
        judged: dict[str, set[str]] = {}
        for row in (beir / "qrels" / "test.tsv").read_text().splitlines()[1:]:
            query, document, score = row.split("\t")
            if int(score) > 0:
                judged.setdefault(query, set()).add(document)
        if documents is not None:
            wanted = set().union(*judged.values())
            others = [each for each in corpus if each["_id"] not in wanted]
            random.Random(1).shuffle(others)
            corpus = [each for each in corpus if each["_id"] in wanted] + others[: documents - len(wanted)]
        self.corpus = corpus
        place = {document["_id"]: number for number, document in enumerate(corpus)}
        texts = {query["_id"]: query["text"] for query in lines_of(beir / "queries.jsonl")}
        self.queries = [texts[query] for query in judged]
        self.relevant = [{place[each] for each in found} for found in judged.values()]
        split = [(number, sentences_of(document["text"])) for number, document in enumerate(corpus)]
        held_out = random.Random(2).sample([each for each in split if len(each[1]) > 3], HELD_OUT)
        self.held_out = {number: random.Random(number).choice(found) for number, found in held_out}
        words = TfidfVectorizer(sublinear_tf=True)
        documents_words = words.fit_transform(map(document_text, corpus))
        self.shared_words = (words.transform(self.queries) @ documents_words.T).toarray()
        with open(stsb, newline="", encoding="utf-8") as file:
            self.pairs = [row[-3:] for row in csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)][1:]

    def measure(self, model: SentenceTransformer) -> dict[str, Any]:
        """Return nDCG@10 of claims and of held-out sentences, Spearman's correlation, mean cosine; all in percent."""

        def encode(texts: list[str]) -> np.ndarray:
            with torch.autocast("cpu", torch.bfloat16):
                return np.asarray(
                    model.encode(texts, batch_size=32, normalize_embeddings=True, show_progress_bar=False)
                )

        documents = encode([document_text(each) for each in self.corpus])
        scores = encode(self.queries) @ documents.T
        claims, with_words = (ndcg(each, self.relevant) for each in (scores, scores + self.shared_words))
        numbers = list(self.held_out)
        rest = [self.corpus[number]["text"].replace(self.held_out[number], " ") for number in numbers]
        changed = documents.copy()
        changed[numbers] = encode(rest)
        held_out = ndcg(encode(list(self.held_out.values())) @ changed.T, [{number} for number in numbers])
        one, other = (encode([row[side] for row in self.pairs]) for side in (0, 1))
        similarity = spearmanr((one * other).sum(1), [float(row[2]) for row in self.pairs]).statistic
        some = documents[np.random.default_rng(0).permutation(len(documents))[:500]]
        cosine = (some @ some.T)[~np.eye(len(some), dtype=bool)].mean()
        return {
            "claims": float(np.mean(claims)), "held out": float(np.mean(held_out)), "STS-B": float(100 * similarity),
            "cosine": float(cosine), "claims with words": float(np.mean(with_words)),
            "per claim": [round(value, 2) for value in claims],
            "per claim with words": [round(value, 2) for value in with_words],
        }  # fmt: skip


class Decoder(nn.Module):
    """Predicts a text from its pooled vector: one layer that reads heavily masked tokens, or none for its words."""

    def __init__(self, bert: Any, frequencies: Tensor, layers: int) -> None:
        super().__init__()
        self.embeddings = bert.embeddings.word_embeddings
        self.positions = nn.Parameter(bert.embeddings.position_embeddings.weight.detach().clone())
        self.layers = nn.ModuleList(BertLayer(bert.config) for _ in range(layers))
        self.dense, self.norm = (
            nn.Linear(bert.config.hidden_size, bert.config.hidden_size),
            nn.LayerNorm(bert.config.hidden_size),
        )
        self.bias = nn.Parameter(frequencies.log())
        for layer in [*self.layers.modules(), self.dense]:
            if isinstance(layer, nn.Linear):
                nn.init.normal_(layer.weight, std=0.02)
                nn.init.zeros_(layer.bias)

    def forward(self, vector: Tensor, tokens: Tensor, padding: Tensor) -> Tensor:
        """Return states <float>[B, S, D] for vectors <float>[B, D] and masked tokens <int64>[B, S]."""
        states = self.embeddings(tokens) + self.positions[: tokens.shape[1]]
        states = torch.cat([vector[:, None], states[:, 1:]], dim=1)  # instead of the first token
        mask = torch.zeros(padding.shape).masked_fill(padding, -1e4)[:, None, None]
        for layer in self.layers:
            states = layer(states, mask)
            states = states[0] if isinstance(states, tuple) else states
        return states

    def logits(self, states: Tensor) -> Tensor:
        """Return the logits of states <float>[..., D]."""
        return functional.linear(self.norm(functional.gelu(self.dense(states))), self.embeddings.weight, self.bias)


class Training:
    """One objective, on documents that are not held out."""

    def __init__(self, model: SentenceTransformer, args: argparse.Namespace, data: Measurement) -> None:
        self.model, self.args, self.generator = model, args, random.Random(args.seed)
        self.bert, self.tokenizer = model[0].auto_model, model.tokenizer
        self.source = copy.deepcopy(self.bert).eval()
        self.documents = [each for number, each in enumerate(data.corpus) if number not in data.held_out]
        texts = [document_text(each) for each in self.documents]
        counts = torch.full((self.bert.config.vocab_size,), 0.1)
        for ids in self.tokenizer(texts, truncation=True, max_length=LENGTH)["input_ids"]:
            counts += torch.bincount(torch.tensor(ids), minlength=len(counts))
        self.frequencies = counts / counts.sum()
        self.decoder = Decoder(self.bert, self.frequencies, 1 if args.objective == "pooled" else 0)

    def encode(self, bert: Any, tokens: Tensor, mask: Tensor, positions: Tensor | None = None) -> Tensor:
        """Return the mean states <float>[B, D]."""
        states = bert(input_ids=tokens, attention_mask=mask, position_ids=positions).last_hidden_state.float()
        return (states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)

    def batch(self, texts: list[str]) -> tuple[Tensor, Tensor]:
        """Return tokens and mask <int64>[B, S]."""
        found = self.tokenizer(texts, padding=True, truncation=True, max_length=LENGTH, return_tensors="pt")
        return found["input_ids"], found["attention_mask"]

    def loss(self) -> Tensor:
        """Return the loss of a random batch."""
        documents = self.generator.sample(self.documents, BATCH)
        if self.args.objective in ("contrast", "titles"):
            return self.contrast(documents)
        tokens, mask = self.batch([document_text(each) for each in documents])
        special = (tokens == self.tokenizer.cls_token_id) | (tokens == self.tokenizer.sep_token_id)
        kept = mask.bool() & ((torch.rand(tokens.shape) >= ENCODER_DROPPED) | special)
        order = torch.argsort(~kept, dim=1, stable=True)[:, : int(kept.sum(1).max())]
        vector = self.encode(self.bert, tokens.gather(1, order), kept.gather(1, order).long(), order)
        if self.args.objective == "words":
            logs = self.decoder.logits(vector).log_softmax(-1)
            wanted = torch.zeros_like(logs).scatter_(1, tokens, 1.0)
            wanted[:, [self.tokenizer.pad_token_id, self.tokenizer.cls_token_id, self.tokenizer.sep_token_id]] = 0.0
            loss = -(logs * wanted).sum() / wanted.sum()
        else:
            hidden = mask.bool() & ~special & (torch.rand(tokens.shape) < DECODER_MASKED)
            read = tokens.masked_fill(hidden, self.tokenizer.mask_token_id)
            chosen = hidden.flatten().nonzero()[:, 0]
            chosen = chosen[torch.randperm(len(chosen))[:PREDICTED]]
            states = self.decoder(vector, read, mask == 0).flatten(0, 1)[chosen]
            loss = functional.cross_entropy(self.decoder.logits(states).float(), tokens.flatten()[chosen])
        return loss + self.nearness(tokens, mask)

    def contrast(self, documents: list[dict[str, Any]]) -> Tensor:
        """Return the loss of telling which of the batch's documents a sentence or a title is from, both ways."""
        queries, rest = [], []
        for document in documents:
            sentences = sentences_of(document["text"]) or [document["text"]]
            title = document["title"] if self.args.objective == "titles" else ""
            query = title or self.generator.choice(sentences)
            queries.append(query)
            rest.append(document["text"].replace(query, " ") if len(sentences) > 1 else document["text"])
        one, other = (
            functional.normalize(self.encode(self.bert, *self.batch(texts)), dim=1) for texts in (queries, rest)
        )
        scores, wanted = 20.0 * one @ other.T, torch.arange(len(one))
        loss = (functional.cross_entropy(scores, wanted) + functional.cross_entropy(scores.T, wanted)) / 2
        return loss + self.nearness(*self.batch(rest))

    def nearness(self, tokens: Tensor, mask: Tensor) -> Tensor | float:
        """Return the weighted squared difference from the source's cosine similarities, on unmasked text."""
        if not self.args.nearness:
            return 0.0
        with torch.no_grad():
            wanted = functional.normalize(self.encode(self.source, tokens, mask), dim=1)
        found = functional.normalize(self.encode(self.bert, tokens, mask), dim=1)
        return self.args.nearness * (found @ found.T - wanted @ wanted.T).square().mean()

    def run(self) -> None:
        """Train the decoder alone first, then everything."""
        own = {id(parameter) for parameter in self.bert.parameters()}
        new = [parameter for parameter in self.decoder.parameters() if id(parameter) not in own]
        for updates, rate, alone in ((self.args.alone, 0.0, True), (self.args.updates, self.args.lr, False)):
            if alone and self.args.objective in ("contrast", "titles"):
                continue
            groups = [
                {"params": list(self.bert.parameters()), "lr": rate},
                {"params": new, "lr": 1e-3 if alone else 3e-4},
            ]
            optimizer = torch.optim.AdamW(groups, weight_decay=0.01)
            schedule = torch.optim.lr_scheduler.LambdaLR(
                optimizer, lambda update, total=updates: min((update + 1) / (0.1 * total), 1.1 - update / total)
            )
            self.bert.train()
            for update in range(updates):
                self.bert.requires_grad_(not alone)
                with torch.autocast("cpu", torch.bfloat16):
                    loss = self.loss()
                loss.backward()
                nn.utils.clip_grad_norm_([*self.bert.parameters(), *new], 1.0)
                optimizer.step()
                optimizer.zero_grad()
                schedule.step()
                if update % 20 == 0:
                    print(f"{'decoder alone, ' if alone else ''}update {update}: loss {loss.item():.3f}", flush=True)
        self.bert.eval()


def main() -> None:
    """Train, and write one line of results for each share of the trained weights."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("encoder")
    parser.add_argument("beir", type=Path)
    parser.add_argument("stsb", type=Path)
    parser.add_argument("--objective", choices=["none", "pooled", "words", "contrast", "titles"], required=True)
    parser.add_argument("--lr", type=float, default=2e-5)
    parser.add_argument("--updates", type=int, default=150)
    parser.add_argument("--alone", type=int, default=150, help="updates of a new decoder before the encoder learns")
    parser.add_argument("--nearness", type=float, default=0.0)
    parser.add_argument("--mix", type=float, nargs="+", default=[0.5, 1.0], help="shares of the trained weights")
    parser.add_argument("--documents", type=int, help="use the judged documents and others up to this number")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    model = SentenceTransformer(args.encoder, device="cpu")
    model.max_seq_length = 256
    data = Measurement(args.beir, args.stsb, args.documents)
    start = {name: weight.clone() for name, weight in model.state_dict().items()}
    if args.objective == "none":
        args.mix = [1.0]
    else:
        Training(model, args, data).run()
    end = {name: weight.clone() for name, weight in model.state_dict().items()}
    for share in args.mix:
        mixed = {
            name: torch.lerp(start[name], end[name], share) if start[name].is_floating_point() else start[name]
            for name in end
        }
        model.load_state_dict(mixed)
        record = {
            **{name: str(value) if isinstance(value, Path) else value for name, value in vars(args).items()},
            "mix": share,
        }
        record |= data.measure(model)
        with open(args.output, "a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        print({name: value for name, value in record.items() if not name.startswith("per claim")}, flush=True)


if __name__ == "__main__":
    main()
