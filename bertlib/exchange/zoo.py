"""Downloading published models into a cache.

Each model gets a folder with its name, `bert_config.json`, `vocab.txt` and
`bert_model.ckpt.*`, whatever the published archive looks like.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import hashlib
import http.client
import importlib.util
import io
import os
import posixpath
import stat
import tarfile
import time
import urllib.error
import urllib.parse
import urllib.request
import zipfile
from collections.abc import Collection, Iterator, Mapping
from typing import IO, Any, Callable

from absl import logging

from bertlib.checkpoints import checkpoint_names, model_files
from bertlib.cli import lazy_module, tensorflow_log, terminal
from bertlib.cli.errors import InputError
from bertlib.exchange import published_models
from bertlib.io import files, folder_lock, json_files
from bertlib.io.files import atomic_write

# It imports TensorFlow, which only models of the Hugging Face Hub need.
convert = lazy_module.load("bertlib.exchange.convert")

# Files of a repository of the Hugging Face Hub, and those that it may lack.
_WEIGHTS = "model.safetensors"
_HUB_FILES = (
  "config.json",
  "vocab.txt",
  "tokenizer_config.json",
  "modules.json",
  "1_Pooling/config.json",
  _WEIGHTS,
)
_OPTIONAL_HUB_FILES = (
  "sentence_bert_config.json",
  "config_sentence_transformers.json",
)

_TIMEOUT = 60  # seconds without data
_MAX_ATTEMPTS = 4  # in a row without progress
_CHUNK = 2**20  # bytes per read
_MAX_BYTES = 2**34  # size of an unpacked archive


# The cache


def default_cache_dir() -> str:
  """`$BERT_CACHE_DIR`, or else `bert-estimator` in the user's cache folder."""
  caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
  default = os.path.join(caches, "bert-estimator")
  return os.environ.get("BERT_CACHE_DIR") or default


def fetch(
  name: str,
  cache_dir: str | None = None,
  # waits some seconds before another attempt
  sleep: Callable[[float], Any] = time.sleep,
) -> str:
  """Folder of a model, by name or alias; downloaded if not in the cache."""
  model = published_models.find(name)
  cache = os.path.abspath(cache_dir or default_cache_dir())
  folder = os.path.join(cache, model.name)
  try:
    if not os.path.exists(folder):
      os.makedirs(cache, exist_ok=True)
      # Of several processes one downloads the model, and the others wait.
      with folder_lock.wait_for_lock(folder + ".lock"):
        if not os.path.exists(folder):
          _install(model, folder, sleep)
  except OSError as error:
    error.filename = error.filename or cache
    raise
  checkpoint_path(folder)
  return folder


def checkpoint_path(folder: str) -> str:
  """Path of the checkpoint in a model's folder, without `.index`."""
  names = os.listdir(folder)
  missing = _missing(names)
  if missing:
    raise InputError(
      f"{folder}: {checkpoint_names.describe_missing(missing)}. Add it, or"
      " remove the folder and run the command again to download the model"
    )
  index = next(name for name in names if name.endswith(".index"))
  return os.path.join(folder, index[: -len(".index")])


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


def _missing(names: Collection[str]) -> list[str]:
  """Files of a model that are missing in a folder with these file names."""
  missing = sorted({*model_files.BY_FLAG.values()} - {*names})
  found = [name for name in names if name.endswith(".index")]
  if len(found) != 1:
    return [*missing, "a checkpoint (one .index and all of its .data)"]
  checkpoint = found[0].removesuffix(".index")
  return missing + checkpoint_names.missing_files(checkpoint, names)


def _install(
  model: published_models.Model, folder: str, sleep: Callable[[float], Any]
) -> None:
  """Creates a model's folder from its download, then removes the download."""
  license = model.license or "unknown"
  origin = model.name, model.maker, license, model.paper, model.origin
  # The cache may have it already: `NAME.zip` or `NAME.tar.gz`, or files of a
  # repository in `NAME.download`.
  if model.repository:
    _check_can_read_weights(model)
    download = folder + ".download"
    logging.info("%s by %s, license %s, see %s; from %s", *origin)
    _download_repository(model, folder, download, sleep)
    unpack, remove = _convert, _remove_repository
  else:
    is_zip = urllib.parse.urlsplit(model.address).path.endswith(".zip")
    download = folder + (".zip" if is_zip else ".tar.gz")
    unpack, remove = _unpack, None
    # What is in the cache already is used, and kept: it may be the user's.
    if not os.path.exists(download):
      logging.info("%s by %s, license %s, see %s; from %s", *origin)
      _download(model, model.address, folder, download, sleep, model.size)
      remove = os.remove
  try:
    with files.atomic_folder(folder) as temporary_dir:
      os.mkdir(temporary_dir)
      hashes = unpack(download, model, temporary_dir)
      _check_hashes(model, folder, hashes)
  except InputError as error:
    removed = "Remove it"
    if remove:
      remove(download)
      removed = "It was removed"
    raise InputError(
      f"{download}: {error}. {removed}; download it again, or put files"
      f" that you trust into {folder}"
    ) from error
  if remove:
    remove(download)
  else:
    logging.info("%s: unpacked to %s; no longer needed", download, folder)


