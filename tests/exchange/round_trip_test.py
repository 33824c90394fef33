"""Models trained here, in transformers, and back: equal labels and scores.

Each task trains on real data for a few steps, from the model of `MINILM` or
else at random. Its folder is converted, run by transformers on 200 examples (by
the Python of `TRANSFORMERS_PYTHON`, else this one), and read back from there by
--init_checkpoint alone.
"""

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import commands
import numpy as np
import pytest
from reference_data import data, vocab

import run_classifier
from bertlib.io.text_files import read_lines
from bertlib.tasks.ner import ner_tags

pytestmark = pytest.mark.slow

PYTHON = os.environ.get("TRANSFORMERS_PYTHON", sys.executable)
PROGRAM = os.path.join(commands.ROOT, "tests", "transformers_scores.py")
NUMBER = 200
CONFIG = {
  "vocab_size": 30522,
  "hidden_size": 64,
  "num_hidden_layers": 2,
  "num_attention_heads": 2,
  "intermediate_size": 128,
  "max_position_embeddings": 128,
  "type_vocab_size": 2,
  "initializer_range": 0.1,
}


def rows_of(*parts):
  """Fields of the rows of a TSV file of the data, without its header."""
  lines = read_lines(data(*parts))
  return [line.rstrip("\n").split("\t") for line in lines][1:]


def write_tsv(path, *rows):
  """Writes rows of fields."""
  path.write_text("".join("\t".join(row) + "\n" for row in rows))
  return path


def write_lines(path, lines):
  """Writes one example per line."""
  path.write_text("".join(f"{line}\n" for line in lines))
  return path


def json_lines(path):
  """The values of a file of JSON Lines."""
  return [json.loads(line) for line in path.read_text().splitlines()]


class Task:
  """A task: its data, its training, and its scores here."""

  script = "run_classifier.py"
  about = "texts"  # function of `transformers_scores`

  def flags(self, folder):
    """Flags of the training."""

  def examples(self):
    """`NUMBER` examples, as `transformers_scores` takes them."""

  def scores(self, output, *model):
    """(label, numbers) of each example, by the flags that name a model."""


class Texts(Task):
  """One label per text."""

  kind = "classification"

  def label(self, text, label):
    """Label of a text in the training set."""
    return "good" if label == "1" else "bad"

  def flags(self, folder):
    rows = [
      (t, self.label(t, n)) for t, n in rows_of("glue", "SST-2", "dev.tsv")
    ]
    write_tsv(folder / "train.tsv", *rows)
    return (
      f"--task_name=tsv --data_dir={folder} --problem_type={self.kind}".split()
    )

  def examples(self):
    return [text for text, _ in rows_of("glue", "SST-2", "dev.tsv")[:NUMBER]]

  def scores(self, output, *model):
    lines = write_lines(
      output.with_suffix(".txt"),
      ("\t".join([e] if isinstance(e, str) else e) for e in self.examples()),
    )
    predict(self.script, output, lines, *model)
    for row in json_lines(output / f"{lines.stem}_predictions.jsonl"):
      if self.kind == "regression":
        yield None, [row["label"]]
      else:
        yield row["label"], [*row["probabilities"].values()]


class MultiLabel(Texts):
  """Any number of labels per text."""

  kind = "multi_label"

  def label(self, text, label):
    return (
      ",".join(["good"] * int(label) + ["long"] * (len(text) > 80)) or "bad"
    )


class Pairs(Texts):
  """A number per pair of texts."""

  kind = "regression"

  def flags(self, folder):
    rows = rows_of("glue", "STS-B", "dev.tsv")
    write_tsv(folder / "train.tsv", *((r[7], r[8], r[9]) for r in rows))
    return [
      *f"--task_name=tsv --data_dir={folder} --problem_type=regression".split(),
      *("--text_b_column=2", "--label_column=3"),
    ]

  def examples(self):
    rows = rows_of("glue", "STS-B", "dev.tsv")[:NUMBER]
    return [(row[7], row[8]) for row in rows]


