"""A model's folder: what is in it, and what a run starts from.

Beside its checkpoints, the folder of a model that was trained here has its
config, its vocabulary and a description, so that it can be loaded by name. Its
folder `best`, if training scored on the way, has the same for the weights that
scored best, and these go before the last.
"""

from __future__ import annotations

import codecs
import functools
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Callable

import numpy as np
import tensorflow.compat.v1 as tf
from absl import logging

import modeling
import optimization
import tokenization
from bertlib import json_files
from bertlib.checkpoints import checkpoint_files, config_schema
from bertlib.command_line import InputError, open_any, write_whole
from bertlib.compute import FastCompute
from bertlib.data import features, vocabulary
from bertlib.training import memory_plan

# What a trained model is, beside its checkpoints: enough to load it again.
MODEL_FILE = "model.json"
CONFIG_FILE = "bert_config.json"
VOCAB_FILE = "vocab.txt"

# What a description may have, and what that of each script must have.
_DESCRIPTION = {
  "script?": str,
  "task?": str,
  "kind?": str,
  "labels?": [str],
  "max_seq_length?": int,
  "do_lower_case?": bool,
  "has_pairs?": bool,
  "version_2_with_negative?": bool,
  "doc_stride?": int,
  "max_query_length?": int,
}
_ENCODED = {"do_lower_case": bool, "max_seq_length": int}
_NEEDED = {
  "run_pretraining": _ENCODED,
  "run_classifier": _ENCODED | {"labels": [str]},
  "run_ner": _ENCODED | {"labels": [str]},
  "run_squad": _ENCODED
  | {
    "version_2_with_negative": bool,
    "doc_stride": int,
    "max_query_length": int,
  },
}

_CURE = "Restore it; the model cannot be used without what training wrote there"

# Name of a released checkpoint in its folder.
RELEASED = "bert_model.ckpt"

# Folder, in that of a model, of its best weights.
BEST = "best"

# What a config cannot change once the weights are trained, though some of it
# is not seen in their shapes.
_FIXED_BY_TRAINING = (*config_schema.SIZES, "hidden_act")

# In a folder, the text that names its checkpoints, the last one first.
STATE_FILE = "checkpoint"


# Parts of a model


def load_config(path: str) -> modeling.BertConfig:
  """Reads a model's sizes.

  Args:
    path: a `bert_config.json`.

  Returns:
    The config.

  Raises:
    InputError: the file is missing or is not such a file, see
      `config_schema.check`.
  """
  try:
    config = modeling.BertConfig.from_dict(config_schema.read(path))
  except tf.errors.NotFoundError as error:
    raise InputError(
      f"{path}: cannot be read; name a bert_config.json"
    ) from error
  try:
    modeling.get_activation(config.hidden_act)
  except ValueError as error:
    raise InputError(f"{path}: hidden_act: {error}") from error
  return config


def load_tokenizer(
  vocab_file: str,
  do_lower_case: bool,
  config: modeling.BertConfig | None,
  init_checkpoint: str | None = None,
  never_split: Iterable[str] = (),
) -> tokenization.FullTokenizer:
  """A tokenizer that fits the model.

  Args:
    vocab_file: the vocabulary.
    do_lower_case: whether it is of an uncased model.
    config: the model's sizes; None where no model is used.
    init_checkpoint: whose folder's name may tell its case.
    never_split: see `tokenization.FullTokenizer`.

  Returns:
    The tokenizer.

  Raises:
    InputError: the vocabulary is missing, lacks a special entry, has more
      entries than the model, or is of the other case.
  """
  try:
    tokenization.validate_case_matches_checkpoint(
      do_lower_case, init_checkpoint
    )
    tokenizer = tokenization.FullTokenizer(
      vocabulary.load(vocab_file), do_lower_case, never_split
    )
  except (OSError, tf.errors.NotFoundError) as error:
    raise InputError(
      f"{vocab_file}: cannot be read; name a vocab.txt"
    ) from error
  except InputError:
    raise
  except ValueError as error:
    raise InputError(f"{vocab_file}: {error}") from error
  vocab_size = config.vocab_size if config else len(tokenizer.vocab)
  vocabulary.check(vocab_file, tokenizer.vocab, vocab_size)
  _check_case(vocab_file, tokenizer.vocab, do_lower_case)
  if init_checkpoint:
    beside = os.path.join(os.path.dirname(init_checkpoint), VOCAB_FILE)
    if tf.gfile.Exists(beside):
      different = vocabulary.difference(vocab_file, beside, ignore_unused=True)
      if different:
        logging.warning(
          "%s: not the vocabulary beside the checkpoint, %s (%s)",
          vocab_file,
          beside,
          different,
        )
  return tokenizer