def _remove_repository(download: str) -> None:
  """Removes the files of `_download_repository`, and folders without others."""
  folders = {download}
  for name in (*_OPTIONAL_HUB_FILES, *_HUB_FILES):
    path = os.path.join(download, name)
    folders.add(os.path.dirname(path))
    with contextlib.suppress(FileNotFoundError):
      os.remove(path)
  for folder in sorted(folders, reverse=True):
    with contextlib.suppress(OSError):  # not empty, or missing
      os.rmdir(folder)


def _check_hashes(
  model: published_models.Model, folder: str, hashes: Mapping[str, str]
) -> None:
  """Compares SHA-256 hashes with those published or of the first download."""
  published = model.sha256 or {}
  known = _record(folder).get("sha256", {}) | published
  for file, expected in known.items():
    if hashes.get(file) != expected:
      raise InputError(
        f"the SHA-256 of its {file} is {hashes.get(file)}, not {expected} as in"
        f" {published_models.TABLE if file in published else folder + '.json'}"
      )
  if hashes.keys() - known.keys():
    _record(folder, sha256=hashes)
    logging.info(
      "%s: not verified, its SHA-256 is not published. That of this download is"
      " kept in %s.json and checked in later downloads. Remove the file to"
      " accept another version",
      model.name,
      folder,
    )


def _record(folder: str, **updates: Any) -> dict[str, Any]:
  """Updates and returns the record of a download, `FOLDER.json`."""
  path, record = folder + ".json", {}
  if os.path.exists(path):
    record = json_files.read(
      path,
      {"sha256?": dict, "version?": (str, json_files.NULL)},
      "Remove it, or restore it",
    )
  if updates:
    record |= updates
    with atomic_write(path) as file:
      file.write(json_files.dumps(record, indent=2) + "\n")
  return record


# Downloading


class _DownloadError(Exception):
  """A failed attempt to download."""

  def __init__(
    self, message: str, is_temporary: bool = True, code: int | None = None
  ):
    super().__init__(message)
    self.is_temporary = is_temporary  # another attempt may succeed
    self.code = code  # HTTP status; None for other failures


def _download(
  model: published_models.Model,
  address: str,
  folder: str,  # the model's, in the cache
  target: str,
  sleep: Callable[[float], Any],
  size: int | None = None,  # published, in bytes
) -> None:
  """Downloads a file; retries as long as attempts make progress."""
  largest = attempts = 0
  with files.resumable_file(target) as part:
    while True:
      try:
        _receive(address, folder, part, size)
        return
      except _DownloadError as error:
        have = os.path.getsize(part) if os.path.exists(part) else 0
        attempts = 1 if have > largest else attempts + 1
        largest = max(have, largest)
        if attempts == _MAX_ATTEMPTS or not error.is_temporary:
          raise InputError(
            f"{address}: {error}. Download it by other means, and save it"
            f" as {target} or its files in {folder}"
          ) from error
        delay = 2**attempts
        logging.info("%s: %s; trying again in %d s", model.name, error, delay)
        sleep(delay)


def _receive(
  address: str, folder: str, part: str, published_size: int | None
) -> None:
  """Downloads the rest of a file, or all of it if the server's has changed."""
  have = os.path.getsize(part) if os.path.exists(part) else 0
  version = _record(folder).get("version")
  headers = {"User-Agent": "bert-estimator"}
  if have and version:
    have -= 1  # A server rejects an empty range, if the part is complete.
    headers |= {"Range": f"bytes={have}-", "If-Range": version}
  request = urllib.request.Request(address, headers=headers)
  # The default opener caches the proxies of its first call.
  opener = urllib.request.build_opener()
  with _network_call(opener.open, request, timeout=_TIMEOUT) as response:
    if response.status != http.client.PARTIAL_CONTENT:
      have = 0
    elif f"bytes {have}-" not in response.headers.get("Content-Range", ""):
      raise _DownloadError("the server sent another range than requested")
    left = response.length
    size = published_size if left is None else have + left
    if published_size not in (None, size):
      raise _DownloadError(
        f"has {size} bytes, not {published_size} as in"
        f" {published_models.TABLE}",
        False,
      )
    bar = terminal.progress(size, "B", initial=have, unit_scale=True)
    with bar, open(part, "ab") as file:
      file.truncate(have)
      if not have:
        is_weak = response.headers.get("ETag", "W/").startswith("W/")
        version = response.headers["Last-Modified" if is_weak else "ETag"]
        _record(folder, version=version)
      while chunk := _network_call(response.read1, _CHUNK):
        file.write(chunk)
        bar.update(len(chunk))
  have = os.path.getsize(part)
  if size is not None and have < size:
    raise _DownloadError(f"ended after {have} of {size} bytes")


