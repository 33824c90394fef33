"""Downloading published models into a cache.

Each model gets a folder with its name, `bert_config.json`, `vocab.txt` and
`bert_model.ckpt.*`, whatever the published archive looks like. Archives are
downloaded by pooch, and repositories of the Hugging Face Hub by
huggingface_hub, into its own cache.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import hashlib
import os
import posixpath
import re
import shutil
import stat
import tarfile
import zipfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import IO, Callable

from absl import logging

from bertlib.cli import lazy_module, tensorflow_log, terminal
from bertlib.cli.errors import NO_ROOM, InputError, needs_package
from bertlib.exchange import published_models
from bertlib.io import files, folder_lock, json_files, model_files
from bertlib.io.files import atomic_write
from bertlib.settings import model_description
from bertlib.task import task_record

# They import TensorFlow, which only conversions need.
checkpoint_files = lazy_module.load("bertlib.checkpoints.checkpoint_files")
from_huggingface = lazy_module.load("bertlib.exchange.from_huggingface")

# Files of a repository of the Hugging Face Hub, and those that it may lack.
_HUB_FILES = (
  "config.json",
  "vocab.txt",
  "tokenizer_config.json",
  "modules.json",
  "1_Pooling/config.json",
  "model.safetensors",
)
_OPTIONAL_HUB_FILES = (
  "sentence_bert_config.json",
  "config_sentence_transformers.json",
)

_MAX_RETRIES = 3  # of a download that fails
_CHUNK = 2**20  # bytes per read
_MAX_BYTES = 2**34  # size of an unpacked archive


# The cache


def default_cache_dir() -> str:
  """`$BERT_CACHE_DIR`, or else `bert-estimator` in the user's cache folder."""
  caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
  default = os.path.join(caches, "bert-estimator")
  return os.environ.get("BERT_CACHE_DIR") or default


def fetch(name: str, cache_dir: str | None = None) -> str:
  """Folder of a model, by name or alias; downloaded if not in the cache."""
  model = published_models.find(name)
  cache = os.path.abspath(cache_dir or default_cache_dir())
  folder = os.path.join(cache, model.name)
  try:
    make_once(folder, lambda: _install(model, folder))
  except OSError as error:
    error.filename = error.filename or cache
    raise
  checkpoint_path(folder)
  return folder


def make_once(folder: str, make: Callable[[], None]) -> None:
  """Calls `make` if a folder of the cache is missing, in one process."""
  if os.path.exists(folder):
    return
  os.makedirs(os.path.dirname(folder), exist_ok=True)
  with folder_lock.wait_for_lock(folder + ".lock"):
    if not os.path.exists(folder):
      make()


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


