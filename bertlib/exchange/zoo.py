"""Downloading published models into a cache.

Each model gets a folder with its name, `bert_config.json`, `vocab.txt` and
`bert_model.ckpt.*`. Repositories of the Hugging Face Hub are downloaded by
huggingface_hub, into its own cache, and converted. Models that are not known
to have safetensors there come from archives, by pooch.
"""

from __future__ import annotations

import functools
import hashlib
import os
import posixpath
import re
import shutil
import tarfile
import zipfile
from collections.abc import Collection, Iterable, Iterator
from typing import IO, Callable

from absl import logging

from bertlib.cli import lazy_module, tensorflow_log, terminal
from bertlib.cli.errors import NO_ROOM, InputError
from bertlib.exchange import initial_model
from bertlib.io import files, model_files, output_folders
from bertlib.io.files import atomic_write
from bertlib.settings import model_description
from bertlib.task import task_record

# They import TensorFlow, which only conversions need.
foreign_checkpoint = lazy_module.load("bertlib.checkpoints.foreign_checkpoint")
from_huggingface = lazy_module.load("bertlib.exchange.from_huggingface")

# Files of a repository of the Hugging Face Hub, in its subfolders too.
_HUB_FILES = "*.json", "vocab.txt", "model.safetensors"

_MAX_RETRIES = 3  # of a download that fails
_CHUNK = 2**20  # bytes per read

_File = tuple[str, Callable[[], IO[bytes]]]  # path, open function


# The cache


def default_cache_dir() -> str:
  """`$BERT_CACHE_DIR`, or else `bert-estimator` in the user's cache folder."""
  caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
  default = os.path.join(caches, "bert-estimator")
  return os.environ.get("BERT_CACHE_DIR") or default


def fetch(name: str) -> str:
  """Folder of a model, by name or alias; downloaded if not in the cache."""
  model = initial_model.find(name)
  cache = os.path.abspath(default_cache_dir())
  folder = os.path.join(cache, model.name)
  try:
    _make_once(folder, lambda target_dir: _install(model, folder, target_dir))
  except OSError as error:
    error.filename = error.filename or cache
    raise
  checkpoint_path(folder)
  return folder


def _make_once(folder: str, write: Callable[[str], None]) -> None:
  """Fills a folder of the cache by `write`, if it is missing."""
  if os.path.exists(folder):
    return
  os.makedirs(os.path.dirname(folder), exist_ok=True)
  with output_folders.wait_for_lock(folder + ".lock"):
    if os.path.exists(folder):
      return
    with output_folders.atomic_folder(folder) as target_dir:
      os.mkdir(target_dir)
      write(target_dir)


def checkpoint_path(folder: str) -> str:
  """Path of the checkpoint in a model's folder, without `.index`."""
  names = os.listdir(folder)
  if missing := _missing(names):
    raise InputError(
      f"{folder}: {model_files.describe_missing(missing)}. Add it, or"
      " remove the folder and run the command again to download the model"
    )
  index = next(name for name in names if name.endswith(".index"))
  return os.path.join(folder, index.removesuffix(".index"))


def flags_for(name: str) -> dict[str, str | bool]:
  """Fetches a model; returns the flags with which a script uses it."""
  folder = fetch(name)
  return {
    **{
      flag: os.path.join(folder, name)
      for flag, name in model_files.BY_FLAG.items()
    },
    "init_checkpoint": checkpoint_path(folder),
    "do_lower_case": initial_model.find(name).do_lower_case,
  }


def convert(folder: str) -> str:
  """Folder of a Hugging Face model as converted into the cache, once."""

  def write(target_dir):
    model = from_huggingface.read(folder, task_record.all_records())
    for note in model.notes:
      logging.info("%s: %s", folder, note)
    model.write(target_dir)

  source = os.path.abspath(folder)
  return convert_once(source, files.matching_below(source, "*"), write)


def convert_objects(checkpoint: str) -> str:
  """A checkpoint with other names, converted like that."""

  def write(target_dir):
    target = os.path.join(target_dir, model_files.CHECKPOINT)
    foreign_checkpoint.convert(checkpoint, target)

  paths = files.checkpoint_files(checkpoint)
  converted = convert_once(checkpoint, paths, write)
  return os.path.join(converted, model_files.CHECKPOINT)


def convert_once(
  source: str, paths: Iterable[str], write: Callable[[str], None]
) -> str:
  """Folder in the cache that `write` fills, for the state of these files."""
  state = [(path, *files.size_and_mtime(path)) for path in paths]
  digest = hashlib.sha256(repr((model_description.FORMAT, state)).encode())
  name = f"{os.path.basename(source)}-{digest.hexdigest()[:16]}"
  converted = os.path.join(default_cache_dir(), "local", name)
  _make_once(converted, write)
  logging.info("%s: as converted to %s", source, converted)
  return converted


def _missing(names: Collection[str]) -> list[str]:
  """Files of a model that are missing in a folder with these file names."""
  missing = sorted({*model_files.BY_FLAG.values()} - {*names})
  found = [name for name in names if name.endswith(".index")]
  if len(found) != 1:
    return [*missing, "a checkpoint (one .index and all of its .data)"]
  checkpoint = found[0].removesuffix(".index")
  return missing + model_files.missing_files(checkpoint, names)