def _network_call(call: Callable[..., Any], *args: Any, **options: Any) -> Any:
  """Calls a function; converts network errors to `_DownloadError`."""
  try:
    return call(*args, **options)
  except urllib.error.HTTPError as error:
    # Timeout, too early, too many requests.
    is_temporary = error.code >= 500 or error.code in (408, 425, 429)
    raise _DownloadError(str(error), is_temporary, error.code) from error
  except (OSError, http.client.HTTPException) as error:
    raise _DownloadError(str(getattr(error, "reason", error))) from error


# The Hugging Face Hub


def _check_can_read_weights(model: published_models.Model) -> None:
  if not importlib.util.find_spec("safetensors"):
    raise InputError(
      f"{model.name}: its weights need the package safetensors:"
      " pip install safetensors"
    )


def _download_repository(
  model: published_models.Model,
  folder: str,
  target_dir: str,
  sleep: Callable[[float], Any],
) -> None:
  """Downloads the files of a repository that are not in `target_dir`."""
  for name in (*_OPTIONAL_HUB_FILES, *_HUB_FILES):
    target = os.path.join(target_dir, name)
    if os.path.exists(target):
      continue
    os.makedirs(os.path.dirname(target), exist_ok=True)
    address = f"{model.origin}/resolve/main/{name}"
    size = model.size if name == _WEIGHTS else None
    try:
      _download(model, address, folder, target, sleep, size)
    except InputError as error:
      is_missing = getattr(error.__cause__, "code", None) == 404
      if not (is_missing and name in _OPTIONAL_HUB_FILES):
        raise


def _convert(
  download: str, model: published_models.Model, folder: str
) -> dict[str, str]:
  """Converts a downloaded repository; returns the SHA-256 of its files."""
  report = io.StringIO()  # Standard output is for the flags of the model.
  with contextlib.redirect_stdout(report):
    tensorflow_log.hide_information()
    convert.huggingface_to_tensorflow(download, folder)
  logging.debug("%s", report.getvalue())
  _add_prompts(model, os.path.join(folder, model_files.DESCRIPTION))
  hashes = {}
  for name in (*_OPTIONAL_HUB_FILES, *_HUB_FILES):
    path = os.path.join(download, name)
    if os.path.exists(path):
      hashes[name] = _sha256(path)
  return hashes


def _add_prompts(model: published_models.Model, path: str) -> None:
  """Adds prompts of the model's card that its files lack to `model.json`."""
  description = json_files.read(path, {"embedding": {"prompts": dict}})
  embedding = description["embedding"]
  stored = {name: text for name, text in embedding["prompts"].items() if text}
  embedding["prompts"] = model.embedding["prompts"] | stored
  with atomic_write(path) as file:
    file.write(
      json_files.dumps(description, indent=2, ensure_ascii=False) + "\n"
    )


def _sha256(path: str) -> str:
  digest = hashlib.sha256()
  with open(path, "rb") as file:
    while chunk := file.read(_CHUNK):
      digest.update(chunk)
  return digest.hexdigest()


# Unpacking

_File = tuple[str, int, Callable[[], IO[bytes]]]  # path, bytes, open function


def _unpack(
  archive: str, model: published_models.Model, folder: str
) -> dict[str, str]:
  """Unpacks a model to our standard file names; returns SHA-256 by name."""
  only = model.folder
  hashes: dict[str, str] = {}
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
      match = checkpoint_names.FILE.fullmatch(name)
      if match:
        prefixes.add(match["checkpoint"])
        name = model_files.CHECKPOINT + match["part"]
      elif name not in model_files.BY_FLAG.values():
        continue
      if name in hashes or len(prefixes) > 1:
        raise InputError(f"has more than one model ({path})")
      hashes[name] = _copy(open_file, os.path.join(folder, name))
  except InputError:
    raise
  except Exception as error:
    # Archive readers raise errors of any class. Errors about our own files,
    # such as a full disk, have a file name.
    if getattr(error, "filename", None):
      raise
    raise InputError(f"incomplete or corrupt archive ({error})") from error
  missing = _missing(hashes)
  if missing:
    raise InputError(checkpoint_names.describe_missing(missing))
  return hashes


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


def _copy(open_file: Callable[[], IO[bytes]], path: str) -> str:
  """Writes a file of an archive; returns its SHA-256."""
  digest = hashlib.sha256()
  with open_file() as packed, atomic_write(path, "wb") as file:
    while chunk := packed.read(_CHUNK):
      digest.update(chunk)
      file.write(chunk)
  return digest.hexdigest()