def _check_case(vocab_file: str, vocab: Iterable[str], do_lower_case: bool):
  """Refuses a published vocabulary's worth of words of the other case."""
  words = [t for t in vocab if t.isascii() and t.lstrip("#").isalpha()]
  if len(words) < 1000:
    return
  has_capitals = sum(word != word.lower() for word in words) > len(words) / 100
  if has_capitals and do_lower_case:
    raise InputError(
      f"{vocab_file}: is cased, but text is lower-cased. Give"
      " --do_lower_case=False"
    )
  if not has_capitals and not do_lower_case:
    raise InputError(
      f"{vocab_file}: is uncased, but text keeps its capitals, for which it"
      " has no entries. Give --do_lower_case=True"
    )


def check_max_seq_length(
  max_seq_length: int, config: modeling.BertConfig, least: int = 3
) -> None:
  """Refuses lengths that the model has no positions for.

  Args:
    max_seq_length: in tokens.
    config: the model's sizes.
    least: the shortest that makes sense.

  Raises:
    InputError: the length is out of range.
  """
  if not least <= max_seq_length <= config.max_position_embeddings:
    raise InputError(
      f"--max_seq_length={max_seq_length} is not between {least} and the"
      f" model's max_position_embeddings, {config.max_position_embeddings}"
    )


def check_has_segments(config: modeling.BertConfig, config_file: str) -> None:
  """Refuses a model that has no second segment, for pairs of texts.

  Args:
    config: the model's sizes.
    config_file: names them.

  Raises:
    InputError: it has one segment.
  """
  if config.type_vocab_size < 2:
    raise InputError(
      f"{config_file}: type_vocab_size is {config.type_vocab_size}, but a pair"
      " of texts needs 2, one per text. Take a model with two segments"
    )


def find_checkpoint(path: str) -> str:
  """The checkpoint that a path means.

  Args:
    path: that of a checkpoint, named as its files are without `.index`; or a
      folder that has one.

  Returns:
    The checkpoint. Of a folder it is the one that its `trained_checkpoint` is;
    of one that nothing was trained in, `bert_model.ckpt` or the only one.

  Raises:
    InputError: there is none, or it is ambiguous which.
  """
  is_part = re.search(r"\.(index|meta|data-\d+-of-\d+)$", path)
  if checkpoint_files.exists(path) and not is_part:
    return path
  if not tf.gfile.IsDirectory(path):
    raise InputError(
      f"{path}: no such checkpoint or folder. Name it as its files are, without"
      " .index or .data-00000-of-00001, or name its folder"
    )
  trained = trained_checkpoint(path)
  if trained:
    return trained
  indexes = tf.gfile.Glob(os.path.join(path, "*.index"))
  found = sorted(index.removesuffix(".index") for index in indexes)
  usual = [name for name in found if os.path.basename(name) == RELEASED]
  if len(usual or found) == 1:
    return (usual or found)[0]
  if found:
    names = ", ".join(map(os.path.basename, found))
    raise InputError(f"{path}: has several checkpoints: {names}. Name one")
  raise InputError(
    f"{path}: is a folder without a TensorFlow checkpoint."
    + (
      " Convert this Hugging Face model by convert_checkpoint.py"
      if tf.gfile.Exists(os.path.join(path, "config.json"))
      else " Name the folder that has one"
    )
  )


