"""The receipt of a run (run.json): its inputs, environment and results.

Every run writes one; `--rerun` repeats the run. Imports no TensorFlow.
"""

from __future__ import annotations

import contextlib
import datetime
import fnmatch
import functools
import glob
import hashlib
import importlib.metadata
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from absl import logging

from bertlib.cli import errors, lazy_module, option
from bertlib.cli.errors import InputError
from bertlib.cli.steps import Steps
from bertlib.io import files, json_files, processes, receipt_file
from bertlib.io.files import open_any
from bertlib.settings.command import RecordedSettings

onednn = lazy_module.load("bertlib.compute.onednn")

ROOT = os.path.abspath(os.path.join(__file__, "../../.."))

# The receipt

# Uses of the files that determine what training learns.
_TRAINED_ON = (receipt_file.TRAINING_DATA, "teacher")

# Flags that change what a step reads, and what sums depend on.
_DECISIVE = ("group_by_length", "remask", "seed", "train_batch_size")
_DECISIVE += ("cores", "threads", "onednn")

# Flags that provide vocabulary, config and weights together.
_MODEL_FLAGS = ("init_checkpoint", "bert_hub_module_handle")

# Of files above _LARGE bytes, and of data files after the first _LARGE_SET
# bytes, only _PART bytes at both ends are hashed.
_LARGE, _LARGE_SET, _PART = 10**9, 4 * 10**9, 2**20


def path_of(settings: RecordedSettings) -> str:
  """Path of a receipt: in --output_dir, or beside --output_file."""
  if settings.run:
    return os.path.join(settings.output, receipt_file.NAME)
  return f"{settings.output}.{receipt_file.NAME}"


class Receipt:
  """Inputs, environment and results of a run."""

  # Written at the start of a run with --output_dir, so that a killed run has
  # one too, and again at the end; otherwise at the end, next to the output
  # file.
  def __init__(
    self, script: str, settings: RecordedSettings, file_system: Any = files
  ):
    """Records the command line; `file_system` is like `bertlib.io.files`."""
    rerun = settings.receipt.rerun
    self._path = path_of(settings)
    self._repeated = receipt_file.read(rerun) if rerun else {}
    self._files = file_system
    self._writes = True
    self._content: dict[str, Any] = {
      "script": os.path.basename(script),
      "path": os.path.abspath(self._path),
      "given": list(settings.receipt.command_line),
      "command": list(sys.argv),
      "folder": os.getcwd(),
      "started": _now(),
    }

  def start(
    self,
    settings: RecordedSettings,
    data_files: Iterable[str],
    chosen: Mapping[str, str] | None = None,  # what "auto" stands for
    is_chief: bool = True,  # of several workers
  ) -> None:
    """Records the inputs of the run; creates --output_dir."""
    run = settings.run
    if run:
      files.make_folder(run.output_dir)
    self._writes = is_chief
    if not self._writes:
      return
    values = option.values_of(settings)
    self._content |= {
      "flags": values,
      "seeds": {
        name: values[name]
        for name in ("seed", "random_seed", "seeds")
        if name in values
      },
      "versions": versions(),
      "device": device(),
      **(chosen or {}),
      "code": code_hashes(),
      "files": [
        *_model_files(settings),
        *_data_files(data_files, settings, self._files.open_any),
      ],
      "results": None,
    }
    if run:
      if run.do_train and _has_checkpoint(run.output_dir):
        self._content["resumed"] = True
        _warn_of_changes(run.output_dir, self._content)
      self._keep_earlier()
      self._write()

  def record(self, **entries: Any) -> None:
    """Records what is measured during the run."""
    self._content |= entries
    if self._writes:
      self._write()

  def finish(
    self, results: Mapping[str, Any], checkpoint: str | None = None
  ) -> None:
    """Records the results; after --rerun, logs differences."""
    if not self._writes:
      return
    index = checkpoint and f"{checkpoint}.index"
    self._content |= {
      "ended": _now(),
      "results": json_files.finite(results),
      "checkpoint": (
        # A training may have removed it meanwhile.
        fingerprint(index) if index and self._files.exists(index) else None
      ),
    }
    self._write()
    if self._repeated:
      log_differences(self._repeated, self._content)

  def _keep_earlier(self) -> None:
    """Renames the receipt of another run."""
    if not self._files.exists(self._path):
      return
    with contextlib.suppress(ValueError):
      receipt = receipt_file.read(self._path)  # a malformed one is kept too
      # With the same flags, this run resumes that one. Others are kept as
      # `run-1.json` and so on.
      if receipt["given"] == self._content["given"]:
        return
    paths = receipt_file.earlier_paths(self._path)
    free = next(path for path in paths if not self._files.exists(path))
    with (
      self._files.open_any(self._path) as earlier,
      self._files.atomic_write(free) as file,
    ):
      file.write(earlier.read())

  def _write(self) -> None:
    text = json_files.dumps(self._content, indent=1, ensure_ascii=False) + "\n"
    with self._files.atomic_write(self._path) as file:
      # Bytes of a path that are not UTF-8 are lone surrogates: JSON's "\udcfc".
      file.write(text.encode(errors="backslashreplace").decode())


