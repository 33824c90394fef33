"""Fetches published models into a cache.

Each becomes a folder of its name, with `bert_config.json`, `vocab.txt` and
`bert_model.ckpt.*`, whatever its maker packs them in and calls them. A folder
put there by hand is taken as it is, and so is an archive: `NAME.zip` or
`NAME.tar.gz`.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import hashlib
import http.client
import json
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

from bertlib import app, files, json_files, published_models
from bertlib.checkpoints import checkpoint_names
from bertlib.errors import InputError
from bertlib.files import atomic_write

# The files of a model. Archives also hold its graph (.meta), read by nothing.
_CONFIG, _VOCAB = "bert_config.json", "vocab.txt"
_CHECKPOINT = "bert_model.ckpt"

_TIMEOUT = 60  # seconds without a byte
_TRIES = 4  # in a row that bring nothing new
_CHUNK = 2**20  # bytes at once
_MOST_BYTES = 2**34  # in an archive, unpacked


# The cache


def default_cache_dir() -> str:
  """`$BERT_CACHE_DIR`, else `bert-estimator` among the user's caches."""
  caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
  default = os.path.join(caches, "bert-estimator")
  return os.environ.get("BERT_CACHE_DIR") or default


def fetch(
  name: str,
  cache_dir: str | None = None,
  sleep: Callable[[float], Any] = time.sleep,
) -> str:
  """Downloads a model, if the cache does not have it.

  A download that broke off goes on from there. Of processes that want the same
  model at once, one fetches it and the others wait.

  Args:
    name: of the model, or an alias.
    cache_dir: the cache; None for `default_cache_dir()`.
    sleep: waits some seconds, before another try.

  Returns:
    The model's folder.

  Raises:
    InputError: there is no such model, it cannot be had, what came is not the
      model, or the folder is there and not whole.
  """
  model = published_models.find(name)
  cache = os.path.abspath(cache_dir or default_cache_dir())
  folder = os.path.join(cache, model.name)
  try:
    if not os.path.exists(folder):
      os.makedirs(cache, exist_ok=True)
      with _alone(folder + ".lock"):
        if not os.path.exists(folder):
          _install(model, folder, sleep)
  except OSError as error:
    error.filename = error.filename or cache
    raise
  checkpoint_path(folder)
  return folder


def checkpoint_path(folder: str) -> str:
  """The checkpoint in a model's folder, as `--init_checkpoint` takes it.

  Raises:
    InputError: the folder lacks a file, or has several checkpoints.
  """
  names = os.listdir(folder)
  missing = _missing(names)
  if missing:
    raise InputError(
      f"{folder}: {checkpoint_names.describe_missing(missing)}. Put it there,"
      " or remove the folder to have it fetched again"
    )
  index = next(name for name in names if name.endswith(".index"))
  return os.path.join(folder, index[: -len(".index")])


def flags_for(name: str, cache_dir: str | None = None) -> dict[str, str | bool]:
  """Fetches a model; gives the flags that make a script use it."""
  folder = fetch(name, cache_dir)
  return {
    "vocab_file": os.path.join(folder, _VOCAB),
    "bert_config_file": os.path.join(folder, _CONFIG),
    "init_checkpoint": checkpoint_path(folder),
    "do_lower_case": published_models.find(name).do_lower_case,
  }


def _missing(names: Collection[str]) -> list[str]:
  """What a model still needs, beside files of these names."""
  missing = [name for name in (_CONFIG, _VOCAB) if name not in names]
  found = [name for name in names if name.endswith(".index")]
  if len(found) != 1:
    return [*missing, "a checkpoint (one .index and all of its .data)"]
  checkpoint = found[0].removesuffix(".index")
  return missing + checkpoint_names.missing_files(checkpoint, names)


@contextlib.contextmanager
def _alone(path: str) -> Iterator[None]:
  """Keeps other processes out until the block ends, or the process."""
  import fcntl  # which Windows lacks

  with open(path, "w") as file:
    try:
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      logging.info("%s is another process's; waiting", path)
      fcntl.flock(file, fcntl.LOCK_EX)
    yield