def check_checkpoint(path: str) -> None:
  """Refuses a checkpoint that is missing, incomplete or corrupt.

  Args:
    path: see `find_checkpoint`.

  Raises:
    InputError: there is none, or a file of it cannot be read.
  """
  checkpoint_files.check(find_checkpoint(path))


def trained_checkpoint(model_dir: str | None) -> str | None:
  """The checkpoint that a folder's model is used by.

  Args:
    model_dir: the folder, or None.

  Returns:
    The best, if training scored on the way; else the last; None without any.

  Raises:
    InputError: see `last_checkpoint`.
  """
  if not model_dir:
    return None
  best = last_checkpoint(os.path.join(model_dir, BEST))
  return best or last_checkpoint(model_dir)


def last_checkpoint(folder: str) -> str | None:
  """The last checkpoint of a folder that is complete and not corrupt.

  It is the one that the folder's `checkpoint` file names. Where that one is
  damaged, or there is no such file, it is the undamaged one of the highest
  step; a warning says so.

  Args:
    folder: the folder; may be missing.

  Returns:
    The checkpoint; None without any. A first one, of step 0, that is damaged
    counts for none: it has nothing that is not made again.

  Raises:
    InputError: there were checkpoints, and all of them are damaged; or without
      a `checkpoint` file there are several of one step.
  """
  named = named_checkpoint(folder)
  candidates = {named: _step_of(named)} if named else {}
  if not named or checkpoint_files.examine(named).damage:
    found = sorted(_checkpoints_in(folder), key=_step_of, reverse=True)
    if not named and len(set(map(_step_of, found[:2]))) < len(found[:2]):
      raise InputError(
        f"{folder}: has {', '.join(map(os.path.basename, found[:2]))} and no"
        f" `{STATE_FILE}` that names the last one. Name one, or move the other"
      )
    candidates |= {checkpoint: _step_of(checkpoint) for checkpoint in found}
  passed_over = []
  for checkpoint in candidates:
    damage = checkpoint_files.examine(checkpoint).damage
    if not damage:
      if checkpoint != named:
        why = passed_over or [f"{folder}: no `{STATE_FILE}` names the last one"]
        _warn_once(f"{'; '.join(why)}. Used instead: {checkpoint}")
      return checkpoint
    passed_over.append(damage)
  if any(candidates.values()):
    raise InputError(
      f"{'; '.join(passed_over)}. No undamaged checkpoint is left in {folder}:"
      f" restore one, or remove these and `{STATE_FILE}` to start over"
    )
  if passed_over:
    _warn_once(f"{passed_over[0]}. It was the first, and is made again")
  return None


def named_step(folder: str) -> int:
  """The step of the checkpoint that a folder names as its last; else 0."""
  named = named_checkpoint(folder)
  return max(_step_of(named), 0) if named else 0


def go_on_in(folder: str) -> None:
  """Makes a folder ready for training to go on in.

  The last undamaged checkpoint becomes the one that Estimator restores. What
  killed runs left half-written is removed.

  Args:
    folder: the folder; may be missing.

  Raises:
    InputError: see `last_checkpoint`.
  """
  named, last = named_checkpoint(folder), last_checkpoint(folder)
  if last and last != named:
    _name_checkpoints(
      folder,
      last,
      [
        checkpoint
        for checkpoint in sorted(_checkpoints_in(folder), key=_step_of)
        if _step_of(checkpoint) < _step_of(last) and _is_complete(checkpoint)
      ],
    )
  elif named and not last:
    tf.gfile.Remove(os.path.join(folder, STATE_FILE))
  for one in (folder, os.path.join(folder, BEST)):
    remove_unfinished(one)


