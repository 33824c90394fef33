"""The receipt of a run: what it was made from, and what came out.

Every run leaves one; `--rerun` repeats the run. Imports no TensorFlow.
"""

from __future__ import annotations

import contextlib
import datetime
import fnmatch
import glob
import hashlib
import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from absl import logging

from bertlib import app, files
from bertlib.errors import InputError
from bertlib.files import open_any
from bertlib.settings import option

ROOT = os.path.dirname(
  os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
)


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

  def __init__(self, script: str, settings: Any, file_system: Any = files):
    """Notes what was given.

    Args:
      script: the file that is run.
      settings: of the command, with `receipt`.
      file_system: opens, finds and writes the run's files: has `open_any`,
        `exists` and `atomic_write` of `bertlib.files`.
    """
    rerun = settings.receipt.rerun
    self._path = receipt_path(settings)
    self._repeated = app.read_receipt(rerun) if rerun else {}
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

  def start(self, settings: Any, data_files: Iterable[str]) -> None:
    """Notes what the run is made from, and makes the folder for it.

    Args:
      settings: of the command, with nothing left to decide.
      data_files: those read, but for a model's.
    """
    has_folder = hasattr(settings, "run")
    if has_folder:
      files.make_folder(settings.run.output_dir)
    if hasattr(settings, "devices"):
      self._writes = settings.devices.is_chief
    if not self._writes:
      return
    compute = getattr(settings, "compute", None)
    values = option.values_of(settings)
    self._content |= {
      "flags": values
      | dict.fromkeys(compute.automatic if compute else (), "auto"),
      "seeds": {
        name: values[name]
        for name in ("seed", "random_seed", "seeds")
        if name in values
      },
      "versions": versions(),
      "device": device(),
      **(compute.choices if compute else {}),
      "code": code_hashes(),
      "files": [
        *_model_files(settings),
        *_data_files(data_files, values, self._files.open_any),
      ],
      "results": None,
    }
    if has_folder:
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
    if not self._writes:
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
    if not self._files.exists(self._path):
      return
    with self._files.open_any(self._path) as file:
      earlier = file.read()
    with contextlib.suppress(ValueError, KeyError, TypeError):
      if json.loads(earlier)["given"] == self._content["given"]:
        return  # one that is damaged is kept too
    stem, number = self._path.removesuffix(".json"), 1
    while self._files.exists(f"{stem}-{number}.json"):
      number += 1
    with self._files.atomic_write(f"{stem}-{number}.json") as file:
      file.write(earlier)

  def _write(self) -> None:
    with self._files.atomic_write(self._path) as file:
      json.dump(self._content, file, indent=1, ensure_ascii=False)
      file.write("\n")


def begin(script: str, settings: Any, file_system: Any = files) -> Receipt:
  """Begins the receipt of a run; of one that repeats another, checks first.

  Args:
    script: the file that is run.
    settings: of the command.
    file_system: see `Receipt`.

  Returns:
    The receipt, of which nothing is written yet.

  Raises:
    InputError: see `check_rerun`.
  """
  if settings.receipt.rerun:
    check_rerun(settings, file_system)
  return Receipt(script, settings, file_system)


def receipt_path(settings: Any) -> str:
  """Where a command writes its receipt: in the folder, or beside the file."""
  if hasattr(settings, "run"):
    return os.path.join(settings.run.output_dir, "run.json")
  file = settings.output_file
  if hasattr(settings, "num_shards"):  # the command that writes several files
    file = "".join(files.split_names(file)[:1])
  return f"{file}.run.json"


def check_rerun(settings: Any, file_system: Any = files) -> None:
  """Compares what --rerun repeats a run from with what is there now.

  Each difference is told in the log. Files of flags that are given anew may be
  others.

  Args:
    settings: of the command.
    file_system: see `Receipt`.

  Raises:
    InputError: data, vocabulary, config or checkpoint have changed, or what
      comes out would take the place of what the run left.
  """
  rerun = settings.receipt.rerun
  before = app.read_receipt(rerun)
  places = {os.path.abspath(path) for path in (rerun, before["path"])}
  if os.path.abspath(receipt_path(settings)) in places:
    flag = "output_dir" if hasattr(settings, "run") else "output_file"
    raise InputError(
      f"--rerun={rerun}: give another --{flag}; there is what that run left"
    )
  changed = []
  for file in before["files"]:
    if any(_is_overridden(flag, settings, before) for flag in file["flags"]):
      continue
    if not file_system.exists(file["path"]):
      changed.append(file)
      logging.warning("%s %s: is no longer there", file["what"], file["path"])
      continue
    found = fingerprint(file["path"], file_system.open_any)
    if any(value != file[name] for name, value in found.items()):
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
      f"{changed[0]['path']}: is not what it was in {rerun}. Bring that"
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


def fingerprint(path: str, open_file=open_any) -> dict[str, Any]:
  """What a file is known by.

  Args:
    path: the file.
    open_file: opens it, given the path and "rb".

  Returns:
    Its `path`, how many `bytes` it has, their `sha256`, and `hashed`: "all" or,
    of a large file, which of them went into that.
  """
  digest = hashlib.sha256()
  with open_file(path, "rb") as file:
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


def _model_files(settings: Any) -> list[dict[str, Any]]:
  """Fingerprints of vocabulary, config and first checkpoint."""
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
    by = {"flags": [flag] if is_given else list(_MODEL_FLAGS)}
    if what == "checkpoint":
      # The index has checksums of the data.
      index = f"{value}.index"
      data = set(files.checkpoint_files(value)) - {index}
      by["data_bytes"] = sum(files.file_state(path)[0] for path in data)
      value = index
    if files.exists(value):
      found.append({"what": what, **by, **fingerprint(value)})
  return found


def _data_files(
  paths: Iterable[str], values: Mapping[str, Any], open_file
) -> list[dict[str, Any]]:
  """Fingerprints of data, and which flags name them."""
  return [
    {
      "what": "data",
      "flags": _flags_naming(path, values),
      **fingerprint(path, open_file),
    }
    for path in dict.fromkeys(paths)
    if files.is_remote(path) or os.path.isfile(path)
  ]


def _flags_naming(path: str, flag_values: Mapping[str, Any]) -> list[str]:
  """The flags whose value is a file, or a folder or pattern that has it."""
  names = []
  for name, flag_value in sorted(flag_values.items()):
    values = flag_value if isinstance(flag_value, list) else [flag_value]
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


def _is_overridden(flag: str, settings: Any, before: Mapping[str, Any]) -> bool:
  """Whether a flag is given anew, beside what --rerun gives."""
  pattern = rf"--(no)?{flag}(=.*)?"
  repeated = sum(
    bool(re.fullmatch(pattern, one, re.S)) for one in before["given"]
  )
  return settings.receipt.times_given.get(flag, 0) > repeated


def _differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
  """Names whose values are not equal in both; `all` is of all the others."""
  names = sorted({*one, *other} - {"all"})
  return [name for name in names if one.get(name) != other.get(name)]


def _now() -> str:
  return datetime.datetime.now().astimezone().isoformat(timespec="seconds")


def _plain(value: Any) -> Any:
  """A number of NumPy as one of Python."""
  return value.tolist()
