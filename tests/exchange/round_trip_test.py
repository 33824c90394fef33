"""Models trained here, in transformers, and back: equal labels and scores.

Each task trains on real data for a few steps, from the model of `MINILM` or
else at random. Its folder is converted, run by transformers on 200 examples (by
the Python of `TRANSFORMERS_PYTHON`, else this one), and read back from there by
--init_checkpoint alone. So are random models of each class that transformers
and sentence-transformers write.
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
from parametrize import parametrize
from reference_data import data, read_jsonl, vocab

import run_classifier
from bertlib.io.text_files import read_lines
from bertlib.tasks.ner import ner

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


def write_lines(path, lines):
  """Writes one example per line."""
  path.write_text("".join(f"{line}\n" for line in lines))
  return path


def write_tsv(path, *rows):
  """Writes rows of fields."""
  return write_lines(path, map("\t".join, rows))


class Task:
  """A task: its data, its training, and its scores here."""

  script = "run_classifier.py"
  about = "texts"  # function of `transformers_scores`
  options = ()  # flags of the prediction by a model that was not trained here

  def flags(self, folder):
    """Flags of the training."""

  def examples(self):
    """`NUMBER` examples, as `transformers_scores` takes them."""
    return [text for text, _ in rows_of("glue", "SST-2", "dev.tsv")[:NUMBER]]

  def write_examples(self, path):
    """Writes the examples to predict; returns the path of the file."""
    return write_lines(path.with_suffix(".txt"), self.examples())

  def scores(self, output, *model):
    """(label, numbers) of each example, by the flags that name a model."""
    lines = self.write_examples(output)
    predict(self.script, output, lines, *model)
    return self.read(output, f"{output}/{lines.stem}")

  def read(self, output, prefix):
    """Yields the `scores` in an output folder, whose files have a prefix."""


class Texts(Task):
  """One label per text."""

  kind = "classification"

  def label(self, text, label):
    """Label of a text in the training set."""
    return "good" if label == "1" else "bad"

  def flags(self, folder):
    rows = rows_of("glue", "SST-2", "dev.tsv")
    write_tsv(folder / "train.tsv", *((t, self.label(t, n)) for t, n in rows))
    return (
      f"--task_name=tsv --data_dir={folder} --problem_type={self.kind}".split()
    )

  def write_examples(self, path):
    rows = ([e] if isinstance(e, str) else e for e in self.examples())
    return write_tsv(path.with_suffix(".txt"), *rows)

  def read(self, output, prefix):
    for row in read_jsonl(f"{prefix}_predictions.jsonl"):
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
    flags = super().flags(folder)
    rows = rows_of("glue", "STS-B", "dev.tsv")
    write_tsv(folder / "train.tsv", *(row[7:10] for row in rows))
    return [*flags, "--text_b_column=2", "--label_column=3"]

  def examples(self):
    return [row[7:9] for row in rows_of("glue", "STS-B", "dev.tsv")[:NUMBER]]


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
    blocks = (
      "".join(f"{word} {self.tag(word)}\n" for word in words)
      for words in self.sentences("dev.conll")
    )
    return [f"--train_file={write_lines(folder / 'train.conll', blocks)}"]

  def tag(self, word):
    """A tag for many words, so that many scores are compared."""
    return "B-WORD" if word.isalpha() else "O"

  def sentences(self, name):
    text = Path(data("ner", "wnut17", name)).read_text(encoding="utf-8")
    sentences = [
      [line.split("\t")[0] for line in block.splitlines()]
      for block in re.split(r"\n\s*\n", text)
    ]
    short = [s for s in sentences if s and sum(map(len, s)) < 60]
    return [s for s in short if all(map(str.isascii, s))]

  def examples(self):
    return self.sentences("train.conll")[:NUMBER]

  def write_examples(self, path):
    blocks = ("\n".join(words) + "\n" for words in self.examples())
    return write_lines(path.with_suffix(".conll"), blocks)

  def read(self, output, prefix):
    tagged = Path(f"{prefix}_predictions.conll").read_text().strip()
    entities = read_jsonl(f"{prefix}_predictions.jsonl")
    for block, row in zip(tagged.split("\n\n"), entities):
      tags = [line.split()[-1] for line in block.splitlines()]
      yield tags, [entity["probability"] for entity in row["entities"]]

  @staticmethod
  def of_words(tags, scores):
    """The scores of the entities, given those of the words."""
    return [min(scores[s.start : s.end]) for s in ner.tags_to_entities(tags)]


class Questions(Task):
  """An answer per question, in passages of one window."""

  script = "run_squad.py"
  about = "questions"
  options = ("--max_query_length=24", "--n_best_size=96")

  def flags(self, folder):
    train_file = self.write_examples(folder / "train")
    return [f"--train_file={train_file}", *self.options, "--doc_stride=32"]

  def pairs(self):
    articles = json.loads(Path(data("squad", "dev-v1.1.json")).read_text())
    for article in articles["data"]:
      for paragraph in article["paragraphs"]:
        passage = paragraph["context"]
        for question in paragraph["qas"]:
          text = f"{question['question']} {passage}"
          num_words = len(re.findall(r"\w+|[^\w\s]", text))
          if num_words < 68 and text.isascii():
            yield question | {"answers": question["answers"][:1]}, passage

  def write_examples(self, path):
    qas = [*self.pairs()][:NUMBER]
    paragraphs = [{"context": p, "qas": [q]} for q, p in qas]
    content = json.dumps({"data": [{"title": "", "paragraphs": paragraphs}]})
    return write_lines(path.with_suffix(".json"), [content])

  def examples(self):
    return [(q["question"], p) for q, p in self.pairs()][:NUMBER]

  def read(self, output, prefix):
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

  def read(self, output, prefix):
    for row in read_jsonl(f"{output}/predictions.jsonl"):
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

  def read(self, output, prefix):
    for vector in np.load(f"{prefix}_vectors.npy"):
      yield None, vector.tolist()


class Relations(Texts):
  """One of several labels per pair of texts."""

  about = "pairs"

  def examples(self):
    return Pairs().examples()


class Relevance(Relations):
  """The score of a pair of texts, by a reranker."""

  script = "run_reranker.py"

  def flags(self, folder):
    pairs = Pairs().examples()
    rows = [(*pair, str(n % 2)) for n, pair in enumerate(pairs)]
    names = "query", "document", "label"
    return (
      f"--train_file={write_tsv(folder / 'train.tsv', names, *rows)}",
      *("--text_columns=query,document", "--label_column=label"),
    )

  def examples(self):
    short = super().examples()
    # Longer than 96 tokens, of which the query has more than half, or less.
    long = [[" ".join([a] * (40 // len(a.split()))), b * 9] for a, b in short]
    cut = [[a, b * 20] for a, b in short]
    return [*short[:100], *long[:50], *cut[:50]]

  def read(self, output, prefix):
    for row in read_jsonl(f"{prefix}_predictions.jsonl"):
      yield None, [row["score"]]


class States(Task):
  """The hidden states of a text."""

  about = "states"

  def scores(self, output, *model):
    lines, features = self.write_examples(output), f"{output}.jsonl"
    commands.succeed(
      "extract_features.py",
      f"--input_file={lines}",
      f"--output_file={features}",
      "--layers=-1",
      *model,
    )
    for row in read_jsonl(features):
      tokens = row["features"]
      values = [x for token in tokens for x in token["layers"][0]["values"]]
      yield [token["token"] for token in tokens], values


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


def by_transformers(function, folder, examples, work):
  """Results of a function of `transformers_scores` for each example."""
  examples_file, scores = work / "examples.json", work / "scores.json"
  examples_file.write_text(json.dumps(examples))
  subprocess.run(
    [PYTHON, PROGRAM, function, folder, examples_file, scores],
    check=True,
    env=os.environ | {"USE_TF": "0", "HF_HUB_OFFLINE": "1"},
  )
  return json.loads(scores.read_text())


def assert_equal(name, task, ours, folder, work):
  """Asserts equal labels, and scores within 1e-5, as in transformers."""
  theirs = by_transformers(task.about, folder, task.examples(), work)
  assert len(ours) == len(theirs) == NUMBER
  largest, count, other_labels = 0, 0, 0
  for (label, scores), (their_label, their_scores) in zip(ours, theirs):
    if task.about == "words":
      their_scores = task.of_words(their_label, their_scores)
    other_labels += label != their_label
    if label == their_label:
      difference = np.abs(np.subtract(scores, their_scores))
      largest = max(largest, difference.max(initial=0))
      count += len(scores)
  print(f"{name}: {other_labels} other labels, {count} scores, {largest:.1e}")
  assert other_labels == 0
  assert count > NUMBER / 2
  assert largest < 1e-5


TASKS = [Texts, MultiLabel, Pairs, Choices, Words, Questions, Masks, Vectors]
TASKS.append(Relevance)


@parametrize("task", *TASKS, ids=lambda task: task.__name__)
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
  assert [*task.scores(tmp_path / "back", f"--init_checkpoint={there}")] == ours
  assert_equal(type(task).__name__, task, ours, there, tmp_path)


_LABELS = {"id2label": {0: "a", 1: "b", 2: "c"}}
_TAGS = {"id2label": {0: "O", 1: "B-A", 2: "B-B", 3: "B-C"}}
_MULTI_LABEL = {"problem_type": "multi_label_classification"}
_ONE_OUTPUT = {"num_labels": 1}
_PROMPT = {"prompts": {"query": "search: "}, "default_prompt_name": "query"}
_REGRESSION = {"problem_type": "regression", "num_labels": 1}
CLASSIFIER = "BertForSequenceClassification"
# Name, task, class, what its config has; the class that writes it, and more.
MADE = [
  ("single label", Texts, CLASSIFIER, _LABELS),
  ("multi-label", MultiLabel, CLASSIFIER, _MULTI_LABEL | _LABELS),
  ("regression", Pairs, CLASSIFIER, _REGRESSION),
  ("tags", Words, "BertForTokenClassification", _TAGS),
  ("answers", Questions, "BertForQuestionAnswering", {}),
  ("choices", Choices, "BertForMultipleChoice", {}),
  ("masked LM", Masks, "BertForMaskedLM", {}),
  ("pretraining", Masks, "BertForPreTraining", {}),
  ("encoder", States, "BertModel", {}),
  ("sentence vectors", Vectors, "BertModel", {}, "SentenceTransformer"),
  ("cross-encoder", Relevance, CLASSIFIER, _ONE_OUTPUT, "CrossEncoder"),
  ("reranker", Relevance, CLASSIFIER, _ONE_OUTPUT, "CrossEncoder", _PROMPT),
  ("cross-encoder of labels", Relations, CLASSIFIER, _LABELS, "CrossEncoder"),
]


@parametrize("made", *MADE, ids=lambda made: made[0])
def test_a_model_of_another_library_is_equal_here(made, tmp_path, monkeypatch):
  name, task, of_class, config, *more = made
  library, options = (*more, *("", {})[len(more) :])
  monkeypatch.setenv("BERT_CACHE_DIR", str(tmp_path / "cache"))
  task, there = task(), tmp_path / "huggingface"
  model = {
    "class": of_class,
    "config": CONFIG | config,
    "vocab": vocab("uncased"),
    "library": library,
    "options": options,
  }
  by_transformers("make", there, model, tmp_path)
  flags = f"--init_checkpoint={there}", *task.options
  ours = [*task.scores(tmp_path / "ours", *flags)]
  assert_equal(name, task, ours, there, tmp_path)
