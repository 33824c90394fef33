"""A tiny model under pretraining, and the records that it is trained on."""

import commands
import numpy as np
import tiny_model

import tokenization
from bertlib.data import tf_records
from bertlib.tasks.pretraining import pretraining_instances

WORDS = "a the cat dog sat ran on mat home un ( . is good bad"
WORDS = WORDS.split(" ")
PIECES = ["##s", "##able", "##ly", "##ing"]
VOCAB = [*tiny_model.SPECIAL, *WORDS, *PIECES]
VOCAB_IDS = {token: index for index, token in enumerate(VOCAB)}
TOKENIZER = tokenization.FullTokenizer(VOCAB_IDS)
PAD, _, CLS, SEP, MASK = range(len(tiny_model.SPECIAL))
SEQ_LENGTH, NUM_PREDICTIONS = 24, 5
CONFIG = tiny_model.config(len(VOCAB))


def random_example(rng):
  """Ids of [CLS] a [SEP] b [SEP], with and without masks, as a record."""
  first = len(tiny_model.SPECIAL)
  a, b = (
    rng.integers(first, len(VOCAB), rng.integers(2, 10)).tolist() for _ in "ab"
  )
  tokens = [CLS, *a, SEP, *b, SEP]
  places = [i for i, token in enumerate(tokens) if token not in (CLS, SEP)]
  masked = sorted(rng.choice(places, rng.integers(1, 4), replace=False))
  hidden = list(tokens)
  for position in masked:
    hidden[position] = int(rng.choice([MASK, MASK, tokens[position], first]))
  padding = [0] * (SEQ_LENGTH - len(tokens))
  left_over = [0] * (NUM_PREDICTIONS - len(masked))
  return tokens + padding, {
    "input_ids": hidden + padding,
    "input_mask": [1] * len(tokens) + padding,
    "segment_ids": [0] * (len(a) + 2) + [1] * (len(b) + 1) + padding,
    "masked_lm_positions": [*masked, *left_over],
    "masked_lm_ids": [tokens[position] for position in masked] + left_over,
    "masked_lm_weights": [1.0] * len(masked) + left_over,
    "next_sentence_labels": [int(rng.integers(2))],
  }


def write_examples(path, num_records, seed):
  rng = np.random.default_rng(seed)
  tf_records.write_records(
    str(path),
    [random_example(rng)[1] for _ in range(num_records)],
    pretraining_instances.record_layout(SEQ_LENGTH, NUM_PREDICTIONS),
  )


def write_data(folder):
  """Writes a vocabulary, a config and records in several files."""
  tiny_model.write_files(folder, VOCAB, CONFIG)
  for number, num_records in enumerate([20, 13, 9]):
    write_examples(folder / f"train-{number}.tfrecord", num_records, number)
  write_examples(folder / "held_out.tfrecord", 10, seed=3)


def flags(folder, **changed):
  values = {
    "input_file": folder / "train-*.tfrecord",
    "bert_config_file": folder / "bert_config.json",
    "output_dir": folder / "out",
    "max_seq_length": SEQ_LENGTH,
    "max_predictions_per_seq": NUM_PREDICTIONS,
    "train_batch_size": 8,
    "eval_batch_size": 4,
    "learning_rate": 1e-2,
    "num_train_steps": 60,
    "num_warmup_steps": 5,
    "save_checkpoints_steps": 10,
  }
  return commands.as_flags(values | changed)


REMASKED = ["--do_train", "--remask", "--do_whole_word_mask"]
TEXTS = ["the [MASK] sat", "(un[MASK] ||| a [MASK].", "", "the cats ||| ran"]


def train(folder):
  """Trains on new masks, evaluates and fills masks; returns its output."""
  (folder / "texts.txt").write_text("".join(text + "\n" for text in TEXTS))
  return commands.succeed(
    "run_pretraining.py",
    *REMASKED,
    "--do_eval",
    "--do_predict",
    *flags(
      folder,
      output_dir=folder / "trained",
      vocab_file=folder / "vocab.txt",
      eval_input_file=folder / "held_out.tfrecord",
      predict_file=folder / "texts.txt",
      top_k=3,
      xla="off",
    ),
    own_process=True,
  )