def _has_checkpoint(folder: str) -> bool:
  """True if a run, or one of its seeds, has saved a checkpoint."""
  names = ("checkpoint", "seed_*/checkpoint")
  return any(files.matching(folder, name) for name in names)


def _warn_of_changes(folder: str, now: Mapping[str, Any]) -> None:
  """Warns if a training is resumed with other data or other arithmetic."""
  before = receipt_file.last_training(folder)
  if not before:
    return
  old, new = (
    {
      file["sha256"]: file["path"]
      for file in receipt["files"]
      if receipt_file.use_of(file, receipt) in _TRAINED_ON
    }
    for receipt in (before, now)
  )
  differ = [path for digest, path in new.items() if digest not in old]
  gone = [path for digest, path in old.items() if digest not in new]
  if old and (differ or gone):
    logging.warning(
      "%s: resumes a training on other data; the contents of %s differ. Name"
      " another --output_dir to train on these data from the start",
      folder,
      errors.some_of(differ or gone),
    )
  # Earlier receipts do not have all.
  changed = [
    f"{name} {old[name]}, now {new[name]}"
    for old, new in (
      (before.get("flags", {}), now["flags"]),
      (before["device"], now["device"]),
    )
    for name in _DECISIVE
    if name in old.keys() & new.keys() and old[name] != new[name]
  ]
  if changed:
    logging.warning(
      "%s: was trained with %s. The weights will not be those of an"
      " uninterrupted training",
      folder,
      "; ".join(changed),
    )


@contextlib.contextmanager
def begin(
  script: str, settings: RecordedSettings, file_system: Any = files
) -> Iterator[tuple[Receipt, Steps]]:
  """Begins a command; the steps of its block come before the first write.

  Yields:
    The receipt, and what runs a step. With --rerun, the first one compares the
    inputs of that run with those of now.
  """
  step = Steps(settings.receipt.doctor)
  with step.until_end():
    if settings.receipt.rerun:
      step("rerun", check_rerun, settings, file_system)
    yield Receipt(script, settings, file_system), step


def check_rerun(settings: RecordedSettings, file_system: Any = files) -> None:
  """Compares inputs of the run that --rerun repeats with those of now."""
  rerun = settings.receipt.rerun
  before = receipt_file.read(rerun)
  earlier_paths = {os.path.abspath(path) for path in (rerun, before["path"])}
  if os.path.abspath(path_of(settings)) in earlier_paths:
    flag = "output_dir" if settings.run else "output_file"
    raise InputError(
      f"--rerun={rerun}: --{flag} holds the output of that run. Give another"
      f" --{flag}"
    )
  changed = []
  for file in before["files"]:
    # Files of flags that are given again may differ.
    if any(_is_overridden(flag, settings, before) for flag in file["flags"]):
      continue
    if not file_system.exists(file["path"]):
      changed.append(file)
      logging.warning("%s %s: no longer exists", file["what"], file["path"])
      continue
    if not is_unchanged(file, file_system.open_any):
      changed.append(file)
      logging.warning("%s %s: has changed since", file["what"], file["path"])
  code = _differences(before["code"], code_hashes())
  if code:
    logging.warning("the code has changed since: %s", ", ".join(code))
  now = versions()
  for name in _differences(before["versions"], now):
    logging.warning(
      "%s was %s, is now %s", name, before["versions"].get(name), now.get(name)
    )
  if changed:
    flag = (changed[0]["flags"] or ["data_dir"])[0]
    raise InputError(
      f"{changed[0]['path']}: is not the file used in {rerun}. Restore that"
      f" file, or give the one to use now by --{flag}"
    )


