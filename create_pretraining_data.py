"""Creates pretraining records (masked LM, next sentence) from plain text.

The text has one sentence per line and a blank line between documents. A record
is a pair of segments with some tokens masked; the second segment follows the
first or is a random one (Devlin et al. 2019, section 3.1 and appendix A.2).
With `--segments` it is text without pairs, for the masked LM alone. See
`bertlib.tasks.pretraining.pretraining_instances`.

By default all text is held in memory, and a single random generator creates the
same records as google-research/bert with the same flags. With `--num_workers`
documents are distributed over blocks, each with its own random generator: any
number of processes create the same records, from a corpus of any size.
TensorFlow is not imported.
"""

from __future__ import annotations

import collections
import dataclasses
import gc
import itertools
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from absl import flags, logging

from bertlib.cli import app, option, terminal
from bertlib.cli.errors import InputError
from bertlib.cli.steps import Steps
from bertlib.data import vocabulary
from bertlib.io import files, folder_lock, output_folders, text_files
from bertlib.reporting import receipts
from bertlib.tasks.pretraining import (
  masking,
  pretraining_blocks,
  pretraining_instances,
  pretraining_text,
)
from bertlib.tasks.pretraining.masking import (  # noqa: F401 (its name is also here)
  create_masked_lm_predictions,
)
from bertlib.tasks.pretraining.pretraining_instances import (  # noqa: F401
  TrainingInstance,
  create_instances_from_document,
  truncate_seq_pair,
)
from bertlib.tasks.pretraining.recipe import Recipe
from bertlib.tasks.pretraining.settings import PretrainingDataSettings

FLAGS = flags.FLAGS


# Run


def define_flags(required: bool = True) -> None:
  """Defines the flags, see `option.define`."""
  option.define(PretrainingDataSettings, required=required)


def main(_) -> None:
  """Creates the records of --input_file."""
  settings = option.from_flags(PretrainingDataSettings)

  def make_records(*arguments):
    if not settings.num_workers:
      return write_in_memory(*arguments)
    return pretraining_blocks.BlockRun(*arguments).run(settings.num_workers)

  # Records have no reference cycles, and looking for some takes a quarter of
  # the time, here and in forked workers.
  gc.disable()
  try:
    create(__file__, settings, make_records)
  finally:
    gc.enable()


def create(
  script: str,
  settings: PretrainingDataSettings,
  # Writes the records of a recipe and of input files to output files; returns
  # the counts.
  make_records: Callable[..., collections.Counter[str]],
  # Module with `find_files`, `open_any`, `size_and_mtime`, such as `files`.
  file_system: Any = files,
) -> None:
  """Creates the records of --input_file, and their receipt."""
  with receipts.begin(script, settings, file_system) as (receipt, step):
    recipe, inputs, outputs = setup(settings, file_system, step)
  if step.is_dry_run:
    return
  receipt.start(settings, [(path, "text") for path in inputs])
  logging.info("Text from %d files: %s", len(inputs), ", ".join(inputs[:10]))
  # Shards of one name are made by one run.
  names = files.split_names(settings.output_file)
  with output_folders.folders_for(outputs), folder_lock.lock_files(names):
    counts = make_records(recipe, inputs, outputs)
  report(counts, recipe)
  logging.info("Records in %s", ", ".join(outputs[:10]))
  hashes = [
    file["sha256"]
    for file in receipts.fingerprints(outputs, file_system.open_any)
  ]
  receipt.finish({**counts, "sha256": hashes})


def setup(
  settings: PretrainingDataSettings, file_system: Any, step: Steps
) -> tuple[Recipe, list[str], list[str]]:
  """Finds the files of a run; checks everything but the text itself."""
  recipe = settings.recipe
  tokenizer = step("vocabulary", load_tokenizer, recipe)
  names = files.split_names(settings.input_file)
  inputs = step("input", file_system.find_files, names)
  outputs = step("output", find_outputs, settings, inputs)
  if step.is_dry_run:
    step("text", check_text, recipe, tokenizer, inputs, file_system)
  return recipe, inputs, outputs


def load_tokenizer(recipe: Recipe):
  """Loads the tokenizer; warns of a vocabulary of the other casing."""
  tokenizer = pretraining_text.load_tokenizer(recipe)
  path, is_lower = recipe.vocab_file, recipe.do_lower_case
  if not vocabulary.is_subword(path):
    vocabulary.check_case(path, tokenizer.vocab, is_lower, refuses=False)
  return tokenizer


def find_outputs(
  settings: PretrainingDataSettings, inputs: Sequence[str]
) -> list[str]:
  """Paths of the output files; refuses some that are inputs."""
  outputs, number = files.split_names(settings.output_file), settings.num_shards
  if number:
    outputs = [f"{outputs[0]}-{i:05}-of-{number:05}" for i in range(number)]
  receipt_files = [
    receipts.path_of(settings),
    pretraining_blocks.receipt_file(outputs),
  ]
  vocab_file = settings.recipe.vocab_file
  files.check_outputs([*outputs, *receipt_files], [*inputs, vocab_file])
  return outputs


def write_in_memory(
  recipe: Recipe,
  input_files: Iterable[str],
  output_files: Sequence[str],
) -> collections.Counter[str]:
  """Creates the records of a corpus in memory, by one random generator."""
  tokenizer = pretraining_text.load_tokenizer(recipe)
  counts: collections.Counter[str] = collections.Counter()
  lines = pretraining_text.read_corpus(input_files, recipe.codec)
  rng = random.Random(recipe.random_seed)
  records: list[bytes] = []
  with terminal.progress(recipe.dupe_factor, "passes") as bar:
    for of_pass in pretraining_instances.create_records(
      recipe, tokenizer, lines, rng, counts
    ):
      records += of_pass
      bar.update()
  rng.shuffle(records)
  if not records:
    raise InputError("--input_file: there is no text in it")
  pretraining_instances.write_in_turn(records, output_files)
  return counts