class Choices(Task):
  """One of four sentences that follow another."""

  about = "choices"

  def flags(self, folder):
    with open(folder / "train.csv", "w", encoding="utf-8") as file:
      table = csv.writer(file)
      endings = [f"ending{n}" for n in range(4)]
      table.writerow(["sent1", "sent2", *endings, "label"])
      for number, pairs in enumerate(self.examples()):
        row = [pairs[0][0], "", *(ending for _, ending in pairs)]
        table.writerow([*row, str(number % 4)])
    return f"--task_name=SWAG --data_dir={folder}".split()

  def examples(self):
    rows = [row[3:5] for row in rows_of("glue", "MRPC", "dev.tsv")]
    endings = [second.strip() for _, second in rows] * 2
    return [
      [(rows[n][0].strip(), endings[n + k]) for k in range(4)]
      for n in range(NUMBER)
    ]

  def scores(self, output, *model):
    folder = model[0].partition("=")[2]
    if "huggingface" in folder:  # not a folder of ours
      converted = str(output.with_suffix(".converted"))
      convert(folder, converted)
      folder = converted
    with run_classifier.Predictor(folder) as predictor:
      for found in predictor.predict(self.examples()):
        yield found.label, [*found.probabilities.values()]


class Words(Task):
  """A tag per word."""

  script = "run_ner.py"
  about = "words"

  def flags(self, folder):
    return [f"--train_file={data('ner', 'wnut17', 'dev.conll')}"]

  def examples(self):
    text = Path(data("ner", "wnut17", "train.conll")).read_text(
      encoding="utf-8"
    )
    sentences = [
      [line.split("\t")[0] for line in block.splitlines()]
      for block in re.split(r"\n\s*\n", text)
    ]
    short = [s for s in sentences if s and sum(map(len, s)) < 60]
    return [s for s in short if all(map(str.isascii, s))][:NUMBER]

  def scores(self, output, *model):
    blocks = ("\n".join(words) + "\n" for words in self.examples())
    lines = write_lines(output.with_suffix(".conll"), blocks)
    predict(self.script, output, lines, *model)
    name = output / f"{lines.stem}_predictions"
    tagged = Path(f"{name}.conll").read_text().strip().split("\n\n")
    entities = json_lines(Path(f"{name}.jsonl"))
    for block, row in zip(tagged, entities):
      tags = [line.split()[-1] for line in block.splitlines()]
      yield tags, [entity["probability"] for entity in row["entities"]]

  @staticmethod
  def of_words(tags, scores):
    """The scores of the entities, given those of the words."""
    spans = ner_tags.tags_to_entities(tags)
    return [min(scores[s.start : s.end]) for s in spans]


class Questions(Task):
  """An answer per question, in passages of one window."""

  script = "run_squad.py"
  about = "questions"

  def flags(self, folder):
    return [
      f"--train_file={self.write(folder / 'train.json')}",
      *("--max_query_length=24", "--doc_stride=32", "--n_best_size=96"),
    ]

  def pairs(self):
    articles = json.loads(Path(data("squad", "dev-v1.1.json")).read_text())
    for article in articles["data"]:
      for paragraph in article["paragraphs"]:
        passage = paragraph["context"]
        if len(passage) < 350 and passage.isascii():
          for question in paragraph["qas"]:
            if len(question["question"]) < 90:
              yield question | {"answers": question["answers"][:1]}, passage

  def write(self, path):
    qas = [*self.pairs()][:NUMBER]
    paragraphs = [{"context": p, "qas": [q]} for q, p in qas]
    path.write_text(
      json.dumps({"data": [{"title": "", "paragraphs": paragraphs}]})
    )
    return path

  def examples(self):
    return [(q["question"], p) for q, p in self.pairs()][:NUMBER]

  def scores(self, output, *model):
    file = self.write(output.with_suffix(".json"))
    predict(self.script, output, file, *model)
    nbest = json.loads((output / "nbest_predictions.json").read_text())
    for best, *_ in nbest.values():
      # Of a span that begins within a word, the text here is that of the word.
      yield None, [best["start_logit"] + best["end_logit"]]