def _install(
  model: published_models.Model, folder: str, sleep: Callable[[float], Any]
) -> None:
  """Makes a model's folder. Until that is done, the archive stays."""
  is_zip = urllib.parse.urlsplit(model.address).path.endswith(".zip")
  archive = folder + (".zip" if is_zip else ".tar.gz")
  if not os.path.exists(archive):
    _download(model, folder, archive, sleep)
  try:
    with files.atomic_folder(folder) as beside:
      os.mkdir(beside)
      hashes = _unpack(archive, model.folder, beside)
      _check_hashes(model, folder, hashes)
  except InputError as error:
    os.remove(archive)
    raise InputError(
      f"{archive}: {error}. It is removed; have it fetched again, or put files"
      f" that you trust into {folder}"
    ) from error
  os.remove(archive)


def _check_hashes(
  model: published_models.Model, folder: str, hashes: Mapping[str, str]
) -> None:
  """Compares files with what is published, or with their first download."""
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
      "%s: its SHA-256 is not published. That of this download is kept in"
      " %s.json, and later ones have to agree; if they need not, remove that",
      model.name,
      folder,
    )


def _record(folder: str, **news: Any) -> dict[str, Any]:
  """What is known of a model's download, after adding to it."""
  path, record = folder + ".json", {}
  if os.path.exists(path):
    record = json_files.read(
      path,
      {"sha256?": dict, "version?": (str, json_files.NULL)},
      "Remove it, or restore it",
    )
  if news:
    record |= news
    with atomic_write(path) as file:
      file.write(json.dumps(record, indent=2) + "\n")
  return record


# Downloading


class _Failed(Exception):
  """A try to download that failed; another may not."""

  def __init__(self, message: str, may_pass: bool = True):
    super().__init__(message)
    self.may_pass = may_pass


def _download(
  model: published_models.Model,
  folder: str,
  archive: str,
  sleep: Callable[[float], Any],
) -> None:
  """Fetches an archive, in as many tries as bring more of it."""
  licence = model.licence or "not known"
  told = model.name, model.maker, licence, model.paper, model.address, folder
  logging.info("%s by %s, licence %s, see %s; from %s to %s", *told)
  most = tries = 0
  with files.resumable_file(archive) as part:
    while True:
      try:
        _receive(model, folder, part)
        return
      except _Failed as error:
        size = os.path.getsize(part) if os.path.exists(part) else 0
        tries = 1 if size > most else tries + 1
        most = max(size, most)
        if tries == _TRIES or not error.may_pass:
          raise InputError(
            f"{model.address}: {error}. Get it by other means, and put it as"
            f" {archive} or its files into {folder}"
          ) from error
        wait = 2**tries
        logging.info("%s: %s; trying again in %d s", model.name, error, wait)
        sleep(wait)


def _receive(model: published_models.Model, folder: str, part: str) -> None:
  """Fetches what a part lacks, or all if that is no longer the same file."""
  have = os.path.getsize(part) if os.path.exists(part) else 0
  version = _record(folder).get("version")
  headers = {"User-Agent": "bert-estimator"}
  if have and version:
    have -= 1  # A part may be whole, and has to be answered too.
    headers |= {"Range": f"bytes={have}-", "If-Range": version}
  request = urllib.request.Request(model.address, headers=headers)
  # The default opener keeps the proxies that it met first.
  opener = urllib.request.build_opener()
  with _ask(opener.open, request, timeout=_TIMEOUT) as answer:
    if answer.status != http.client.PARTIAL_CONTENT:
      have = 0
    elif f"bytes {have}-" not in answer.headers.get("Content-Range", ""):
      raise _Failed("the server sent another part of it than was asked for")
    size = model.size if answer.length is None else have + answer.length
    if model.size not in (None, size):
      raise _Failed(
        f"has {size} bytes, not {model.size} as in {published_models.TABLE}",
        False,
      )
    bar = app.progress(size, "B", initial=have, unit_scale=True)
    with bar, open(part, "ab") as file:
      file.truncate(have)
      if not have:
        is_weak = answer.headers.get("ETag", "W/").startswith("W/")
        version = answer.headers["Last-Modified" if is_weak else "ETag"]
        _record(folder, version=version)
      while chunk := _ask(answer.read1, _CHUNK):
        file.write(chunk)
        bar.update(len(chunk))
  have = os.path.getsize(part)
  if size is not None and have < size:
    raise _Failed(f"broke off at {have} of {size} bytes")