def report(counts: collections.Counter[str], recipe: Recipe) -> None:
  """Logs the counts; warns of text unsuited for next sentence prediction."""
  if not counts:  # some runners of Apache Beam have none
    return
  for name, count in counts.items():
    logging.info("  %s: %d", name, count)
  num_positions = counts["records"] * recipe.max_seq_length
  logging.info(
    "Tokens fill %.3f of the records; the rest is padding",
    counts["tokens"] / num_positions,
  )
  _warn_of_short_rows(counts, recipe)
  num_cut = counts[pretraining_instances.CUT_MASKS]
  num_wanted = num_cut + counts["masked tokens"]
  masking.warn_of_cut_masks(num_cut, num_wanted, recipe, recipe.max_seq_length)
  same = counts[pretraining_instances.SAME_DOCUMENT]
  if same > counts["random next sentences"] / 10:
    logging.warning(
      "%d of %d random next sentences come from the same document, which is"
      " of little use for training: is there a blank line between documents?",
      same,
      counts["random next sentences"],
    )
  num_single = counts["documents of one sentence"]
  if recipe.segments == "pairs" and num_single > counts["documents"] / 2:
    logging.warning(
      "%d of %d documents have only one sentence, which never has a true next"
      " sentence: is there a blank line after every sentence?",
      num_single,
      counts["documents"],
    )


def _warn_of_short_rows(
  counts: collections.Counter[str], recipe: Recipe
) -> None:
  """Warns if --max_sequences_per_row leaves packed rows unfilled."""
  num_rows = counts[pretraining_instances.SHORT_ROWS]
  num_tokens = counts[pretraining_instances.SHORT_ROW_TOKENS]
  num_free = num_rows * recipe.max_seq_length - num_tokens
  if num_free * 50 <= counts["records"] * recipe.max_seq_length:
    return
  most = recipe.max_sequences_per_row
  logging.warning(
    "--max_sequences_per_row=%d: too small for these texts, %d rows with %d"
    " free positions have room for more sequences. Give %d",
    most,
    num_rows,
    num_free,
    -(-most * num_rows * recipe.max_seq_length // num_tokens),
  )


def check_text(
  recipe: Recipe,
  tokenizer,
  inputs: Sequence[str],
  file_system: Any,
) -> None:
  """Creates one pass over the first lines, and reports on it."""
  lines = pretraining_text.read_corpus(
    inputs, recipe.codec, file_system.open_any
  )
  recipe = dataclasses.replace(recipe, dupe_factor=1)
  counts: collections.Counter[str] = collections.Counter()
  for _ in pretraining_instances.create_records(
    recipe, tokenizer, itertools.islice(lines, 5000), random.Random(0), counts
  ):
    pass
  if not counts["records"]:
    raise InputError("--input_file: there is no text in it")
  report(counts, recipe)


# Names of google-research/bert that only other programs use


class MaskedLmInstance(NamedTuple):
  """A masked token."""

  index: int  # its position
  label: str  # the original token


def create_training_instances(
  input_files: Iterable[str],
  tokenizer,
  max_seq_length: int,
  dupe_factor: int,
  short_seq_prob: float,
  masked_lm_prob: float,
  max_predictions_per_seq: int,
  rng: random.Random,
  do_whole_word_mask: bool = False,
) -> list[TrainingInstance]:
  """Creates the instances of text files, shuffled; drops bytes of no UTF-8."""
  recipe = Recipe(
    vocab_file="",  # the tokenizer has it
    max_seq_length=max_seq_length,
    dupe_factor=dupe_factor,
    short_seq_prob=short_seq_prob,
    masked_lm_prob=masked_lm_prob,
    max_predictions_per_seq=max_predictions_per_seq,
    do_whole_word_mask=do_whole_word_mask,
  )
  lines = pretraining_text.read_corpus(input_files, text_files.AS_ORIGINAL)
  passes = pretraining_instances.create_passes(
    recipe, tokenizer, lines, rng, collections.Counter()
  )
  instances = [instance for one_pass in passes for instance in one_pass]
  rng.shuffle(instances)
  return instances


def write_instance_to_example_files(
  instances: Iterable[TrainingInstance],
  tokenizer,
  max_seq_length: int,
  max_predictions_per_seq: int,
  output_files: Sequence[str],
) -> None:
  """Writes instances as TFRecord files, one record to each file in turn."""
  encode = pretraining_instances.instance_encoder(
    tokenizer, max_seq_length, max_predictions_per_seq
  )
  pretraining_instances.write_in_turn(
    list(map(encode, instances)), output_files
  )


def create_int_feature(values: Iterable[int]):
  """Builds the int64 `tf.train.Feature` of some values."""
  import tensorflow as tf

  return tf.train.Feature(int64_list=tf.train.Int64List(value=list(values)))


def create_float_feature(values: Iterable[float]):
  """Builds the float32 `tf.train.Feature` of some values."""
  import tensorflow as tf

  return tf.train.Feature(float_list=tf.train.FloatList(value=list(values)))


if __name__ == "__main__":
  app.parse_flags(PretrainingDataSettings)
  app.run(main)