def remove_unfinished(folder: str) -> None:
  """Removes what saves that did not come to their end have left.

  Args:
    folder: the folder; may be missing. The checkpoint that it names stays.
  """
  named = os.path.basename(named_checkpoint(folder) or "")
  for path in tf.gfile.Glob(os.path.join(folder, f"{STATE_FILE}.tmp*")):
    tf.gfile.Remove(path)
  files: dict[str, list[str]] = {}
  for path in tf.gfile.Glob(os.path.join(folder, "*.ckpt-*")):
    checkpoint, ending = re.fullmatch(r"(.*\.ckpt-\d*)(.*)", path).groups()
    if tf.gfile.IsDirectory(path):  # model.ckpt-7_temp
      tf.gfile.DeleteRecursively(path)
    elif re.search(r"\.(tempstate\d+|tmp[0-9a-f]+)$", ending):
      tf.gfile.Remove(path)
    elif os.path.basename(checkpoint) != named:
      files.setdefault(checkpoint, []).append(path)
  for checkpoint, paths in files.items():
    if not _is_complete(checkpoint):
      for path in paths:
        tf.gfile.Remove(path)


def named_checkpoint(folder: str) -> str | None:
  """What a folder's `checkpoint` file names, if it can be read."""
  try:
    state = tf.train.get_checkpoint_state(folder)
  except (ValueError, tf.errors.OpError):
    return None
  return state and state.model_checkpoint_path


def _name_checkpoints(
  folder: str, last: str, before: Iterable[str] = ()
) -> None:
  """Writes a folder's `checkpoint` file.

  The names alone are written, so that the folder can be moved.
  """
  names = [os.path.basename(checkpoint) for checkpoint in (*before, last)]
  lines = [f'all_model_checkpoint_paths: "{name}"\n' for name in names]
  with write_whole(os.path.join(folder, STATE_FILE)) as file:
    file.writelines([f'model_checkpoint_path: "{names[-1]}"\n', *lines])


def _checkpoints_in(folder: str) -> list[str]:
  """All checkpoints of training in a folder, whole or not."""
  indexes = tf.gfile.Glob(os.path.join(folder, "*.ckpt-*.index"))
  names = [index.removesuffix(".index") for index in indexes]
  return [name for name in names if re.search(r"\.ckpt-\d+$", name)]


def _step_of(checkpoint: str) -> int:
  """The step in a checkpoint's name; -1 without one."""
  number = re.search(r"-(\d+)$", checkpoint)
  return int(number[1]) if number else -1


def _is_complete(checkpoint: str) -> bool:
  """Whether all of a checkpoint is there; its checksums are not compared."""
  if not checkpoint_files.exists(checkpoint):
    return False
  try:
    reader = tf.train.load_checkpoint(checkpoint)
  except (tf.errors.OpError, ValueError, RuntimeError):
    return False
  return not checkpoint_files.missing_bytes(checkpoint, reader)


@functools.cache
def _warn_once(message: str) -> None:
  """Warns of what several parts of a run come upon."""
  logging.warning("%s", message)


def find_model(
  init_checkpoint: str | None, output_dir: str, may_be_new: bool
) -> str | None:
  """Finds the checkpoint that has to hold all of the model.

  Args:
    init_checkpoint: `--init_checkpoint`, or None.
    output_dir: whose `trained_checkpoint` goes first.
    may_be_new: whether the run makes do with a model that is new, in whole or
      in part, as training does.

  Returns:
    The checkpoint; None for a model that is new.

  Raises:
    InputError: `init_checkpoint` is not there, there is no model, the
      checkpoint to use is damaged or, for training, contains NaN or Inf.
  """
  if init_checkpoint:
    init_checkpoint = find_checkpoint(init_checkpoint)
  trained = trained_checkpoint(output_dir)
  start = last_checkpoint(output_dir) or init_checkpoint
  if may_be_new and start:
    checkpoint_files.check_finite(start)
  if trained or may_be_new:
    return trained
  if not init_checkpoint:
    raise InputError(
      f"{output_dir}: holds no trained model; add --do_train, or name"
      " one with --init_checkpoint"
    )
  checkpoint_files.check(init_checkpoint)
  return init_checkpoint


def check_resume(resume: str, output_dir: str) -> None:
  """Refuses to train on where that is not wanted, or to begin anew likewise.

  Args:
    resume: "auto" for neither; "never" and "must" speak of training on.
    output_dir: the folder.

  Raises:
    InputError: it has a checkpoint, or none, against what is wanted.
  """
  last = last_checkpoint(output_dir)
  if resume == "never" and last:
    raise InputError(
      f"{output_dir}: holds {os.path.basename(last)}, and --resume=never does"
      " not go on from it. Name another --output_dir, or remove this one"
    )
  if resume == "must" and not last:
    raise InputError(
      f"{output_dir}: holds no checkpoint to go on from, which --resume=must"
      " needs. Give the --output_dir of the run, or --resume=auto"
    )


