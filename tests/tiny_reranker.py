"""A tiny reranker, and the data that it is trained on."""

import json

import tiny_model
from tiny_embeddings import CONFIG, PAIRS, VOCAB, write_beir, write_table

# A query, its document and two others.
LISTS = [
  (query, document, PAIRS[i - 1][1], PAIRS[i - 5][1])
  for i, (query, document) in enumerate(PAIRS)
]
NAMES = ["query", "positive", "other", "another"]


def write_data(folder):
  """Writes a small model's files and data into a folder."""
  tiny_model.write_files(folder, VOCAB, CONFIG)
  write_table(folder / "lists.tsv", NAMES, LISTS)
  pairs = [
    (query, document, int(document == positive))
    for query, positive, *others in LISTS
    for document in (positive, *others)
  ]
  write_table(folder / "pairs.tsv", ["query", "document", "label"], pairs)
  lines = [f"{query}\t{document}\n" for query, document, _ in pairs]
  (folder / "texts.tsv").write_text("".join(lines))
  rows = [
    {"query": q, "positive": p, "negatives": n, "scores": [2.0, *range(len(n))]}
    for q, p, *n in LISTS
  ]
  lines = [json.dumps(row) + "\n" for row in rows]
  (folder / "mined.jsonl").write_text("".join(lines))
  write_beir(folder / "beir")


# Columns of each data file.
COLUMNS = {
  "lists.tsv": [f"--text_columns={','.join(NAMES)}"],
  "pairs.tsv": ["--text_columns=query,document", "--label_column=label"],
  "mined.jsonl": ["--text_columns=query,positive,negatives"],
}


def training(folder, file="lists.tsv"):
  return [
    "--do_train",
    f"--train_file={folder / file}",
    *COLUMNS[file],
    "--train_batch_size=8",
    "--num_train_epochs=20",
    "--learning_rate=3e-3",
    "--bias_correction",
    "--xla=off",
    "--max_seq_length=16",
  ]
