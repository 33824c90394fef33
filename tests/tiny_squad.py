"""A tiny model that answers questions, and the data it is trained on."""

import json

import commands
import tiny_model

NAMES = ["ann", "bob", "cat", "dan", "eve"]
CITIES = ["paris", "rome", "oslo", "lima"]
WORDS = ["who", "where", "is", "in", "went", "to", "and", "then", ".", "?"]
VOCAB = [*tiny_model.SPECIAL, *NAMES, *CITIES, *WORDS]
CONFIG = tiny_model.config(len(VOCAB), max_position_embeddings=48)


def make_data(with_negative, num_paragraphs=6):
  """Paragraphs on who went where, the later ones of several windows."""
  paragraphs = []
  for number in range(num_paragraphs):
    name, city = NAMES[number % 5], CITIES[number % 4]
    padding = " and then" * (5 * (number % 3))
    context = f"{name} went to {city}{padding} ."
    qas = []
    for word, answer in (("who", name), ("where", city)):
      qa = {"id": f"{number}-{word}", "question": f"{word} is in {city} ?"}
      start = context.index(answer)
      qa["answers"] = [{"text": answer, "answer_start": start}]
      if with_negative:
        qa["is_impossible"] = number % 2 == 1
        if qa["is_impossible"]:
          qa["answers"] = []
      qas.append(qa)
    paragraphs.append({"context": context, "qas": qas})
  return {"data": [{"paragraphs": paragraphs}]}


def write_data(folder):
  """Writes a vocabulary, a config and data of both versions into a folder."""
  tiny_model.write_files(folder, VOCAB, CONFIG)
  (folder / "v1.json").write_text(json.dumps(make_data(False)))
  (folder / "v2.json").write_text(json.dumps(make_data(True)))


def flags(folder, **changed):
  values = {
    "train_file": folder / "v1.json",
    "predict_file": folder / "v1.json",
    "vocab_file": folder / "vocab.txt",
    "bert_config_file": folder / "bert_config.json",
    "output_dir": folder / "out",
    "max_seq_length": 24,
    "max_query_length": 8,
    "doc_stride": 4,
    "train_batch_size": 4,
    "learning_rate": 1e-3,
  }
  return commands.as_flags(values | changed)


V2 = ("--do_predict", "--mask_padding", "--version_2_with_negative")


def train(folder):
  """Trains for six steps, evaluates twice and predicts; returns its output."""
  return commands.succeed(
    "run_squad.py",
    "--do_train",
    *V2,
    "--do_eval",
    f"--save_logits={folder / 'logits.npz'}",
    *flags(
      folder,
      train_file=folder / "v2.json",
      predict_file=folder / "v2.json",
      num_train_epochs=2,
      eval_steps=3,
      xla="off",
      output_dir=folder / "trained",
    ),
    own_process=True,
  )