def initialize_from_checkpoint(
  init_checkpoint: str | None, trained: str | None = None, use_tpu=False
):
  """Lets the graph's weights start from a checkpoint, and says which do.

  Args:
    init_checkpoint: path of the checkpoint, or None.
    trained: that of a checkpoint that Estimator restores all of, which goes
      first; or None.
    use_tpu: whether the work has to wait for the TPU's own graph.

  Returns:
    A `scaffold_fn` on a TPU, else None.

  Raises:
    InputError: the checkpoint is missing, has other shapes, or lacks some or
      all of the encoder's weights.
  """
  if trained:
    known = dict(tf.train.list_variables(trained))
    missing = [
      optimization.name_of(v)
      for v in tf.global_variables()
      if optimization.name_of(v) not in known
    ]
    if missing:
      raise InputError(
        f"{trained}: lacks {missing[0]}, so it was not trained with these flags"
        " (--precision, --task_name, ...). Give those again, or name another"
        " --output_dir and this checkpoint as --init_checkpoint"
      )
    return None
  variables = tf.trainable_variables()
  is_first_replica = not tf.get_variable_scope().reuse
  if not init_checkpoint:
    if is_first_replica:
      logging.info("No --init_checkpoint: all weights start at random")
    return None
  init_checkpoint = find_checkpoint(init_checkpoint)
  checkpoint_files.check(init_checkpoint)
  assignment_map, _ = modeling.get_assignment_map_from_checkpoint(
    variables, init_checkpoint
  )
  if is_first_replica:
    _check_restored(variables, assignment_map, init_checkpoint)

  def restore():
    tf.train.init_from_checkpoint(init_checkpoint, assignment_map)

  if use_tpu:
    return lambda: restore() or tf.train.Scaffold()
  restore()
  return None


def _check_restored(variables, assignment_map, init_checkpoint: str) -> None:
  """Says what a checkpoint gives to the graph; refuses one that cannot."""
  shapes = dict(tf.train.list_variables(init_checkpoint))
  for variable in variables:
    name, shape = optimization.name_of(variable), variable.shape.as_list()
    if name in assignment_map and shapes[name] != shape:
      raise InputError(
        f"{init_checkpoint}: {name} has the shape {shapes[name]} there, but"
        f" the model asked for needs {shape}. Name the bert_config.json (and"
        " the task's labels) that belong to the checkpoint"
      )
  # A model may come without its pooler; the rest of it belongs together.
  encoder = [
    optimization.name_of(v)
    for v in variables
    if optimization.name_of(v).startswith(("bert/embeddings/", "bert/encoder/"))
  ]
  missing = [name for name in encoder if name not in assignment_map]
  if missing and len(missing) == len(encoder):
    raise InputError(
      f"{init_checkpoint}: has none of the encoder's variables (such as"
      f" {encoder[0]}; it begins with {next(iter(shapes), 'nothing')}). Name"
      " a BERT checkpoint; one of another library has to be converted first"
    )
  if missing:
    raise InputError(
      f"{init_checkpoint}: lacks {len(missing)} of the encoder's"
      f" {len(encoder)} variables (such as {missing[0]}). Name the"
      " bert_config.json that belongs to the checkpoint"
    )
  logging.info(
    "%d of %d variables restored from %s",
    len(assignment_map),
    len(variables),
    init_checkpoint,
  )
  _log_names(
    "Not in the checkpoint, start at random",
    [
      optimization.name_of(v)
      for v in variables
      if optimization.name_of(v) not in assignment_map
    ],
  )
  _log_names(
    "In the checkpoint, taken by nothing",
    [name for name in shapes if name not in assignment_map],
  )


