"""A tiny reranker, and the data that it is trained on."""

import commands
import tiny_model
from tiny_embeddings import CONFIG, PAIRS, VOCAB, write_table
from tiny_model import flags

from benchmarks import results

# A query, its document and two others, which are questions.
LISTS = [
  (query, document, f"{query} ?", f"who went to {query.split()[-1]} ?")
  for query, document in PAIRS
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
  # Every second row has one negative.
  results.write_rows(
    folder / "mined.jsonl",
    [
      {
        "query": query,
        "positive": positive,
        "negatives": others[: 1 + number % 2],
        "scores": [0.5, 0.25, -0.5][: 2 + number % 2],
      }
      for number, (query, positive, *others) in enumerate(LISTS)
    ],
  )
  write_beir(folder / "beir")


def write_beir(folder):
  """Writes queries with judgments, and a run that finds others first."""
  corpus = {
    f"{name}{number}": text
    for number, (_, *documents) in enumerate(LISTS)
    for name, text in zip("dab", documents)
  }
  queries = {f"q{number}": row[0] for number, row in enumerate(LISTS)}
  judgments = [(f"q{i}", f"d{i}", 1) for i in range(len(LISTS))]
  results.write_beir(folder, corpus, queries, judgments)
  judgments += [(f"q{i}", f"a{i}", -1) for i in range(len(LISTS))]
  results.write_beir(folder, corpus, queries, judgments, split="train")
  # q0 has no right candidate, and q1 none at all.
  run = [
    f"q{i} Q0 {name}{i} {rank} {5 - rank} others\n"
    for i in range(len(LISTS))
    for rank, name in enumerate("abd", start=1)
    if i != 1 and (i, name) != (0, "d")
  ]
  (folder.parent / "others.trec").write_text("".join(run))


# Columns of each data file.
COLUMNS = {
  "lists.tsv": [f"--text_columns={','.join(NAMES)}"],
  "pairs.tsv": ["--text_columns=query,document", "--label_column=label"],
  "mined.jsonl": ["--text_columns=query,positive,negatives"],
  "beir": [],
}


def training(folder, file="lists.tsv"):
  return [
    "--do_train",
    f"--train_file={folder / file}",
    *COLUMNS[file],
    "--train_batch_size=8",
    "--num_train_epochs=20",
    "--learning_rate=3e-3",
    "--xla=off",
  ]


def train(folder):
  """Trains for 40 steps, evaluates and ranks candidates."""
  return commands.succeed(
    "run_reranker.py",
    *flags(folder, *training(folder), output_dir=folder / "trained"),
    "--do_eval",
    f"--dev_file={folder / 'beir'}",
    f"--candidates={folder / 'others.trec'}",
    "--do_predict",
    f"--predict_file={folder / 'texts.tsv'}",
    "--eval_steps=20",
    own_process=True,
  )