def _ask(call: Callable[..., Any], *args: Any, **options: Any) -> Any:
  """Calls what asks a server; whatever the network does is `_Failed`."""
  try:
    return call(*args, **options)
  except urllib.error.HTTPError as error:
    may_pass = error.code >= 500 or error.code in (408, 425, 429)
    raise _Failed(str(error), may_pass) from error
  except (OSError, http.client.HTTPException) as error:
    raise _Failed(str(getattr(error, "reason", error))) from error


# Unpacking

_File = tuple[str, int, Callable[[], IO[bytes]]]  # path, bytes, how to open


def _unpack(archive: str, only: str | None, folder: str) -> dict[str, str]:
  """Takes a model's files from an archive; writes them under our own names.

  Args:
    archive: a .zip or .tar.gz.
    only: the folder in it that is meant, see `Model.folder`; None for any.
    folder: where they go.

  Returns:
    The SHA-256 of each by its name.

  Raises:
    InputError: it is not a whole archive, or not of one model.
  """
  hashes: dict[str, str] = {}
  prefixes = set()
  size = 0
  try:
    for path, file_size, open_file in _files(archive, only):
      size += file_size
      if size > _MOST_BYTES:
        raise InputError(f"unpacks to more than {_MOST_BYTES} bytes")
      parent, name = posixpath.split(path)
      if only and posixpath.basename(parent) != only:
        continue
      match = checkpoint_names.FILE.fullmatch(name)
      if match:
        prefixes.add(match["checkpoint"])
        name = _CHECKPOINT + match["part"]
      elif name not in (_CONFIG, _VOCAB):
        continue
      if name in hashes or len(prefixes) > 1:
        raise InputError(f"has more than one model ({path})")
      hashes[name] = _copy(open_file, os.path.join(folder, name))
  except InputError:
    raise
  except Exception as error:
    # The readers raise all sorts of things; those of our own files have names.
    if getattr(error, "filename", None):
      raise
    raise InputError(f"not a whole archive ({error})") from error
  missing = _missing(hashes)
  if missing:
    raise InputError(checkpoint_names.describe_missing(missing))
  return hashes


def _files(archive: str, only: str | None) -> Iterator[_File]:
  """The regular files in an archive, so no links and no devices."""
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
  """Those of a .tar.gz; and of the one in it with the name `inner`."""
  unpacked = _Unpacked(fileobj=packed)
  with unpacked, tarfile.open(fileobj=unpacked, mode="r:") as tar:
    for member in filter(tarfile.TarInfo.isreg, tar):
      opener = functools.partial(tar.extractfile, member)
      if posixpath.basename(member.name) == inner:
        yield from _tar_files(opener(), None)
      else:
        yield member.name, member.size, opener


class _Unpacked(gzip.GzipFile):
  """Gzip, unpacked; a tar header cannot make it fill the memory."""

  def read(self, size=-1):
    if not 0 <= size <= _CHUNK:
      raise tarfile.ReadError(f"{size} bytes of header")
    return super().read(size)


def _copy(open_file: Callable[[], IO[bytes]], path: str) -> str:
  """Writes a file of an archive; gives its SHA-256."""
  digest = hashlib.sha256()
  with open_file() as packed, atomic_write(path, "wb") as file:
    while chunk := packed.read(_CHUNK):
      digest.update(chunk)
      file.write(chunk)
  return digest.hexdigest()
