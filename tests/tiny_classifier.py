"""A tiny classifier of sentence pairs, and the data that it is trained on."""

import commands
import tiny_model

WORDS = "a the cat dog sat ran on mat home and did not it is good bad"
VOCAB = [*tiny_model.SPECIAL, *WORDS.split(" ")]
SENTENCES = [
  ("the cat sat on the mat", "a cat is on a mat", "1"),
  ("the dog ran home", "it is good and bad", "0"),
  ("a dog is bad", "the dog is not good", "1"),
  ("it did not", "the cat ran on and on and on", "0"),
]
CONFIG = tiny_model.config(len(VOCAB), num_hidden_layers=2)


def write_data(folder):
  """Writes a vocabulary, a config and MRPC into a folder."""
  tiny_model.write_files(folder, VOCAB, CONFIG)
  header = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
  rows = [f"{label}\t1\t2\t{a}\t{b}\n" for a, b, label in SENTENCES]
  (folder / "train.tsv").write_text(header + "".join(rows * 4))
  (folder / "dev.tsv").write_text(header + "".join(rows[:3]))
  (folder / "test.tsv").write_text(header + "".join(rows[1:]))


def flags(folder, **changed):
  values = {
    "task_name": "MRPC",
    "data_dir": folder,
    "vocab_file": folder / "vocab.txt",
    "bert_config_file": folder / "bert_config.json",
    "output_dir": folder / "out",
    "max_seq_length": 16,
    "train_batch_size": 4,
    "learning_rate": 1e-3,
  }
  return commands.as_flags(values | changed)


def train(folder):
  """Trains for twelve steps, evaluates and predicts; returns its output."""
  return commands.succeed(
    "run_classifier.py",
    *("--do_train", "--do_eval", "--do_predict"),
    *flags(folder, output_dir=folder / "trained"),
    own_process=True,
  )