def flags_for(name: str, cache_dir: str | None = None) -> dict[str, str | bool]:
  """Fetches a model; returns the flags with which a script uses it."""
  folder = fetch(name, cache_dir)
  return {
    **{
      flag: os.path.join(folder, name)
      for flag, name in model_files.BY_FLAG.items()
    },
    "init_checkpoint": checkpoint_path(folder),
    "do_lower_case": published_models.find(name).do_lower_case,
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
  """An object-based checkpoint of tensorflow/models, converted like that."""

  def write(target_dir):
    checkpoint_files.write_variables(
      os.path.join(target_dir, model_files.CHECKPOINT),
      dict(checkpoint_files.Checkpoint(checkpoint)),
    )

  paths = files.checkpoint_files(checkpoint)
  converted = convert_once(checkpoint, paths, write)
  return os.path.join(converted, model_files.CHECKPOINT)


def convert_once(
  source: str, paths: Iterable[str], write: Callable[[str], None]
) -> str:
  """Folder in the cache that `write` fills, for the state of these files."""

  def make():
    with files.atomic_folder(converted) as target_dir:
      os.mkdir(target_dir)
      write(target_dir)

  state = [(path, *files.size_and_mtime(path)) for path in paths]
  digest = hashlib.sha256(repr((model_description.FORMAT, state)).encode())
  name = f"{os.path.basename(source)}-{digest.hexdigest()[:16]}"
  converted = os.path.join(default_cache_dir(), "local", name)
  make_once(converted, make)
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


def _install(model: published_models.Model, folder: str) -> None:
  """Creates a model's folder from files in the cache, or else a download."""
  origin = model.maker, model.license or "unknown", model.paper
  logging.info("%s by %s, license %s, see %s", model.name, *origin)
  download, unpack = folder + model.ending, _unpack
  # An archive that is in the cache already may be the user's.
  is_temporary = not (model.repository or os.path.exists(download))
  if model.repository:
    download, unpack = _find_repository(model, download), _convert
  elif is_temporary:
    _download_archive(model, download)
  try:
    with files.atomic_folder(folder) as temporary_dir:
      os.mkdir(temporary_dir)
      hashes = unpack(download, model, temporary_dir)
      _check_hashes(model, folder, hashes)
  except InputError as error:
    # In huggingface_hub's cache the folder of the whole repository.
    download = re.sub(r"/snapshots/\w+$", "", download)
    removed = "Remove it"
    if is_temporary:
      os.remove(download)
      removed = "It was removed"
    raise InputError(
      f"{download}: {error}. {removed}; download it again, or put files"
      f" that you trust into {folder}"
    ) from error
  if is_temporary:
    os.remove(download)


def _check_hashes(
  model: published_models.Model, folder: str, hashes: Mapping[str, str]
) -> None:
  """Compares SHA-256 hashes with those published or of the first download."""
  path = folder + ".json"
  recorded = {}
  if os.path.exists(path):
    schema = {"sha256?": dict}
    record = json_files.read(path, schema, "Remove it, or restore it")
    recorded = record.get("sha256", {})
  published = model.sha256 or {}
  known = recorded | published
  for file, expected in known.items():
    if hashes.get(file) != expected:
      raise InputError(
        f"the SHA-256 of its {file} is {hashes.get(file)}, not {expected} as in"
        f" {published_models.TABLE if file in published else path}"
      )
  if hashes.keys() - known.keys():
    with atomic_write(path) as file:
      file.write(json_files.dumps({"sha256": hashes}, indent=2) + "\n")
    logging.info(
      "%s: not verified, its SHA-256 is not published. That of this download is"
      " kept in %s and checked in later downloads. Remove the file to accept"
      " another version",
      model.name,
      path,
    )


def _hashes(folder: str, names: Iterable[str]) -> dict[str, str]:
  """SHA-256 of the files of a folder that have these names."""
  import pooch

  paths = {name: os.path.join(folder, name) for name in names}
  return {
    name: pooch.file_hash(path)
    for name, path in paths.items()
    if os.path.exists(path)
  }


# Downloading


def _download_archive(model: published_models.Model, target: str) -> None:
  import pooch

  folder, name = os.path.split(target)
  archives = pooch.create(
    folder,
    base_url="",
    registry={name: None},
    urls={name: model.address},
    retry_if_failed=_MAX_RETRIES,
  )
  bar = terminal.progress(model.size or 1, "B", unit_scale=True)
  with _errors_of_download(model, f"save it as {target}"), bar:
    archives.fetch(name, downloader=pooch.HTTPDownloader(bar, _CHUNK))


def _find_repository(model: published_models.Model, placed: str) -> str:
  """Folder of a repository: `placed` if it has all files, or a download."""
  if all(os.path.exists(os.path.join(placed, name)) for name in _HUB_FILES):
    return placed
  with needs_package(
    f"{model.name}: models of the Hugging Face Hub need huggingface_hub and"
    " safetensors: pip install -e '.[huggingface]'"
  ):
    import huggingface_hub
    import safetensors  # noqa: F401 (reads the weights)
  required = ", ".join(_HUB_FILES)
  with _errors_of_download(model, f"save {required} in {placed}"):
    snapshot = huggingface_hub.snapshot_download(
      model.repository, allow_patterns=[*_HUB_FILES, *_OPTIONAL_HUB_FILES]
    )
    for name in _HUB_FILES:
      os.stat(os.path.join(snapshot, name))
  return snapshot


@contextlib.contextmanager
def _errors_of_download(
  model: published_models.Model, advice: str
) -> Iterator[None]:
  """Makes an InputError of any error in its block but a full disk."""
  try:
    yield
  except Exception as error:
    if getattr(error, "errno", None) in NO_ROOM:
      raise
    reason = str(error).partition("\n")[0]
    raise InputError(
      f"{model.origin}: cannot be downloaded ({reason}). Download it by other"
      f" means, and {advice}"
    ) from error


# The Hugging Face Hub


def _convert(
  download: str, model: published_models.Model, folder: str
) -> dict[str, str]:
  """Converts a downloaded repository; returns the SHA-256 of its files."""
  tensorflow_log.hide_information()
  converted = from_huggingface.read(download)
  embedding = converted.description["embedding"]
  # Prompts of the model's card that its files lack.
  stored = {name: text for name, text in embedding["prompts"].items() if text}
  embedding["prompts"] = model.embedding["prompts"] | stored
  converted.write(folder)
  return _hashes(download, (*_OPTIONAL_HUB_FILES, *_HUB_FILES))


# Unpacking

_File = tuple[str, int, Callable[[], IO[bytes]]]  # path, bytes, open function


def _unpack(
  archive: str, model: published_models.Model, folder: str
) -> dict[str, str]:
  """Unpacks a model to our standard file names; returns SHA-256 by name."""
  only = model.folder
  names = set()
  prefixes = set()
  size = 0
  try:
    for path, file_size, open_file in _files(archive, only):
      size += file_size
      # Before it fills the disk.
      if size > _MAX_BYTES:
        raise InputError(f"unpacks to more than {_MAX_BYTES} bytes")
      parent, name = posixpath.split(path)
      if only and posixpath.basename(parent) != only:
        continue
      match = model_files.CHECKPOINT_FILE.fullmatch(name)
      if match:
        prefixes.add(match["checkpoint"])
        name = model_files.CHECKPOINT + match["part"]
      elif name not in model_files.BY_FLAG.values():
        continue
      if name in names or len(prefixes) > 1:
        raise InputError(f"has more than one model ({path})")
      names.add(name)
      with (
        open_file() as packed,
        atomic_write(os.path.join(folder, name), "wb") as file,
      ):
        shutil.copyfileobj(packed, file, _CHUNK)
  except Exception as error:
    # Archive readers raise errors of any class. Errors about our own files,
    # such as a full disk, have a file name.
    if isinstance(error, InputError) or getattr(error, "filename", None):
      raise
    raise InputError(f"incomplete or corrupt archive ({error})") from error
  if missing := _missing(names):
    raise InputError(model_files.describe_missing(missing))
  return _hashes(folder, names)


def _files(archive: str, only: str | None) -> Iterator[_File]:
  """Yields the regular files of an archive: no links, no devices."""
  if archive.endswith(".zip"):
    with zipfile.ZipFile(archive) as packed:
      for info in packed.infolist():
        kind = stat.S_IFMT(info.external_attr >> 16)
        if not info.is_dir() and kind in (0, stat.S_IFREG):
          opener = functools.partial(packed.open, info)
          yield info.filename, info.file_size, opener
  else:
    with open(archive, "rb") as packed:
      yield from _tar_files(packed, only and only + ".tar.gz")


def _tar_files(packed: IO[bytes], inner: str | None) -> Iterator[_File]:
  """Yields the files of a .tar.gz, and of the archive `inner` within it."""
  unpacked = _Unpacked(fileobj=packed)
  with unpacked, tarfile.open(fileobj=unpacked, mode="r:") as tar:
    for member in filter(tarfile.TarInfo.isreg, tar):
      opener = functools.partial(tar.extractfile, member)
      if posixpath.basename(member.name) == inner:
        yield from _tar_files(opener(), None)
      else:
        yield member.name, member.size, opener


class _Unpacked(gzip.GzipFile):
  """Decompressed gzip; rejects tar headers that would exhaust the memory."""

  def read(self, size=-1):
    if not 0 <= size <= _CHUNK:
      raise tarfile.ReadError(f"{size} bytes of header")
    return super().read(size)