def _install(model: initial_model.Model, folder: str, target_dir: str) -> None:
  """Writes a model from files beside its folder, or else from a download."""
  origin = model.maker, model.license or "unknown", model.paper
  logging.info("%s by %s, license %s, see %s", model.name, *origin)
  # Files that are in the cache already may be the user's.
  names = [folder + ending for ending in (".zip", ".tar.gz", ".download")]
  source = next(filter(os.path.exists, names), None)
  is_kept = source or model.repository
  source = source or _download(model, folder)
  write = _convert if os.path.isdir(source) else _unpack
  try:
    write(source, model, target_dir)
  except InputError as error:
    # In huggingface_hub's cache the folder of the whole repository.
    source = re.sub(r"/snapshots/\w+$", "", source)
    raise InputError(
      f"{source}: {error}. Remove it; download it again, or put files that you"
      f" trust into {folder}"
    ) from error
  if not is_kept:
    os.remove(source)


def _check_hashes(model: initial_model.Model, folder: str) -> None:
  """Refuses files whose SHA-256 is not the published one."""
  import pooch

  for name, expected in (model.sha256 or {}).items():
    found = pooch.file_hash(os.path.join(folder, name))
    if found != expected:
      raise InputError(
        f"the SHA-256 of its {name} is {found}, not {expected} as in"
        f" {initial_model.TABLE}"
      )
  if not (model.sha256 or model.revision):
    logging.info("%s: not verified, its SHA-256 is not published", model.name)


# Repositories of the Hugging Face Hub, and archives


def _download(model: initial_model.Model, folder: str) -> str:
  """Path of a downloaded archive, or folder of a downloaded repository."""
  import huggingface_hub

  ending = ".zip" if ".zip" in (model.address or "") else ".tar.gz"
  target = folder + (".download" if model.repository else ending)
  try:
    if model.repository:
      return huggingface_hub.snapshot_download(
        model.repository, revision=model.revision, allow_patterns=_HUB_FILES
      )
    return _download_archive(model.address, target)
  except Exception as error:
    if getattr(error, "errno", None) in NO_ROOM:
      raise
    reason = str(error).partition("\n")[0]
    raise InputError(
      f"{model.repository or model.address}: cannot be downloaded ({reason})."
      f" Download it by other means, and save it as {target}"
    ) from error


def _download_archive(address: str, target: str) -> str:
  import pooch

  folder, name = os.path.split(target)
  archives = pooch.create(
    folder,
    base_url="",
    registry={name: None},
    urls={name: address},
    retry_if_failed=_MAX_RETRIES,
  )
  with terminal.progress(1, "B", unit_scale=True) as bar:
    return archives.fetch(name, downloader=pooch.HTTPDownloader(bar, _CHUNK))


def _convert(source: str, model: initial_model.Model, folder: str) -> None:
  """Converts the files of a repository."""
  _check_hashes(model, source)
  tensorflow_log.hide_information()
  converted = from_huggingface.read(source, do_lower_case=model.do_lower_case)
  description = converted.description
  if not model.embedding:
    # Words of any length as in google-research/bert, not as in transformers.
    del description["max_input_chars_per_word"]
  elif "embedding" not in description:
    raise InputError("lacks modules.json")
  else:
    embedding = description["embedding"]
    # Prompts of the model's card that its files lack.
    stored = {name: text for name, text in embedding["prompts"].items() if text}
    embedding["prompts"] = model.embedding["prompts"] | stored
  converted.write(folder)


def _unpack(archive: str, model: initial_model.Model, folder: str) -> None:
  """Unpacks a model to our standard file names."""
  try:
    for path, open_file in _files(archive, model.folder):
      parent, name = posixpath.split(path)
      if model.folder and posixpath.basename(parent) != model.folder:
        continue
      if match := model_files.CHECKPOINT_FILE.fullmatch(name):
        name = model_files.CHECKPOINT + match["part"]
      elif name not in model_files.BY_FLAG.values():
        continue
      target = os.path.join(folder, name)
      if os.path.exists(target):
        raise InputError(f"has more than one model ({path})")
      with open_file() as packed, atomic_write(target, "wb") as file:
        shutil.copyfileobj(packed, file, _CHUNK)
  except Exception as error:
    # Archive readers raise errors of any class. Errors about our own files,
    # such as a full disk, have a file name.
    if isinstance(error, InputError) or getattr(error, "filename", None):
      raise
    raise InputError(f"incomplete or corrupt archive ({error})") from error
  if missing := _missing(os.listdir(folder)):
    raise InputError(model_files.describe_missing(missing))
  _check_hashes(model, folder)


def _files(archive: str, inner: str | None) -> Iterator[_File]:
  """Yields the files of an archive; of a .tar.gz, regular ones only."""
  if archive.endswith(".zip"):
    with zipfile.ZipFile(archive) as packed:
      for name in packed.namelist():
        yield name, functools.partial(packed.open, name)
  else:
    with open(archive, "rb") as packed:
      yield from _tar_files(packed, f"{inner}.tar.gz")


def _tar_files(packed: IO[bytes], inner: str | None) -> Iterator[_File]:
  """Yields the files of a .tar.gz, and of the archive `inner` within it."""
  with tarfile.open(fileobj=packed, mode="r:gz") as tar:
    for member in filter(tarfile.TarInfo.isreg, tar):
      opener = functools.partial(tar.extractfile, member)
      if posixpath.basename(member.name) == inner:
        yield from _tar_files(opener(), None)
      else:
        yield member.name, opener