def _log_names(what: str, names: list[str]) -> None:
  """Names on a line; an optimizer's moments are only counted."""
  moments = [n for n in names if n.endswith(("/adam_m", "/adam_v"))]
  shown = [n for n in names if n not in set(moments)]
  if moments:
    shown.append(f"{len(moments)} moments of Adam")
  if shown:
    logging.info("%s: %s", what, ", ".join(shown))


def claim(
  output_dir: str,
  model: Mapping[str, Any],
  config: modeling.BertConfig,
  vocab_file: str | None,
  overwrite: bool = True,
) -> None:
  """Makes a folder that of one model.

  The model's description, config and vocabulary are written to the folder, so
  that it can be loaded again without them being named.

  Args:
    output_dir: the folder, for which `check` had no objection.
    model: what else describes the model (its script, task, labels, ...).
    config: its sizes.
    vocab_file: its vocabulary; None where it is not known.
    overwrite: whether to replace files that are there.
  """
  files = {}
  if vocab_file:
    with open_any(vocab_file, "rb") as file:
      files[VOCAB_FILE] = file.read().removeprefix(codecs.BOM_UTF8)
  files[CONFIG_FILE] = config.to_json_string().encode()
  files[MODEL_FILE] = _as_json(model).encode()
  for name, content in files.items():
    path = os.path.join(output_dir, name)
    if overwrite or not tf.gfile.Exists(path):
      with write_whole(path, "wb") as file:
        file.write(content)


def check(
  output_dir: str,
  model: Mapping[str, Any],
  config: modeling.BertConfig,
  keys: Iterable[str] = ("script", "task", "labels"),
  num_outputs: int | None = None,
  vocab_file: str | None = None,
) -> None:
  """Refuses a folder with a checkpoint of another model.

  A folder that google-research/bert left does not say what its model is; then
  only shapes are compared.

  Args:
    output_dir: the folder; may be missing.
    model: what describes this run's model.
    config: its sizes.
    keys: what of the description has to agree.
    num_outputs: of the model's output layer, where that is `output_bias`.
    vocab_file: this run's vocabulary, if it has one.

  Raises:
    InputError: it holds another's checkpoint, or its vocabulary is another;
      both are named.
  """
  trained_vocab = os.path.join(output_dir, VOCAB_FILE)
  if vocab_file and tf.gfile.Exists(trained_vocab):
    vocabulary.check_same(vocab_file, trained_vocab)
  checkpoint = trained_checkpoint(output_dir)
  if checkpoint is None:
    return
  shapes = dict(tf.train.list_variables(checkpoint))
  description = load_description(output_dir)
  theirs = {key: description[key] for key in keys if key in description}
  ours = {key: model[key] for key in theirs}
  trained_config = os.path.join(output_dir, CONFIG_FILE)
  if tf.gfile.Exists(trained_config):
    trained_with = vars(load_config(trained_config))
    theirs |= {key: trained_with[key] for key in _FIXED_BY_TRAINING}
    ours |= {key: getattr(config, key) for key in _FIXED_BY_TRAINING}
  if "bert/embeddings/word_embeddings" in shapes:
    layers = {n.split("/")[2] for n in shapes if n.startswith("bert/encoder/")}
    theirs["vocab_size"], theirs["hidden_size"] = shapes[
      "bert/embeddings/word_embeddings"
    ]
    theirs["num_hidden_layers"] = len(layers)
    ours |= {key: getattr(config, key) for key in theirs if key not in ours}
  if "output_bias" in shapes and num_outputs:
    theirs["outputs"] = shapes["output_bias"][0]
    ours["outputs"] = num_outputs
  for key, value in theirs.items():
    if value != ours[key]:
      raise InputError(
        f"{output_dir}: holds a model with {key} {value!r}, but this run's is"
        f" {ours[key]!r}. Give what it was trained with, or name another"
        " --output_dir; there --init_checkpoint can start from this model"
      )


def load_description(model_dir: str) -> dict[str, Any]:
  """What `claim` wrote of a model.

  Args:
    model_dir: the folder.

  Returns:
    The description; empty where there is none, as in folders of the reference.

  Raises:
    InputError: it is damaged.
  """
  path = os.path.join(model_dir, MODEL_FILE)
  if not tf.gfile.Exists(path):
    return {}
  return json_files.read(path, _DESCRIPTION, _CURE)


