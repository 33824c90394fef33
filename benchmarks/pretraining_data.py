"""Benchmark of create_pretraining_data.py.

Runs whole commands in turns: ours in memory, with one worker and with two.

    python -m benchmarks.pretraining_data --dupe_factor=1 \
        --vocab_file=uncased/vocab.txt --text_file=sentences.txt

Beside them, `datasets.map` tokenizes and groups the text in one process and in
two, with `encode_batch_fast` of tokenizers, and transformers' collator masks
each batch once, with NumPy: that takes less time than their examples. Their
start-up is not timed; ours is. `masks of an epoch` is the time of the collator,
and here that of reading batches as `run_pretraining.py --remask` does.

With `--reference=bert --reference_python=python3.7 --peer_python=` records are
pairs of segments, and have to equal the original's: a checkout of
google-research/bert, and a Python with TensorFlow 1.15. Processor time depends
less on other load of the machine.
"""

from __future__ import annotations

import itertools
import os
import shutil
import sys
import tempfile

from benchmarks import side_by_side
from benchmarks.side_by_side import FLAGS, Answers, Settings, Side

_BATCH_SIZE = 32


def main(_: list[str]) -> None:
  """Times the commands and reports ratios."""
  from bertlib.io import processes

  script = "create_pretraining_data.py"
  words = [
    f"--input_file={FLAGS.text_file}",
    f"--vocab_file={FLAGS.vocab_file}",
    f"--dupe_factor={FLAGS.dupe_factor}",
  ]
  if FLAGS.peer_python:
    side_by_side.check_peers("datasets", "torch", "transformers")
    words.append("--segments=documents")
  commands = {
    "ours": [sys.executable, script],
    "one worker": [sys.executable, script, "--num_workers=1"],
    "two workers": [sys.executable, script, "--num_workers=2"],
  }
  pairs = [("whole command", "two workers", "one worker")]
  if FLAGS.reference:
    original = os.path.join(FLAGS.reference, script)
    commands["reference"] = [FLAGS.reference_python, original]
    pairs += [
      ("its processor time", "ours", "reference"),
      ("whole command", "two workers", "reference"),
    ]
  with tempfile.TemporaryDirectory() as folder:
    sides = []
    for name, start in commands.items():
      own = {"words": [*start, *words], "folder": os.path.join(folder, name)}
      sides.append(Side(name, whole_command, settings=own))
    if FLAGS.peer_python:
      own = {"words": [*commands["ours"], *words]}
      sides.append(Side("remask", remask, settings=own))
      for ours, number in ("ours", None), ("two workers", 2):
        name = f"transformers-{number or 1} process{'es' * bool(number)}"
        how = {"num_processes": number}
        sides.append(Side(name, transformers, FLAGS.peer_python, how))
        pairs.append(("its processor time", ours, name))
        pairs.append(("masks of an epoch", "remask", name))
    file_name = os.path.basename(FLAGS.text_file)
    work = f"{file_name}, {FLAGS.dupe_factor} duplicates"
    threads = processes.usable_cores()
    side_by_side.compare(sides, work, pairs, threads=threads)
    if FLAGS.reference:
      check_equal(folder)


def whole_command(settings: Settings) -> Answers:
  """A command that writes records; it is not run before it is timed."""
  yield {"description": "", "versions": {}}
  output = f"--output_file={os.path.join(settings.folder, 'records')}"
  while True:
    os.mkdir(settings.folder)
    done = side_by_side.run_command([*settings.words, output])
    yield {
      "whole command": done.seconds,
      "its processor time": done.processor_seconds,
    }
    shutil.rmtree(settings.folder)


def transformers(settings: Settings) -> Answers:
  """The text in sequences of 128 tokens, and masked batches of them."""
  import datasets
  import transformers

  datasets.disable_progress_bars()
  tokenizer = transformers.BertTokenizerFast(
    vocab=settings.vocab_file, model_max_length=10**9
  )
  cls, sep = tokenizer.cls_token_id, tokenizer.sep_token_id
  encode = tokenizer.backend_tokenizer.encode_batch_fast
  collate = transformers.DataCollatorForLanguageModeling(
    tokenizer, return_tensors="np"
  )

  def group(rows):
    encoded = encode(rows["text"], add_special_tokens=False)
    ids = [*itertools.chain.from_iterable(each.ids for each in encoded)]
    parts = [ids[first : first + 126] for first in range(0, len(ids), 126)]
    parts = parts[: len(ids) // 126]
    return {
      "input_ids": [[cls, *part, sep] for part in parts],
      "special_tokens_mask": [[1, *[0] * 126, 1]] * len(parts),
    }

  yield {"description": ""}
  while True:
    start = processor_seconds()
    # A cached result, also one for another `num_proc`, would be taken.
    with tempfile.TemporaryDirectory() as folder:
      text = datasets.load_dataset(
        "text", data_files=settings.text_file, cache_dir=folder, split="train"
      )
      data = text.map(
        group,
        batched=True,
        remove_columns=["text"],
        num_proc=settings.num_processes,
      ).with_format("numpy")
      grouped = processor_seconds()
      for first in range(0, len(data), _BATCH_SIZE):
        rows = data[first : first + _BATCH_SIZE]
        collate([dict(zip(rows, values)) for values in zip(*rows.values())])
    end = processor_seconds()
    yield {
      "its processor time": end - start,
      "masks of an epoch": end - grouped,
    }


def remask(settings: Settings) -> Answers:
  """Masked batches of records that exist."""
  import tensorflow.compat.v1 as tf

  import tokenization
  from bertlib.data import tf_records
  from bertlib.tasks.pretraining import dynamic_masking, training_batches
  from bertlib.tasks.pretraining.objectives import MLM

  tokenizer = tokenization.FullTokenizer(settings.vocab_file)
  with tempfile.TemporaryDirectory() as folder, tf.Graph().as_default():
    path = os.path.join(folder, "records")
    side_by_side.run_command([*settings.words, f"--output_file={path}"])
    num_records = tf_records.count_records(path)
    dataset = training_batches.input_fn_builder(
      *([path], 128, 20, True),
      trim=True,
      masking=dynamic_masking.Masking(tokenizer),
      num_records=num_records,
      objective=MLM,
    )({"batch_size": _BATCH_SIZE})
    batch = tf.data.make_one_shot_iterator(dataset).get_next()
    session = tf.Session()
    session.run(batch)
    yield {"description": ""}
    while True:
      start = processor_seconds()
      side_by_side.repeat(num_records // _BATCH_SIZE, session.run, batch)
      yield {"masks of an epoch": processor_seconds() - start}


def processor_seconds() -> float:
  """Processor time of this process and of its processes that ended."""
  return sum(os.times()[:4])


def check_equal(folder: str) -> None:
  """Compares the records of both; features may be in any order."""
  import tensorflow as tf

  from bertlib.cli.errors import InputError

  def examples(name):
    records = tf.data.TFRecordDataset(os.path.join(folder, name, "records"))
    return [*map(tf.train.Example.FromString, records.as_numpy_iterator())]

  records = examples("ours")
  if records != examples("reference"):
    raise InputError("the records differ")
  print(f"{len(records)} records equal")


if __name__ == "__main__":
  side_by_side.run(
    main,
    passes=3,
    vocab_file="Vocabulary.",
    text_file="Text file, one sentence per line.",
    dupe_factor=(5, "See create_pretraining_data.py."),
  )