def log_differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
  """Logs whether the results of a repeated run are identical."""
  if before.get("results") is None:
    logging.warning("The earlier run did not finish: no results to compare")
    return
  old, new = before["results"], now["results"]
  differ = _differences(old, new)
  for name in differ:
    logging.warning("%s was %s, is now %s", name, old.get(name), new.get(name))
  if old and not differ:
    logging.info("All %d results are identical to the earlier ones", len(old))
  weights = [
    receipt["checkpoint"] and receipt["checkpoint"]["sha256"]
    for receipt in (before, now)
  ]
  if all(weights):
    same = weights[0] == weights[1]
    logging.log(
      logging.INFO if same else logging.WARNING,
      "The weights %s the earlier ones",
      "are identical to" if same else "differ from",
    )


def fingerprint(
  path: str, open_file=open_any, ends_only: bool = False
) -> dict[str, Any]:
  """Size and hash of a file, and in `hashed` which part the hash is of."""
  # A device or pipe may have no end.
  if os.path.exists(path) and not os.path.isfile(path):
    return {"path": path, "bytes": 0, "sha256": "", "hashed": "nothing"}
  digest = hashlib.sha256()
  with open_file(path, "rb") as file:
    size = file.seek(0, 2) or file.tell()
    file.seek(0)
    is_large = size > (2 * _PART if ends_only else _LARGE)
    if is_large:
      digest.update(b"%d" % size + file.read(_PART))
      file.seek(size - _PART)
    while block := file.read(_PART):
      digest.update(block)
  return {
    "path": path,
    "bytes": size,
    "sha256": digest.hexdigest(),
    "hashed": "size, first and last MiB" if is_large else "all",
  }


def fingerprints(
  paths: Iterable[str], open_file=open_any
) -> list[dict[str, Any]]:
  """The `fingerprint` of each file of a data set."""
  found, num_bytes = [], 0
  remaining = iter(paths)
  for path in remaining:
    found.append(fingerprint(path, open_file))
    num_bytes += found[-1]["bytes"]
    if num_bytes > _LARGE_SET:
      break
  # Of a large training corpus only a part is read at each start.
  hash_ends = functools.partial(
    fingerprint, open_file=open_file, ends_only=True
  )
  return [*found, *files.map_in_threads(hash_ends, remaining)]


def is_unchanged(file: Mapping[str, Any], open_file=open_any) -> bool:
  """True if a file still has the size and hash of its earlier `fingerprint`."""
  ends_only = file["hashed"] != "all"
  found = fingerprint(file["path"], open_file, ends_only)
  return all(file[name] == value for name, value in found.items())