def check_description(model_dir: str, description: Mapping[str, Any]) -> None:
  """Refuses a description that lacks what its script writes.

  Args:
    model_dir: the folder.
    description: of `load_description`.

  Raises:
    InputError: something is missing.
  """
  needed = _NEEDED.get(description.get("script"), {})
  problem = json_files.mismatch(description, needed)
  if problem:
    path = os.path.join(model_dir, MODEL_FILE)
    raise InputError(f"{path}: {problem}. {_CURE}")


def add_to_description(model_dir: str, **values: Any) -> None:
  """Adds to the description of a model, and of its best weights.

  Args:
    model_dir: the folder.
    **values: what to add.
  """
  for folder in (model_dir, os.path.join(model_dir, BEST)):
    if tf.gfile.Exists(folder):
      with write_whole(os.path.join(folder, MODEL_FILE)) as file:
        file.write(_as_json(load_description(folder) | values))


def _as_json(description: Mapping[str, Any]) -> str:
  return json.dumps(description, indent=2, ensure_ascii=False) + "\n"


def steps_done(model_dir: str) -> int:
  """The step of the `last_checkpoint` in a folder; 0 where there is none."""
  checkpoint = last_checkpoint(model_dir)
  if checkpoint is None:
    return 0
  return int(tf.train.load_checkpoint(checkpoint).get_tensor("global_step"))


# Weights


def write_variables(prefix: str, variables: Mapping[str, np.ndarray]) -> None:
  """Writes a checkpoint of these variables, named `prefix`."""
  on_cpu = tf.ConfigProto(device_count={"GPU": 0})
  with tf.Graph().as_default(), tf.Session(config=on_cpu) as session:
    values = [tf.placeholder(v.dtype, v.shape) for v in variables.values()]
    save = tf.raw_ops.SaveV2(
      prefix=prefix,
      tensor_names=list(variables),
      shape_and_slices=[""] * len(variables),
      tensors=values,
    )
    session.run(save, dict(zip(values, variables.values())))


def keep_as_best(model_dir: str, checkpoint: str) -> str:
  """Makes a checkpoint the best of a folder's model.

  Args:
    model_dir: the folder.
    checkpoint: of the model; what the optimizer keeps in it is left out.

  Returns:
    The checkpoint in the folder `best`.
  """
  best_dir = os.path.join(model_dir, BEST)
  tf.gfile.MakeDirs(best_dir)
  for name in (CONFIG_FILE, VOCAB_FILE, MODEL_FILE):
    if tf.gfile.Exists(os.path.join(model_dir, name)):
      tf.gfile.Copy(
        os.path.join(model_dir, name), os.path.join(best_dir, name), True
      )
  reader = tf.train.load_checkpoint(checkpoint)
  weights = {
    name: reader.get_tensor(name)
    for name in reader.get_variable_to_shape_map()
    if not is_of_optimizer(name)
  }
  path = os.path.join(best_dir, os.path.basename(checkpoint))
  write_variables(path, weights)
  # Until this is written the one before is the best; then that can go.
  _name_checkpoints(best_dir, path)
  for file in tf.gfile.Glob(os.path.join(best_dir, "*.ckpt-*")):
    if not file.startswith(f"{path}."):
      tf.gfile.Remove(file)
  return path


def is_of_optimizer(name: str) -> bool:
  """Whether a checkpoint's variable is for training alone."""
  return name.endswith(("/adam_m", "/adam_v")) or name.startswith("loss_scale/")


# A trained model from Python


