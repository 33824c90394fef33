"""The receipt of a run (run.json): its inputs, environment and results.

Every run writes one. A training writes `run.flags` too, which repeats it.
Imports no TensorFlow.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import hashlib
import importlib.metadata
import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from absl import logging

from bertlib.cli import command_line, errors, option
from bertlib.cli.steps import Steps
from bertlib.io import files, folder_lock, json_files, processes, receipt_file
from bertlib.io.files import open_any
from bertlib.settings.command import RecordedSettings

ROOT = os.path.abspath(os.path.join(__file__, "../../.."))

# The receipt

# Uses of the files that determine what training learns.
_TRAINED_ON = (receipt_file.TRAINING_DATA, "teacher")

# Flags that change what a step reads, and what sums depend on.
_DECISIVE = ("group_by_length", "remask", "seed", "train_batch_size")
_DECISIVE += ("cores", "threads", "onednn")

# Of files above _LARGE bytes, and of data files after the first _LARGE_SET
# bytes, only _PART bytes at both ends are hashed.
_LARGE, _LARGE_SET, _PART = 10**9, 4 * 10**9, 2**20

_PACKAGES = (
  "tensorflow",
  "tensorflow-cpu",
  "tensorflow-estimator",
  "tf-keras",
  "numpy",
)


def path_of(settings: RecordedSettings) -> str:
  """Path of a receipt: in --output_dir, or beside --output_file."""
  if settings.flags:
    return os.path.join(settings.output, receipt_file.NAME)
  return f"{settings.output}.{receipt_file.NAME}"


class Receipt:
  """Inputs, environment and results of a run."""

  # In --output_dir it is an entry of run.json, beside those of other kinds of
  # runs; it is written at the start too, so that a killed run has one. Beside
  # an output file it is the file, written at the end.
  def __init__(
    self, script: str, settings: RecordedSettings, file_system: Any = files
  ):
    """Records the command line; `file_system` is like `bertlib.io.files`."""
    self._path = path_of(settings)
    self._kind = None  # in --output_dir
    if settings.flags:
      self._kind = receipt_file.kind_of(option.values_of(settings))
    self._files = file_system
    self._writes = True
    self._content: dict[str, Any] = {
      "script": os.path.basename(script),
      "given": list(settings.receipt.command_line),
      "command": list(sys.argv),
      "folder": os.getcwd(),
      "started": _now(),
    }

  def start(
    self,
    settings: RecordedSettings,
    data_files: Iterable[tuple[str, str | None]],  # paths and their uses
    devices: Any = None,  # the `Devices` of a run by TensorFlow
  ) -> None:
    """Records the inputs of the run; creates --output_dir."""
    flags = settings.flags
    if flags:
      files.make_folder(flags.output_dir)
    self._writes = not devices or devices.is_chief
    if not self._writes:
      return
    uses: dict[str, str | None] = {}
    for path, use in data_files:
      if files.is_remote(path) or os.path.isfile(path):
        uses.setdefault(path, use)
    hashes = fingerprints(uses, self._files.open_any)
    self._content |= {
      "flags": option.values_of(settings),
      "versions": versions(),
      "device": device() | (devices.hardware if devices else {}),
      **(devices.choices if devices else {}),
      "files": [{"use": uses[file["path"]], **file} for file in hashes],
      "results": None,
    }
    if not flags:
      return
    if flags.do_train:
      _warn_of_changes(flags.output_dir, self._content)
    self._write(is_new=True)
    if flags.do_train:
      self._write_flags(settings)

  def record(self, **entries: Any) -> None:
    """Records what is measured during the run."""
    self._content |= entries
    if self._writes:
      self._write()

  def finish(
    self, results: Mapping[str, Any], checkpoint: str | None = None
  ) -> None:
    """Records the results."""
    self.record(
      ended=_now(), results=json_files.finite(results), checkpoint=checkpoint
    )

  def _write(self, is_new: bool = False) -> None:
    """Writes the receipt; a new one is the last entry."""
    if not self._kind:
      self._save(self._content)
      return
    # A run of another kind may write its entry at the same time.
    with folder_lock.changing(os.path.dirname(self._path)):
      entries = {}
      if files.exists(self._path):
        entries = receipt_file.read_entries(self._path)
      if is_new:
        entries.pop(self._kind, None)
      self._save(entries | {self._kind: self._content})

  def _save(self, content: Mapping[str, Any]) -> None:
    text = json_files.dumps(content, indent=1, ensure_ascii=False) + "\n"
    with self._files.atomic_write(self._path) as file:
      # Bytes of a path that are not UTF-8 are lone surrogates: JSON's "\udcfc".
      file.write(text.encode(errors="backslashreplace").decode())

  def _write_flags(self, settings: RecordedSettings) -> None:
    """Writes `run.flags`: the flags given, and the choices for "auto"."""
    script = command_line.as_installed(f"python {self._content['script']}")
    path = os.path.join(settings.output, receipt_file.FLAGS_NAME)
    chosen = option.repeat_choices(receipt_file.chosen(self._content))
    declared = option.declarations(type(settings))
    left_out = {f"--{name}" for name, flag in declared if flag.is_output}
    left_out |= {argument.partition("=")[0] for argument in chosen}
    lines = [
      f"# In {os.getcwd()}, this repeats the training:",
      f"# {script} --flagfile={shlex.quote(path)} --output_dir=NEW",
      *chosen,
      *(
        argument
        for argument in self._content["given"]
        if argument.partition("=")[0] not in left_out
      ),
    ]
    with files.atomic_write(path) as file:
      file.writelines(f"{errors.printable(line)}\n" for line in lines)


def _warn_of_changes(folder: str, now: Mapping[str, Any]) -> None:
  """Warns if a training is resumed with other data or other arithmetic."""
  names = ("checkpoint", "seed_*/checkpoint")
  has_checkpoint = any(files.matching(folder, name) for name in names)
  before = receipt_file.last_training(folder)
  if not (has_checkpoint and before):
    return
  differ = _not_in(now, before)
  gone = _not_in(before, now)
  if before["files"] and (differ or gone):
    logging.warning(
      "%s: resumes a training on other data; the contents of %s differ. Name"
      " another --output_dir to train on these data from the start",
      folder,
      errors.some_of(differ or gone),
    )
  # Earlier receipts do not have all.
  old, new = (r.get("flags", {}) | r["device"] for r in (before, now))
  changed = [
    f"{name} {old[name]}, now {new[name]}"
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


def _not_in(receipt: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
  """Paths of training data of a receipt whose contents the other lacks."""
  # Versions up to 0.23.0 did not write the use of files.
  hashes = {
    file["sha256"]
    for file in other["files"]
    if file.get("use", receipt_file.TRAINING_DATA) in _TRAINED_ON
  }
  return [
    file["path"]
    for file in receipt["files"]
    if file.get("use") in _TRAINED_ON and file["sha256"] not in hashes
  ]


@contextlib.contextmanager
def begin(
  script: str, settings: RecordedSettings, file_system: Any = files
) -> Iterator[tuple[Receipt, Steps]]:
  """Begins a command; the steps of its block come before the first write.

  Yields:
    The receipt, and what runs a step.
  """
  step = Steps(settings.receipt.doctor)
  with step.until_end():
    yield Receipt(script, settings, file_system), step


def fingerprint(
  path: str, open_file=open_any, ends_only: bool = False
) -> dict[str, Any]:
  """Size and hash of a file, and in `hashed` which part the hash is of."""
  # A device or pipe may have no end.
  if not files.is_plain(path):
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


def versions() -> dict[str, str]:
  """Versions of the software that the results may depend on."""
  found = {"python": platform.python_version()}
  for name in (*_PACKAGES, "bert-estimator"):
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
      found[name] = importlib.metadata.version(name)
  found["project"] = found.pop("bert-estimator", "")
  # A checkout says its own, and its commit.
  project = os.path.join(ROOT, "pyproject.toml")
  with contextlib.suppress(OSError, TypeError), open_any(project) as file:
    found["project"] = re.search(r'(?m)^version = "(.*)"', file.read())[1]
  if os.path.exists(os.path.join(ROOT, ".git")):
    with contextlib.suppress(OSError):
      found["commit"] = _git("rev-parse", "HEAD")
      if changed := _git("diff", "--name-only", "HEAD", "--", "*.py"):
        found["changed"] = ", ".join(changed.split())
  return found


def _git(*arguments: str) -> str:
  command = ["git", "-C", ROOT, *arguments]
  return subprocess.run(
    command, capture_output=True, text=True, check=False
  ).stdout.strip()


def device() -> dict[str, Any]:
  """CPU, cores and threads; `Devices.hardware` has oneDNN and the GPUs."""
  model = platform.processor()
  with contextlib.suppress(OSError, TypeError), open("/proc/cpuinfo") as file:
    model = re.search(r"(?m)^model name\s*: (.*)", file.read())[1]
  return {
    "cpu": model,
    "cores": processes.usable_cores(),
    "threads": processes.num_threads(),
  }


def _now() -> str:
  return datetime.datetime.now().astimezone().isoformat(timespec="seconds")