class Masks(Task):
  """Words for a [MASK]."""

  script = "run_pretraining.py"
  about = "masks"

  def flags(self, folder):
    commands.succeed(
      "create_pretraining_data.py",
      f"--input_file={data('text', 'sample_text.txt')}",
      f"--output_file={folder}/records",
      f"--vocab_file={vocab('uncased')}",
      "--max_seq_length=96",
    )
    return [f"--input_file={folder}/records", "--num_train_steps=5"]

  def examples(self):
    texts = [text.split() for text, _ in rows_of("glue", "SST-2", "dev.tsv")]
    texts = [words for words in texts if len(words) > 5][:NUMBER]
    return [" ".join([*words[:3], "[MASK]", *words[4:]]) for words in texts]

  def scores(self, output, *model):
    lines = write_lines(output.with_suffix(".txt"), self.examples())
    predict(self.script, output, lines, *model)
    for row in json_lines(output / "predictions.jsonl"):
      found = row["masks"][0]
      yield [f["token"] for f in found], [f["probability"] for f in found]


class Vectors(Task):
  """A vector per text."""

  script = "run_embeddings.py"
  about = "vectors"

  def flags(self, folder):
    rows = rows_of("glue", "SST-2", "dev.tsv")
    write_tsv(folder / "train.tsv", ("text", "label"), *rows)
    return [
      *(f"--train_file={folder}/train.tsv", "--text_columns=text"),
      *("--label_column=label", "--projection_dim=32", "--pooling=cls"),
    ]

  def examples(self):
    return Texts().examples()

  def scores(self, output, *model):
    lines = write_lines(output.with_suffix(".txt"), self.examples())
    predict(self.script, output, lines, *model)
    for vector in np.load(output / f"{lines.stem}_vectors.npy"):
      yield None, vector.tolist()


def predict(script, output, file, *model):
  """Predicts by a folder and an input alone."""
  commands.succeed(
    script,
    "--do_predict",
    f"--predict_file={file}",
    f"--output_dir={output}",
    *model,
  )


def convert(source, target):
  """Converts a folder."""
  commands.succeed(
    "convert_checkpoint.py", f"--input={source}", f"--output={target}"
  )


def train(task, folder):
  """Trains a model of a task for a few steps."""
  initial = [f"--init_checkpoint={os.environ.get('MINILM')}"]
  if "MINILM" not in os.environ:
    (folder / "config.json").write_text(json.dumps(CONFIG))
    initial = [
      f"--vocab_file={vocab('uncased')}",
      f"--bert_config_file={folder}/config.json",
    ]
  commands.succeed(
    task.script,
    "--do_train",
    *task.flags(folder),
    *initial,
    *("--max_seq_length=96", "--train_batch_size=8", "--learning_rate=1e-4"),
    *([] if task.about == "masks" else ["--num_train_epochs=0.2"]),
    f"--output_dir={folder}/trained",
  )


def by_transformers(task, folder, work):
  """(label, numbers) of each example in transformers."""
  examples, scores = work / "examples.json", work / "scores.json"
  examples.write_text(json.dumps(task.examples()))
  subprocess.run(
    [PYTHON, PROGRAM, task.about, folder, examples, scores],
    check=True,
    env=os.environ | {"USE_TF": "0", "HF_HUB_OFFLINE": "1"},
  )
  return json.loads(scores.read_text())


TASKS = [Texts, MultiLabel, Pairs, Choices, Words, Questions, Masks, Vectors]


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.__name__)
def test_a_model_is_the_same_there_and_back(task, tmp_path, monkeypatch):
  monkeypatch.setenv("BERT_CACHE_DIR", str(tmp_path / "cache"))
  task = task()
  train(task, tmp_path)
  trained, there = tmp_path / "trained", tmp_path / "huggingface"
  convert(trained, there)
  if task.about == "choices":
    ours = [*task.scores(tmp_path / "ours", f"--init_checkpoint={trained}")]
  else:
    ours = [*task.scores(trained)]
  back = [*task.scores(tmp_path / "back", f"--init_checkpoint={there}")]
  assert back == ours
  assert len(ours) == len(task.examples()) == NUMBER
  largest, other_labels = 0, 0
  for (label, scores), (their_label, their_scores) in zip(
    ours, by_transformers(task, there, tmp_path)
  ):
    if task.about == "words":
      their_scores = task.of_words(their_label, their_scores)
    other_labels += label != their_label
    if label == their_label:
      difference = np.abs(np.subtract(scores, their_scores))
      largest = max(largest, difference.max(initial=0))
  print(f"{type(task).__name__}: {other_labels} other labels, {largest:.1e}")
  assert other_labels == 0
  assert largest < 1e-5