def versions() -> dict[str, str]:
  """Versions of the software that the results may depend on."""
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
  with contextlib.suppress(importlib.metadata.PackageNotFoundError):
    found["project"] = importlib.metadata.version("bert-estimator")
  project = os.path.join(ROOT, "pyproject.toml")  # of a checkout
  with contextlib.suppress(OSError, TypeError), open_any(project) as file:
    found["project"] = re.search(r'(?m)^version = "(.*)"', file.read())[1]
  if os.path.exists(os.path.join(ROOT, ".git")):
    with contextlib.suppress(OSError):
      process = subprocess.run(
        ["git", "-C", ROOT, "rev-parse", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
      )
      found["commit"] = process.stdout.strip()
  return found


def device() -> dict[str, Any]:
  """CPU, cores, threads, oneDNN, GPUs; the last two of TensorFlow in use."""
  model = platform.processor()
  with contextlib.suppress(OSError, TypeError), open("/proc/cpuinfo") as file:
    model = re.search(r"(?m)^model name\s*: (.*)", file.read())[1]
  gpus, has_onednn = [], None
  if "tensorflow" in sys.modules:
    import tensorflow as tf

    has_onednn = onednn.is_on()
    gpus = [
      tf.config.experimental.get_device_details(gpu).get("device_name", "GPU")
      for gpu in tf.config.list_physical_devices("GPU")
    ]
  return {
    "cpu": model,
    "cores": processes.usable_cores(),
    "threads": processes.num_threads(),
    "onednn": has_onednn,
    "gpus": gpus,
  }


def code_hashes() -> dict[str, str]:
  """SHA-256 of each module of the project, and of all together as `all`."""
  paths = [
    path
    for part in ("*.py", os.path.join("bertlib", "**", "*.py"))
    for path in glob.glob(os.path.join(glob.escape(ROOT), part), recursive=True)
  ]
  hashes = {
    os.path.relpath(path, ROOT): fingerprint(path)["sha256"]
    for path in sorted(paths)
  }
  together = "".join(f"{name} {digest}\n" for name, digest in hashes.items())
  return {"all": hashlib.sha256(together.encode()).hexdigest(), **hashes}


def _model_files(settings: RecordedSettings) -> list[dict[str, Any]]:
  """Fingerprints of vocabulary, config and initial checkpoint."""
  values = option.values_of(settings)
  found = []
  for what, flag in (
    ("vocabulary", "vocab_file"),
    ("config", "bert_config_file"),
    ("checkpoint", "init_checkpoint"),
  ):
    value = values.get(flag)
    if not value:
      continue
    is_given = flag in settings.receipt.times_given
    entry = {"flags": [flag] if is_given else list(_MODEL_FLAGS)}
    if what == "checkpoint":
      # The index contains checksums of the data files.
      index = f"{value}.index"
      data = set(files.checkpoint_files(value)) - {index}
      entry["data_bytes"] = sum(files.size_and_mtime(path)[0] for path in data)
      value = index
    if files.exists(value):
      found.append({"what": what, **entry, **fingerprint(value)})
  return found


def _data_files(
  paths: Iterable[str], settings: RecordedSettings, open_file
) -> list[dict[str, Any]]:
  """Fingerprints of data files, with the flags that name them."""
  values = {
    name: value
    for name, value in option.values_of(settings).items()
    if name not in option.output_flags(type(settings))
  }
  found = [
    path
    for path in dict.fromkeys(paths)
    if files.is_remote(path) or os.path.isfile(path)
  ]
  return [
    {"what": "data", "flags": _flags_naming(path, values), **hashes}
    for path, hashes in zip(found, fingerprints(found, open_file))
  ]


def _flags_naming(path: str, flag_values: Mapping[str, Any]) -> list[str]:
  """Flags whose value is the path, or a folder or pattern that includes it."""
  names = []
  for name, flag_value in sorted(flag_values.items()):
    values = flag_value if isinstance(flag_value, list) else [flag_value]
    if isinstance(flag_value, str):
      values += files.split_names(flag_value)  # of several files
    for value in values:
      is_text = isinstance(value, str) and bool(value)
      if is_text and (
        f"{path}/".startswith(value.rstrip("/") + "/")
        or path.endswith(f"/{value}")
        or fnmatch.fnmatchcase(path, value)
      ):
        names.append(name)
        break
  return names


def _is_overridden(
  flag: str, settings: RecordedSettings, before: Mapping[str, Any]
) -> bool:
  """True if a flag is given in addition to those of the receipt."""
  pattern = rf"--(no)?{flag}(=.*)?"
  repeated = sum(
    bool(re.fullmatch(pattern, argument, re.S)) for argument in before["given"]
  )
  return settings.receipt.times_given.get(flag, 0) > repeated


def _differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
  """Names whose values differ, without `all`, which sums up the others."""
  names = sorted({*one, *other} - {"all"})
  return [name for name in names if one.get(name) != other.get(name)]


def _now() -> str:
  return datetime.datetime.now().astimezone().isoformat(timespec="seconds")