class LoadedModel:
  """A trained model, loaded once, to run on rows of tokens.

  A script's `Predictor` is one, and says what `build` and `predict` are.

  Attributes:
    description: of the model, as its script wrote it.
    tokenizer: of the model.
  """

  script: str  # that trains such models
  purpose: str  # what such a model does

  def __init__(
    self,
    model_dir: str,
    checkpoint: str | None = None,
    batch_size: int = 32,
    precision: str = "float32",
  ):
    """Loads a model.

    Args:
      model_dir: the `--output_dir` of a training run.
      checkpoint: which one; None for the folder's `trained_checkpoint`.
      batch_size: how many rows are computed together.
      precision: "float32", "bfloat16" or "float16", see `--precision`.

    Raises:
      InputError: the folder is missing, or holds no such model.
    """
    if not tf.gfile.IsDirectory(model_dir):
      raise InputError(f"{model_dir}: no such folder")
    self.description = load_description(model_dir)
    if checkpoint:
      checkpoint = find_checkpoint(checkpoint)
      checkpoint_files.check(checkpoint)
    else:
      checkpoint = trained_checkpoint(model_dir)
    if self.description.get("script") != self.script or not checkpoint:
      raise InputError(
        f"{model_dir}: holds no model that {self.purpose}; name the"
        f" --output_dir of a run of {self.script}.py"
      )
    check_description(model_dir, self.description)
    config = load_config(os.path.join(model_dir, CONFIG_FILE))
    self.tokenizer = tokenization.FullTokenizer(
      vocabulary.load(os.path.join(model_dir, VOCAB_FILE)),
      self.description["do_lower_case"],
    )
    self._batch_size = batch_size
    # Constants are cast to a narrow format once, variables with every batch. A
    # graph has room for 2 GB of them.
    getter = None
    if precision != "float32" and memory_plan.num_weights(config) < 2**29:
      getter = _constants_of(checkpoint)
    with tf.Graph().as_default() as graph:
      self._inputs = {
        name: tf.placeholder(tf.int32, [None, None], name)
        for name in features.TOKEN_FEATURES
      }
      with tf.variable_scope("", custom_getter=getter):
        self._outputs = self.build(
          self.description,
          config,
          self._inputs,
          FastCompute(tf.as_dtype(precision), unpad=True),
        )
      self._session = tf.Session(graph=graph)
      if not getter:
        tf.train.Saver(tf.trainable_variables()).restore(
          self._session, checkpoint
        )

  @staticmethod
  def build(
    description: Mapping[str, Any],
    config: modeling.BertConfig,
    inputs: Mapping[str, Any],
    compute: FastCompute,
  ):
    """Builds the graph.

    Args:
      description: of the model.
      config: the model's sizes.
      inputs: int32 [B, S] of each of `features.TOKEN_FEATURES`.
      compute: how to compute.

    Returns:
      A tensor with a row for each of the input.
    """
    raise NotImplementedError

  def run(
    self, rows: Sequence[Mapping[str, Sequence[int]]]
  ) -> list[np.ndarray]:
    """What the model gives for rows, those of like length taken together.

    Args:
      rows: each with `features.TOKEN_FEATURES`, of any length.

    Returns:
      The output of each, in order; its S is that of the longest row that it
      was computed with.
    """
    lengths = [sum(row["input_mask"]) for row in rows]
    order = sorted(range(len(rows)), key=lambda index: -lengths[index])
    outputs: list[Any] = [None] * len(rows)
    for first in range(0, len(order), self._batch_size):
      batch = order[first : first + self._batch_size]
      longest = lengths[batch[0]]
      feed = {
        tensor: [_fitted(rows[index][name], longest) for index in batch]
        for name, tensor in self._inputs.items()
      }
      for index, row in zip(batch, self._session.run(self._outputs, feed)):
        outputs[index] = row
    return outputs

  def close(self) -> None:
    """Frees the model."""
    self._session.close()

  def __enter__(self):
    return self

  def __exit__(self, *unused):
    self.close()


def _constants_of(checkpoint: str) -> Callable:
  """A getter of variables that gives constants, with a checkpoint's values."""
  reader = tf.train.load_checkpoint(checkpoint)

  def get(getter, name, *args, **kwargs):
    del getter, args, kwargs
    return tf.constant(reader.get_tensor(name))

  return get


def _fitted(values: Sequence[int], length: int) -> list[int]:
  """Values cut to a length, or filled up with 0."""
  return [*values[:length], *[0] * (length - len(values))]
