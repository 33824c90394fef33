"""What comes before a run, and after it: the doctor's checks, the receipt.

`--doctor` makes the checks that a run makes before it writes anything, and some
more, each a line, and trains nothing. Every run leaves a receipt, which says
what it was made from and what came out, and by which `--rerun` repeats it.

TensorFlow is imported where it is used, so that data making does not pay for
it. Functions that begin with `check_` raise an InputError for what would stop
a run, and warn in the log of what would not.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import fnmatch
import glob
import hashlib
import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Callable, NamedTuple

from absl import flags, logging

from bertlib import app, files
from bertlib.errors import InputError, mendable
from bertlib.files import open_any, write_whole

FLAGS = flags.FLAGS

_WARNING = logging.converter.STANDARD_WARNING

ROOT = os.path.dirname(
  os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
)

# The value of a check that failed, or was not made.
SKIPPED: Any = object()

# What makes a check, given its name, a function and the function's arguments.
Check = Callable[..., Any]


# What every training run writes to --output_dir, but for the vocabulary and the
# config, which may be the folder's own.
_RUN_FILES = (
  "*.ckpt-*",
  "checkpoint",
  "dev_scores.jsonl",
  "eval_results*.txt",
  "events.*",
  "graph.pbtxt",
  "model.json",
  "report.html",
  "run.json",
  "run-*.json",
  "seeds.json",
)


# The doctor


def simply(name: str, check_fn: Callable, *needs: Any, after=None) -> Any:
  """The `Check` of a run, which the first that fails ends."""
  del name, after
  return check_fn(*needs)


class Doctor:
  """Makes checks one after the other, and tells of each on a line.

  Attributes:
    num_failed: checks that failed.
  """

  def __init__(self, say: Callable[[str], Any] = print):
    """Takes what a line is given to."""
    self._say = say
    self.num_failed = 0

  def check(
    self, name: str, check_fn: Callable, *needs: Any, after: Any = None
  ) -> Any:
    """Makes a check, which passes, warns, fails or is skipped.

    Its line has what the check logs: if there is a warning among that, it
    warns; if it raises what a run would tell in one line, it fails.

    Args:
      name: of what is checked, in a word or two.
      check_fn: makes the check.
      *needs: what it takes; if that is of a check that failed, it is skipped.
      after: what else it cannot do without, likewise.

    Returns:
      What it gives; `SKIPPED` of one that failed or was skipped.
    """
    if any(need is SKIPPED for need in (*needs, after)):
      self._tell("skip", name, "needs what failed above")
      return SKIPPED
    with _collect_log() as records:
      try:
        value = check_fn(*needs)
      except Exception as error:
        message = mendable(error)
        if message is None:
          raise
        self.num_failed += 1
        self._tell("fail", name, message)
        return SKIPPED
    warns = any(record.levelno >= _WARNING for record in records)
    told = "; ".join(dict.fromkeys(r.getMessage().strip() for r in records))
    self._tell("warn" if warns else "pass", name, told)
    return value

  def _tell(self, status: str, name: str, text: str) -> None:
    self._say(f"{status}  {name:<11} {text}".rstrip())


@contextlib.contextmanager
def _collect_log() -> Iterator[list]:
  """Keeps what is logged, which then goes nowhere else."""
  records: list = []

  def keep(record):
    if record.levelno >= logging.converter.STANDARD_INFO:
      records.append(record)
    return False

  logger = logging.get_absl_logger()
  logger.addFilter(keep)
  try:
    yield records
  finally:
    logger.removeFilter(keep)


def diagnose(examine: Callable[[Doctor], Any]) -> None:
  """Makes the checks of a script; ends with status 1 if one of them fails.

  Args:
    examine: makes them.
  """
  doctor = Doctor()
  if FLAGS.rerun:
    doctor.check("rerun", check_rerun)
  examine(doctor)
  if doctor.num_failed:
    logging.info("%d checks failed", doctor.num_failed)
    sys.exit(1)


# Checks that runs make too


def check_output_dir(
  names: Iterable[str], inputs: Iterable[str | None]
) -> None:
  """Refuses an --output_dir where what a run writes would replace its inputs.

  Args:
    names: patterns of the files that the script writes, beside those of every
      run.
    inputs: the data files.
  """
  files.check_output_dir(FLAGS.output_dir, [*_RUN_FILES, *names], inputs)


def check_actions() -> None:
  """Refuses a run that would do nothing."""
  if not (FLAGS.do_train or FLAGS.do_eval or FLAGS.do_predict):
    raise InputError(
      "nothing to do; give one or more of --do_train, --do_eval, --do_predict"
    )


def find_model() -> str | None:
  """The checkpoint of the flags; see `finding.find_model`."""
  from bertlib.checkpoints import finding

  return finding.find_model(
    FLAGS.init_checkpoint, FLAGS.output_dir, FLAGS.do_train
  )


def load_config(least: int = 3):
  """The config of the flags, and of a model that they name, which is fetched.

  Args:
    least: see `loading.check_max_seq_length`.

  Returns:
    The `modeling.BertConfig`.

  Raises:
    InputError: there is none, or it has no room for --max_seq_length.
  """
  from bertlib.checkpoints import loading
  from bertlib.training import memory_plan, training

  training.fill_in_model_flags()
  training.find_tpu()
  config = loading.load_config(FLAGS.bert_config_file)
  loading.check_max_seq_length(FLAGS.max_seq_length, config, least)
  logging.info(
    "%s: %d layers, %d wide, %s weights",
    FLAGS.bert_config_file,
    config.num_hidden_layers,
    config.hidden_size,
    f"{memory_plan.num_weights(config):,}",
  )
  return config


def load_tokenizer(config):
  """The tokenizer of the flags; see `loading.load_tokenizer`."""
  from bertlib.checkpoints import loading

  tokenizer = loading.load_tokenizer(
    FLAGS.vocab_file, FLAGS.do_lower_case, config, FLAGS.init_checkpoint
  )
  logging.info(
    "%s: %d entries, text %s",
    FLAGS.vocab_file,
    len(tokenizer.vocab),
    "is lower-cased" if FLAGS.do_lower_case else "keeps its case",
  )
  return tokenizer


# Checks of the doctor's own


def sample(items: Sequence, number: int = 2000) -> Sequence:
  """About so many items, or all, at even distances."""
  return items[:: -(-len(items) // number) or 1]


def check_labels(
  labels: Sequence[str], sets: Mapping[str, Iterable[str]]
) -> None:
  """Warns of labels that a set lacks, or that are rare in it.

  Args:
    labels: the label set.
    sets: by its name, the labels of a set's examples.
  """
  for name, of_examples in sets.items():
    counts = Counter(of_examples)
    found = [label for label in labels if counts[label]]
    missing = [label for label in labels if not counts[label]]
    shown = [f"{label} {counts[label]}" for label in found]
    if len(shown) > 10:
      shown[5:-5] = ["..."]
    logging.info("%s has %s", name, ", ".join(shown) or "none")
    if missing:
      logging.warning("%s has no %s", name, ", ".join(missing))
    if not found:
      continue
    often, rare = max(found, key=counts.get), min(found, key=counts.get)
    if counts[often] > 10 * counts[rare]:
      logging.warning(
        "of %s there are %.0f times as many as of %s",
        often,
        counts[often] / counts[rare],
        rare,
      )


class Lengths(NamedTuple):
  """How much there is to learn from.

  Attributes:
    num_examples: examples, windows or records.
    num_tokens: of a row, on average.
    num_rows: of an example; more than one where it has choices.
  """

  num_examples: int
  num_tokens: float
  num_rows: int = 1


class Encoded(NamedTuple):
  """What there is to know of an example as the model takes it.

  Attributes:
    input_ids: its ids, maybe with padding.
    num_tokens: that are no padding.
    num_cut: that did not fit.
  """

  input_ids: Sequence[int]
  num_tokens: int
  num_cut: int = 0


def check_encoded(
  examples: Iterable[Encoded], vocab_size: int, num_examples: int
) -> Lengths:
  """Looks for ids that the model does not have, and for what is cut.

  Args:
    examples: some of those that the model gets.
    vocab_size: entries that the model has.
    num_examples: that there are in all.

  Returns:
    How many there are, and how long.

  Raises:
    InputError: an id is out of range.
  """
  num_tokens, num_cut = [], []
  for number, example in enumerate(examples, start=1):
    check_ids(example.input_ids, vocab_size, f"example {number}")
    num_tokens.append(example.num_tokens)
    num_cut.append(example.num_cut)
  count = len(num_tokens)
  mean = sum(num_tokens) / max(count, 1)
  cut = sum(number > 0 for number in num_cut) / max(count, 1)
  logging.info(
    "%d of %d looked at: %.0f tokens on average, %d at most",
    count,
    num_examples,
    mean,
    max(num_tokens, default=0),
  )
  if cut:
    logging.log(
      logging.WARNING if cut > 0.05 else logging.INFO,
      "%.1f%% are cut, and lose %.0f tokens on average: think of a higher"
      " --max_seq_length",
      100 * cut,
      sum(num_cut) / (cut * count),
    )
  return Lengths(num_examples, mean)


def check_ids(ids: Iterable[int], vocab_size: int, where: str) -> None:
  """Refuses ids that the model has no embedding for."""
  highest, lowest = max(ids, default=0), min(ids, default=0)
  if lowest < 0 or highest >= vocab_size:
    bad = lowest if lowest < 0 else highest
    raise InputError(
      f"{where}: has the id {bad}, but the model's vocab_size is {vocab_size}."
      " Make the data with the vocabulary of the model"
    )


def check_weights(
  checkpoint: str | None, model_fn: Callable, layout, model_dir: str | None
) -> None:
  """Builds the graph of a model, and finds out where its weights are from.

  Args:
    checkpoint: that the weights are from; None for a new model.
    model_fn: the script's.
    layout: of its features, see `tf_records.Layout`.
    model_dir: whose checkpoint has all of the model, if it has one.

  Raises:
    InputError: a checkpoint is not of this model, or damaged.
  """
  import tensorflow.compat.v1 as tf

  from bertlib import estimator_api
  from bertlib.checkpoints import checkpoint_files

  if checkpoint:
    checkpoint_files.check(checkpoint)
    num_variables = len(tf.train.list_variables(checkpoint))
    logging.info("%s: %d variables, none corrupt", checkpoint, num_variables)
  with tf.Graph().as_default():
    batch = {
      name: tf.zeros([1, *shape], tf.float32 if is_float else tf.int32)
      for name, (shape, is_float, *_) in layout.items()
    }
    model_fn(
      batch,
      None,
      estimator_api.ModeKeys.PREDICT,
      {"batch_size": 1},
      SimpleNamespace(model_dir=model_dir),
    )


def check_start(
  config,
  trained: str | None,
  check_weights: Callable[[], Any],
  num_predictions: int = 0,
) -> None:
  """Makes the last checks of a run, before which it writes nothing.

  What they log is logged again when the run comes to it, but for warnings.

  Args:
    config: the model's sizes.
    trained: the checkpoint that has all of the model; None for a new one.
    check_weights: checks it, or else --init_checkpoint, against the model.
    num_predictions: P, masked positions of an example.

  Raises:
    InputError: devices, batches or weights are not as training needs them.
  """
  from bertlib.training import training

  verbosity = logging.get_verbosity()
  logging.set_verbosity(min(verbosity, logging.WARNING))
  try:
    training.read_replicas()
    training.plan_training(
      training.read_execution(), config, int(FLAGS.do_train), num_predictions
    )
    if trained or FLAGS.init_checkpoint:
      check_weights()
  finally:
    logging.set_verbosity(verbosity)


def check_memory(num_bytes: int, available: int | None) -> None:
  """Warns if a step of training may take more memory than there is.

  Args:
    num_bytes: that it takes at most.
    available: that there are; None where that is not known.
  """
  if available is None:
    logging.info("training takes %s at most", _size(num_bytes))
  elif num_bytes <= available:
    logging.info(
      "training takes %s at most, %s are free",
      _size(num_bytes),
      _size(available),
    )
  else:
    logging.warning(
      "training may take %s, but %s are free. Give --memory_gb=%.0f, which"
      " finds a way to do with less",
      _size(num_bytes),
      _size(available),
      available // 10**9,
    )


def available_memory() -> int | None:
  """Bytes that are free: of the first GPU or, without one, of this machine."""
  import tensorflow.compat.v1 as tf

  with contextlib.suppress(OSError, ValueError, IndexError):
    if tf.config.list_physical_devices("GPU"):
      query = "--query-gpu=memory.free --format=csv,noheader,nounits"
      told = subprocess.run(
        ["nvidia-smi", *query.split()],
        capture_output=True,
        text=True,
        check=False,
      ).stdout
      return int(told.splitlines()[0]) * 2**20
    with open("/proc/meminfo") as file:
      return int(re.search(r"MemAvailable:\s+(\d+) kB", file.read())[1]) * 1024
  return None


def check_disk(path: str, num_bytes: int) -> None:
  """Refuses a place that cannot be written, or has too little room.

  Args:
    path: a folder, which may yet have to be made.
    num_bytes: that will be written there.

  Raises:
    InputError: there is less.
    OSError: it cannot be written.
  """
  if "://" in path:
    logging.info("%s: takes about %s", path, _size(num_bytes))
    return
  folder = os.path.abspath(path)
  while not os.path.exists(folder):
    folder = os.path.dirname(folder)
  if not os.path.isdir(folder):
    raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), folder)
  if not os.access(folder, os.W_OK):
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), folder)
  free = shutil.disk_usage(folder).free
  if free < num_bytes:
    raise InputError(
      f"{path}: takes about {_size(num_bytes)}, but {_size(free)} are free."
      " Make room there, name another place, or keep fewer checkpoints"
      " (--keep_checkpoint_max)"
    )
  logging.info(
    "%s: takes about %s, %s are free", path, _size(num_bytes), _size(free)
  )


def tell_time(num_flops: float, rate: float) -> None:
  """Tells how long a run takes.

  Args:
    num_flops: floating-point operations of its matrix products.
    rate: of these a second, in a product alone.
  """
  # What else a step does takes about as long as its products.
  seconds = round(2 * num_flops / rate)
  logging.info(
    "an estimate: %s of training, for %.3g operations at %.3g a second",
    datetime.timedelta(seconds=seconds) if seconds else "less than a second",
    num_flops,
    rate,
  )


def product_rate(
  rows: int, inner: int, columns: int, dtype="float32", seconds: float = 0.5
) -> float:
  """Operations a second of this device, in products of matrices.

  Args:
    rows: of the first.
    inner: columns of the first, rows of the second.
    columns: of the second.
    dtype: of both.
    seconds: how long to measure.

  Returns:
    The rate of the fastest product.
  """
  import tensorflow.compat.v1 as tf

  with tf.Graph().as_default(), tf.Session() as session:
    first, second = (
      tf.get_variable(name, shape, dtype, tf.zeros_initializer)
      for name, shape in (
        ("first", [rows, inner]),
        ("second", [inner, columns]),
      )
    )
    product = tf.reduce_sum(tf.matmul(first, second)[:1])
    session.run(tf.global_variables_initializer())
    fastest, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
      start = time.perf_counter()
      session.run(product)
      fastest = min(fastest, time.perf_counter() - start)
  return 2 * rows * inner * columns / fastest


def check_training(
  doctor: Doctor,
  config,
  lengths: Lengths,
  count_steps: Callable[[int], int],
  num_predictions: int = 0,
  writes_records: bool = True,
) -> None:
  """Checks what training takes: steps, disk, memory, time. Reads the flags.

  Args:
    doctor: makes the checks.
    config: the model's sizes, or `SKIPPED`.
    lengths: of the examples, likewise.
    count_steps: gives the steps of training on so many examples.
    num_predictions: P, masked positions of an example.
    writes_records: whether the examples go to records in --output_dir.
  """
  from bertlib.training import memory_plan, training

  def steps(lengths):
    num_steps = count_steps(lengths.num_examples)
    logging.info(
      "%d, of %d each, on %d",
      num_steps,
      FLAGS.train_batch_size,
      lengths.num_examples,
    )
    return num_steps

  def plan(config, num_steps):
    return training.plan_training(
      training.read_execution(), config, num_steps, num_predictions
    )

  def disk(config, num_steps, lengths):
    num_bytes = 0
    if writes_records:
      num_rows = lengths.num_examples * lengths.num_rows
      num_bytes = 5 * num_rows * FLAGS.max_seq_length
    if num_steps:
      num_bytes += checkpoint_bytes(memory_plan.num_weights(config), num_steps)
    check_disk(FLAGS.output_dir, num_bytes)

  def memory(config, plan, lengths):
    compute, options = plan
    needed = memory_plan.step_bytes(
      config,
      FLAGS.train_batch_size // options.num_micro_batches * lengths.num_rows,
      FLAGS.max_seq_length,
      compute.recompute,
      options.num_micro_batches > 1,
      compute.dtype.size,
      num_predictions,
    )
    check_memory(needed, available_memory())

  def duration(config, plan, num_steps, lengths):
    compute, _ = plan
    batch_size = FLAGS.train_batch_size * lengths.num_rows
    seq_length = max(round(lengths.num_tokens), 1)
    num_flops = memory_plan.step_flops(
      config, batch_size, seq_length, compute.recompute, num_predictions
    )
    rate = product_rate(
      min(batch_size * seq_length, 4096),
      config.hidden_size,
      config.intermediate_size,
      compute.dtype,
    )
    tell_time(num_steps * num_flops, rate)

  if not FLAGS.do_train:
    doctor.check("disk", disk, config, 0, lengths)
    return
  num_steps = doctor.check("steps", steps, lengths)
  planned = doctor.check("batches", plan, config, num_steps)
  doctor.check("disk", disk, config, num_steps, lengths)
  doctor.check("memory", memory, config, planned, lengths)
  doctor.check("time", duration, config, planned, num_steps, lengths)


def checkpoint_bytes(num_weights: int, num_train_steps: int) -> int:
  """Bytes of the checkpoints that are kept, as the flags have it.

  A weight has two moments, but among the best ones. The folder has one more of
  each while it is written.
  """
  every = FLAGS.eval_steps or FLAGS.save_checkpoints_steps
  kept = min(FLAGS.keep_checkpoint_max, num_train_steps // every + 1) + 1
  best = 2 if FLAGS.eval_steps else 0
  return num_weights * 4 * (3 * kept + best)


def _size(num_bytes: int) -> str:
  """Bytes in words."""
  if num_bytes < 10**8:
    return f"{num_bytes / 10**6:.1f} MB"
  return f"{num_bytes / 10**9:.1f} GB"


# The receipt

# Flags that say where output goes, to which a run's input owes nothing.
_OUTPUT_FLAGS = ("output_dir", "output_file", "cache_dir")

# Flags that bring all of a model.
_MODEL_FLAGS = ("init_checkpoint", "bert_hub_module_handle")

# Above it, in bytes, not all of a file is read for its hash, but so much of
# its beginning and of its end.
_LARGE, _PART = 10**9, 2**20


class Receipt:
  """What a run was made from, and what came out.

  In a folder it is written when the run starts, so that one that is killed has
  it too, and again when it ends; beside a file, when that is whole. One that
  another run left in the same folder is kept as `run-1.json` and so on, unless
  it had the same flags: then it is this one.
  """

  def __init__(self, script: str):
    """Notes what was given, before anything changes it.

    Args:
      script: the file that is run.
    """
    self._path = receipt_path()
    self._repeated = app.read_receipt(FLAGS.rerun) if FLAGS.rerun else {}
    self._content: dict[str, Any] = {
      "script": os.path.basename(script),
      "path": os.path.abspath(self._path),
      "given": given_flags(),
      "command": list(sys.argv),
      "folder": os.getcwd(),
      "started": _now(),
    }

  def start(self, data_files: Iterable[str]) -> None:
    """Notes what the run is made from, and makes the folder for it.

    Args:
      data_files: those read, but for a model's.
    """
    if "output_dir" in FLAGS:
      _make_folder(FLAGS.output_dir)
    if not _is_chief():
      return
    self._content |= {
      "flags": {name: flag.value for name, flag in _own_flags().items()},
      "seeds": {
        name: FLAGS[name].value
        for name in ("seed", "random_seed", "seeds")
        if name in FLAGS
      },
      "versions": versions(),
      "device": device(),
      **_compute_choices(),
      "code": code_hashes(),
      "files": [
        *_model_files(self._content["given"]),
        *_data_files(data_files),
      ],
      "results": None,
    }
    if "output_dir" in FLAGS:
      self._keep_earlier()
      self._write()

  def finish(
    self, results: Mapping[str, Any], checkpoint: str | None = None
  ) -> None:
    """Notes what came out; says whether it is what the repeated run had.

    Args:
      results: by name.
      checkpoint: the model's; None without any.
    """
    if not _is_chief():
      return
    self._content |= {
      "ended": _now(),
      "results": json.loads(json.dumps(results, default=_plain)),
      "checkpoint": checkpoint and fingerprint(f"{checkpoint}.index"),
    }
    self._write()
    if self._repeated:
      tell_differences(self._repeated, self._content)

  def _keep_earlier(self) -> None:
    """Gives another name to the receipt of a run that is not this one."""
    if not _exists(self._path):
      return
    with open_any(self._path) as file:
      earlier = file.read()
    with contextlib.suppress(ValueError, KeyError, TypeError):
      if json.loads(earlier)["given"] == self._content["given"]:
        return  # one that is damaged is kept too
    stem, number = self._path.removesuffix(".json"), 1
    while _exists(f"{stem}-{number}.json"):
      number += 1
    with write_whole(f"{stem}-{number}.json") as file:
      file.write(earlier)

  def _write(self) -> None:
    with write_whole(self._path) as file:
      json.dump(self._content, file, indent=1, ensure_ascii=False)
      file.write("\n")


def begin(script: str) -> Receipt:
  """Begins the receipt of a run; of one that repeats another, checks first.

  Args:
    script: the file that is run.

  Returns:
    The receipt, of which nothing is written yet.

  Raises:
    InputError: see `check_rerun`.
  """
  if FLAGS.rerun:
    check_rerun()
  return Receipt(script)


def receipt_path() -> str:
  """Where the flags want the receipt: in the folder, or beside the file."""
  if "output_dir" in FLAGS:
    return os.path.join(FLAGS.output_dir, "run.json")
  file = FLAGS.output_file
  if "num_shards" in FLAGS:  # the script that writes several files
    file = "".join(files.split_names(file)[:1])
  return f"{file}.run.json"


def check_rerun() -> None:
  """Compares what --rerun repeats a run from with what is there now.

  Each difference is told in the log. Files of flags that are given anew may be
  others.

  Raises:
    InputError: data, vocabulary, config or checkpoint have changed, or what
      comes out would take the place of what the run left.
  """
  before = app.read_receipt(FLAGS.rerun)
  places = {os.path.abspath(path) for path in (FLAGS.rerun, before["path"])}
  if os.path.abspath(receipt_path()) in places:
    flag = "output_dir" if "output_dir" in FLAGS else "output_file"
    raise InputError(
      f"--rerun={FLAGS.rerun}: give another --{flag}; there is what that run"
      " left"
    )
  changed = []
  for file in before["files"]:
    if any(_is_overridden(flag, before) for flag in file["flags"]):
      continue
    if not _exists(file["path"]):
      changed.append(file)
      logging.warning("%s %s: is no longer there", file["what"], file["path"])
    elif any(v != file[k] for k, v in fingerprint(file["path"]).items()):
      changed.append(file)
      logging.warning("%s %s: has changed since", file["what"], file["path"])
  code = _differences(before["code"], code_hashes())
  if code:
    logging.warning("the code has changed since: %s", ", ".join(code))
  now = versions()
  for name in _differences(before["versions"], now):
    logging.warning(
      "%s was %s, and is %s", name, before["versions"].get(name), now.get(name)
    )
  if changed:
    flag = (changed[0]["flags"] or ["data_dir"])[0]
    raise InputError(
      f"{changed[0]['path']}: is not what it was in {FLAGS.rerun}. Bring that"
      f" back, or name what to take now by --{flag}"
    )


def tell_differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
  """Says whether a run that was repeated came out as before.

  Args:
    before: the receipt of the run.
    now: that of its repetition.
  """
  if before.get("results") is None:
    logging.warning("The run that was repeated did not come to its end")
    return
  old, new = before["results"], now["results"]
  differ = _differences(old, new)
  for name in differ:
    values = old.get(name), new.get(name)
    is_number = all(isinstance(value, (int, float)) for value in values)
    apart = f", {abs(values[1] - values[0]):.3g} apart" if is_number else ""
    logging.warning("%s was %s, and is %s%s", name, *values, apart)
  if old and not differ:
    logging.info("All %d results are those of before, exactly", len(old))
  weights = [
    of["checkpoint"] and of["checkpoint"]["sha256"] for of in (before, now)
  ]
  if all(weights):
    same = weights[0] == weights[1]
    logging.log(
      logging.INFO if same else logging.WARNING,
      "The weights are %s of before",
      "those" if same else "not those",
    )


def given_flags() -> list[str]:
  """The flags of the command line, as it would have them."""
  return [
    flag.serialize()
    for name, flag in _own_flags().items()
    if flag.present and name not in ("doctor", "rerun")
  ]


def fingerprint(path: str) -> dict[str, Any]:
  """What a file is known by.

  Args:
    path: the file.

  Returns:
    Its `path`, how many `bytes` it has, their `sha256`, and `hashed`: "all" or,
    of a large file, which of them went into that.
  """
  digest = hashlib.sha256()
  with open_any(path, "rb") as file:
    size = file.seek(0, 2) or file.tell()
    file.seek(0)
    if size > _LARGE:
      digest.update(b"%d" % size + file.read(_PART))
      file.seek(size - _PART)
    while block := file.read(_PART):
      digest.update(block)
  return {
    "path": path,
    "bytes": size,
    "sha256": digest.hexdigest(),
    "hashed": "size, first and last MiB" if size > _LARGE else "all",
  }


def versions() -> dict[str, str]:
  """Of what the run's results may depend on."""
  found = {"python": platform.python_version()}
  for name in (
    "tensorflow",
    "tensorflow-cpu",
    "tensorflow-estimator",
    "tf-keras",
    "numpy",
  ):
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
      found[name] = importlib.metadata.version(name)
  project = os.path.join(ROOT, "pyproject.toml")
  with contextlib.suppress(OSError, TypeError), open_any(project) as file:
    found["project"] = re.search(r'(?m)^version = "(.*)"', file.read())[1]
  if os.path.exists(os.path.join(ROOT, ".git")):
    with contextlib.suppress(OSError):
      told = subprocess.run(
        ["git", "-C", ROOT, "rev-parse", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
      )
      found["commit"] = told.stdout.strip()
  return found


def device() -> dict[str, Any]:
  """What the run is on; GPUs only where TensorFlow is used at all."""
  model = platform.processor()
  with contextlib.suppress(OSError, TypeError), open("/proc/cpuinfo") as file:
    model = re.search(r"(?m)^model name\s*: (.*)", file.read())[1]
  gpus = []
  if "tensorflow" in sys.modules:
    import tensorflow as tf

    gpus = [
      tf.config.experimental.get_device_details(gpu).get("device_name", "GPU")
      for gpu in tf.config.list_physical_devices("GPU")
    ]
  return {"cpu": model, "cores": os.cpu_count(), "gpus": gpus}


def code_hashes() -> dict[str, str]:
  """SHA-256 of each module of the project; of all together as `all`."""
  paths = [
    path
    for part in ("*.py", os.path.join("bertlib", "**", "*.py"))
    for path in glob.glob(os.path.join(glob.escape(ROOT), part), recursive=True)
  ]
  hashes = {
    os.path.relpath(path, ROOT): fingerprint(path)["sha256"]
    for path in sorted(paths)
  }
  together = "".join(f"{name} {of}\n" for name, of in hashes.items())
  return {"all": hashlib.sha256(together.encode()).hexdigest(), **hashes}


def _model_files(given: Sequence[str]) -> list[dict[str, Any]]:
  """Fingerprints of vocabulary, config and first checkpoint."""
  found = []
  for what, flag in (
    ("vocabulary", "vocab_file"),
    ("config", "bert_config_file"),
    ("checkpoint", "init_checkpoint"),
  ):
    value = FLAGS[flag].value if flag in FLAGS else None
    if not value:
      continue
    is_given = any(one.startswith(f"--{flag}=") for one in given)
    by = {"flags": [flag] if is_given else list(_MODEL_FLAGS)}
    if what == "checkpoint":
      from tensorflow.io import gfile

      # The index has checksums of the data.
      data = [gfile.stat(path) for path in gfile.glob(f"{value}.data-*")]
      by["data_bytes"] = sum(of.length for of in data)
      value = f"{value}.index"
    if _exists(value):
      found.append({"what": what, **by, **fingerprint(value)})
  return found


def _data_files(paths: Iterable[str]) -> list[dict[str, Any]]:
  """Fingerprints of data, and which flags name them."""
  return [
    {"what": "data", "flags": _flags_naming(path), **fingerprint(path)}
    for path in dict.fromkeys(paths)
    if "://" in path or os.path.isfile(path)
  ]


def _flags_naming(path: str) -> list[str]:
  """The flags whose value is a file, or a folder or pattern that has it."""
  names = []
  for name, flag in _own_flags().items():
    values = flag.value if isinstance(flag.value, list) else [flag.value]
    for value in values:
      is_text = isinstance(value, str) and bool(value)
      if (
        is_text
        and name not in _OUTPUT_FLAGS
        and (
          f"{path}/".startswith(value.rstrip("/") + "/")
          or path.endswith(f"/{value}")
          or fnmatch.fnmatchcase(path, value)
        )
      ):
        names.append(name)
        break
  return names


def _is_overridden(flag: str, before: Mapping[str, Any]) -> bool:
  """Whether a flag is given anew, beside what --rerun gives."""
  pattern = rf"--(no)?{flag}(=.*)?"
  repeated = sum(
    bool(re.fullmatch(pattern, one, re.S)) for one in before["given"]
  )
  return flag in FLAGS and FLAGS[flag].present > repeated


def _own_flags() -> dict[str, flags.Flag]:
  """The flags of the project, without those of libraries."""
  return {
    name: FLAGS[name]
    for module, of_module in sorted(FLAGS.flags_by_module_dict().items())
    if not module.startswith(("absl", "tensorflow"))
    for name in sorted(flag.name for flag in of_module)
  }


def _differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
  """Names whose values are not equal in both; `all` is of all the others."""
  names = sorted({*one, *other} - {"all"})
  return [name for name in names if one.get(name) != other.get(name)]


def _is_chief() -> bool:
  """Whether this process is the one that writes what all have done."""
  if "distribution" not in FLAGS:
    return True
  from bertlib.training import training

  return training.is_chief()


def _compute_choices() -> dict[str, str]:
  """What --precision and --xla stand for, in commands that have them."""
  if "precision" not in FLAGS:
    return {}
  from bertlib.training import training

  return training.compute_choices()


def _exists(path: str) -> bool:
  if "://" in path:
    from tensorflow.io import gfile

    return gfile.exists(path)
  return os.path.exists(path)


def _make_folder(path: str) -> None:
  if "://" in path:
    from tensorflow.io import gfile

    gfile.makedirs(path)
  elif path:
    os.makedirs(path, exist_ok=True)


def _now() -> str:
  return datetime.datetime.now().astimezone().isoformat(timespec="seconds")


def _plain(value: Any) -> Any:
  """A number of NumPy as one of Python."""
  return value.tolist()
