"""A tiny model that tags words, and the data that it is trained on."""

import commands
import tiny_model
from tiny_model import flags

NAMES = ["ann", "bob", "cat", "dan"]
CITIES = ["paris", "rome", "oslo", "lima"]
WORDS = ["went", "to", "and", "new", ".", "##s"]
VOCAB = [*tiny_model.SPECIAL, *NAMES, *CITIES, *WORDS]
CONFIG = tiny_model.config(
  len(VOCAB),
  hidden_size=32,
  intermediate_size=64,
  hidden_dropout_prob=0.0,
  attention_probs_dropout_prob=0.0,
  max_position_embeddings=48,
)


def sentence(number):
  """Words and tags of one of the sentences on who went where."""
  name, city = NAMES[number % 4], CITIES[number // 4 % 4]
  words = [name, "went", "to", "new", city, "."]
  return words, ["B-PER", "O", "O", "B-LOC", "I-LOC", "O"]


def columns(numbers):
  return "\n".join(
    "".join(f"{word}\t{tag}\n" for word, tag in zip(*sentence(number)))
    for number in numbers
  )


def write_data(folder):
  """Writes a small model's files and data into a folder."""
  tiny_model.write_files(folder, VOCAB, CONFIG)
  (folder / "train.conll").write_text(columns(range(16)))
  (folder / "dev.conll").write_text(columns(range(0, 16, 3)))
  (folder / "test.conll").write_text(
    "bob\nwent\nto\nnew\noslo\n\n" + "and\n" * 30 + "ann\n\n\u0000\n"
  )


def training(folder):
  return [
    "--do_train",
    f"--train_file={folder / 'train.conll'}",
    "--train_batch_size=8",
    "--num_train_epochs=40",
    "--learning_rate=3e-3",
    "--bias_correction",
    "--xla=off",
  ]


def train(folder):
  """Trains for 80 steps, evaluates and predicts; returns its output."""
  return commands.succeed(
    "run_ner.py",
    *flags(folder, *training(folder), output_dir=folder / "trained"),
    "--do_eval",
    f"--dev_file={folder / 'dev.conll'}",
    "--do_predict",
    f"--predict_file={folder / 'test.conll'}",
    "--gradient_accumulation_steps=2",
    "--group_by_length",
    "--eval_steps=40",
    own_process=True,
  )
