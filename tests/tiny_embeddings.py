"""A tiny model of sentence vectors, and the texts that it is trained on."""

import commands
import tiny_model
from tiny_model import flags

from benchmarks import results

NAMES = ["ann", "bob", "cat", "dan"]
CITIES = ["paris", "rome", "oslo", "lima"]
WORDS = ["who", "went", "to", "is", "in", "?", ".", ":", "query"]
VOCAB = [*tiny_model.SPECIAL, *NAMES, *CITIES, *WORDS]
CONFIG = tiny_model.config(len(VOCAB))
PAIRS = [
  (f"{name} went to {city}", f"{name} is in {city} .")
  for name in NAMES
  for city in CITIES
]


def write_data(folder):
  """Writes a small model's files and data into a folder."""
  tiny_model.write_files(folder, VOCAB, CONFIG)
  write_table(folder / "pairs.tsv", ["question", "answer"], PAIRS)
  triplets = [(*PAIRS[i], PAIRS[i - 1][1]) for i in range(len(PAIRS))]
  names = ["question", "answer", "other"]
  write_table(folder / "triplets.tsv", names, triplets)
  scored = [
    (a, b, len({*a.split()} & {*b.split()}))
    for a, _ in PAIRS[:4]
    for _, b in PAIRS[:8]
  ]
  write_table(folder / "scored.tsv", ["first", "second", "score"], scored)
  labeled = [(a, b, int(score == 2)) for a, b, score in scored]
  write_table(folder / "matches.tsv", ["first", "second", "label"], labeled)
  texts = [(a, a.split()[0]) for a, _ in PAIRS]
  write_table(folder / "labeled.tsv", ["text", "label"], texts)
  (folder / "queries.txt").write_text("".join(f"{a}\n" for a, _ in PAIRS))
  (folder / "corpus.txt").write_text("".join(f"{b}\n" for _, b in PAIRS))
  results.write_beir(
    folder / "beir",
    {f"d{number}": text for number, (_, text) in enumerate(PAIRS)},
    {f"q{number}": text for number, (text, _) in enumerate(PAIRS)},
    [(f"q{number}", f"d{number}", 1) for number in range(len(PAIRS))],
  )


def write_table(path, header, rows):
  lines = ["\t".join(map(str, row)) for row in [header, *rows]]
  path.write_text("".join(f"{line}\n" for line in lines))


_FIRST = "--text_columns=first,second"
# Columns of each kind of data, by file.
COLUMNS = {
  "pairs": ["--text_columns=question,answer"],
  "triplets": ["--text_columns=question,answer,other"],
  "scored": [_FIRST, "--score_column=score", "--max_score=2"],
  "matches": [_FIRST, "--label_column=label"],
  "labeled": ["--text_columns=text", "--label_column=label"],
}


def training(folder, kind="pairs"):
  return [
    "--do_train",
    f"--train_file={folder / kind}.tsv",
    *COLUMNS[kind],
    "--train_batch_size=8",
    "--num_train_epochs=20",
    "--learning_rate=3e-3",
    "--bias_correction",
    "--xla=off",
  ]


def train(folder):
  """Trains for 40 steps, evaluates, encodes and searches."""
  return commands.succeed(
    "run_embeddings.py",
    *flags(folder, *training(folder), output_dir=folder / "trained"),
    "--do_eval",
    f"--dev_file={folder / 'pairs.tsv'}",
    "--do_predict",
    f"--predict_file={folder / 'corpus.txt'}",
    f"--corpus_file={folder / 'corpus.txt'}",
    f"--query_file={folder / 'queries.txt'}",
    "--top_k=3",
    "--matryoshka_dims=16,8",
    "--gradient_accumulation_steps=2",
    "--eval_steps=20",
    own_process=True,
  )
