"""Tests of downloading published models, from a local server."""

import dataclasses
import errno
import functools
import gzip
import hashlib
import http.server
import io
import itertools
import json
import os
import pathlib
import re
import signal
import socket
import stat
import subprocess
import sys
import tarfile
import threading
import time
import urllib.parse
import zipfile

import commands
import pytest
import reference_data
import run_outputs

import download_model
import tokenization
from bertlib.cli import command_line
from bertlib.cli.errors import InputError
from bertlib.exchange import published_models, zoo
from bertlib.io import files
from bertlib.settings import embedding_spec

pytestmark = pytest.mark.unit

DATA = "data-00000-of-00001"
FILES = {
  "bert_config.json": b'{"vocab_size": 3}',
  "vocab.txt": b"[PAD]\n[UNK]\nthe\n",
  "bert_model.ckpt.index": b"index",
  f"bert_model.ckpt.{DATA}": bytes(range(256)) * 400,
}


# Server


class Site(http.server.ThreadingHTTPServer):
  """Serves files with ranges and versions, or misbehaves as planned.

  Attributes:
    files: bytes by path.
    etag, modified: version headers of all files; None for none.
    plans: functions of the request handler for the next requests; after them,
      `Handler.serve`.
    seen: method, path and headers of each request.
  """

  daemon_threads = True

  def __init__(self):
    super().__init__(("127.0.0.1", 0), Handler)
    self.files, self.plans, self.seen = {}, [], []
    self.etag, self.modified = '"1"', None
    self.url = f"http://127.0.0.1:{self.server_port}"

  def handle_error(self, *unused):
    """Ignores clients that disconnect."""


class Handler(http.server.BaseHTTPRequestHandler):
  protocol_version = "HTTP/1.1"

  def log_message(self, *unused):
    pass

  def do_GET(self):
    self.server.seen.append((self.command, self.path, dict(self.headers)))
    self.close_connection = True
    plan = self.server.plans.pop(0) if self.server.plans else Handler.serve
    plan(self)

  do_CONNECT = do_GET

  def serve(self, ranges=True, until=None, length=None):
    """Sends the file, or the requested range.

    Args:
      ranges: whether ranges are supported.
      until: offset in the file at which to stop, or None.
      length: wrong Content-Length, or None.
    """
    path = urllib.parse.urlsplit(self.path).path
    if path not in self.server.files:
      self.status(404)
      return
    content = self.server.files[path]
    first = 0
    wanted = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
    versions = self.server.etag, self.server.modified
    if ranges and wanted and self.headers["If-Range"] in versions:
      first = int(wanted[1])
      self.send_response(206)
      last = len(content) - 1
      self.send_header("Content-Range", f"bytes {first}-{last}/{len(content)}")
    else:
      self.send_response(200)
    if self.server.etag:
      self.send_header("ETag", self.server.etag)
    if self.server.modified:
      self.send_header("Last-Modified", self.server.modified)
    length = len(content) - first if length is None else length
    self.send_header("Content-Length", str(length))
    self.end_headers()
    self.wfile.write(content[first:until])

  def status(self, code, **headers):
    self.send_response(code)
    for name, value in headers.items():
      self.send_header(name, value)
    self.send_header("Content-Length", "0")
    self.end_headers()


def serve(**options):
  return functools.partial(Handler.serve, **options)


def status(code, **headers):
  return functools.partial(Handler.status, code=code, **headers)


@pytest.fixture
def site():
  server = Site()
  thread = threading.Thread(target=server.serve_forever, args=[0.02])
  thread.start()
  yield server
  server.shutdown()
  thread.join()
  server.server_close()


# Archives


def zipped(files, kind=stat.S_IFREG):
  buffer = io.BytesIO()
  with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
    for name, content in files:
      info = zipfile.ZipInfo(name)
      info.external_attr = (kind | 0o644) << 16
      archive.writestr(info, content, zipfile.ZIP_DEFLATED)
  return buffer.getvalue()


def tarred(members):
  """A .tar.gz of (name, content) or (name, changes of its TarInfo)."""
  buffer = io.BytesIO()
  with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as archive:
    for name, content in members:
      info = tarfile.TarInfo(name)
      if isinstance(content, bytes):
        info.size = len(content)
        archive.addfile(info, io.BytesIO(content))
      else:
        for key, value in content.items():
          setattr(info, key, value)
        archive.addfile(info)
  return buffer.getvalue()


def within(folder, files):
  """Files as (path in `folder`, content)."""
  return [(f"{folder}/{name}", content) for name, content in files.items()]


def renamed(prefix, files=FILES):
  """The same files, with the checkpoint under another name."""
  return {
    name.replace("bert_model.ckpt", prefix): content
    for name, content in files.items()
  }


# A published model


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
  """Removes the user's proxies and caches from the environment."""
  for name in list(os.environ):
    if name.lower().endswith("_proxy") or name.endswith(
      ("_CACHE_DIR", "_HOME", "HF_ENDPOINT")
    ):
      monkeypatch.delenv(name)


@pytest.fixture
def publish(site, tmp_path, monkeypatch):
  """Publishes an archive as the model "tiny", on the site and in the table."""

  def publish(archive, ending=".zip", **entry):
    site.files["/tiny" + ending] = archive
    entry = {
      "aliases": ["small"],
      "language": "English",
      "good_for": "tests",
      "do_lower_case": False,
      "num_hidden_layers": 2,
      "hidden_size": 4,
      "maker": "us",
      "license": None,
      "paper": "",
      "address": f"{site.url}/tiny{ending}",
      "size": None,
      "sha256": None,
      **entry,
    }
    table = tmp_path / "table.json"
    table.write_text(json.dumps({"tiny": entry}))
    monkeypatch.setattr(published_models, "TABLE", str(table))
    return archive

  return publish


@pytest.fixture
def cache(tmp_path):
  return tmp_path / "cache"


@pytest.fixture
def fetch(cache):
  """Fetches "tiny"; delays are recorded in `fetch.waits`, in seconds."""

  def fetch(name="tiny"):
    return zoo.fetch(name, str(cache), fetch.waits.append)

  fetch.waits = []
  return fetch


def contents(folder):
  """Bytes of the files in a folder, by name."""
  return {
    name: open(os.path.join(folder, name), "rb").read()
    for name in os.listdir(folder)
  }


def sha256(content):
  return hashlib.sha256(content).hexdigest()


def ranges(site):
  """The Range header of each request."""
  return [headers.get("Range") for _, _, headers in site.seen]


# The published table


TABLE = published_models.load_table()
ARCHIVES = {name: m for name, m in TABLE.items() if not m.repository}
REPOSITORIES = {name: m for name, m in TABLE.items() if m.repository}


def released_in_2020():
  for layers, width in itertools.product(
    (2, 4, 6, 8, 10, 12), (128, 256, 512, 768)
  ):
    yield f"uncased_L-{layers}_H-{width}_A-{width // 64}"


def test_the_table_lists_all_published_models():
  published = {
    *("uncased_L-12_H-768_A-12", "uncased_L-24_H-1024_A-16"),
    *("cased_L-12_H-768_A-12", "cased_L-24_H-1024_A-16"),
    *("wwm_uncased_L-24_H-1024_A-16", "wwm_cased_L-24_H-1024_A-16"),
    *("multi_cased_L-12_H-768_A-12", "multilingual_L-12_H-768_A-12"),
    *("chinese_L-12_H-768_A-12", "uncased_L-12_H-768_A-12_2020"),
    *released_in_2020(),
    *("scibert_scivocab_uncased", "scibert_scivocab_cased"),
    *("scibert_basevocab_uncased", "scibert_basevocab_cased"),
    *("biobert_v1.0_pmc", "biobert_v1.0_pubmed", "biobert_v1.0_pubmed_pmc"),
    *("biobert_v1.1_pubmed", "Bio_ClinicalBERT", "Bio_Discharge_Summary_BERT"),
    *("ClinicalBERT", "Discharge_Summary_BERT"),
    *("all-MiniLM-L6-v2", "all-MiniLM-L12-v2"),
    *("bge-small-en-v1.5", "bge-base-en-v1.5", "bge-large-en-v1.5"),
    *("e5-small-v2", "e5-base-v2", "e5-large-v2"),
    *("gte-small", "gte-base", "gte-large"),
    *("mxbai-embed-large-v1", "UAE-Large-V1"),
  }
  assert set(TABLE) == published


def test_names_and_aliases_are_unique():
  names = [n for model in TABLE.values() for n in (model.name, *model.aliases)]
  assert len(names) == len({name.lower() for name in names})


def test_a_name_of_gluonnlp_keeps_the_casing_of_the_model():
  model = published_models.find("clinicalbert_uncased")
  assert model.name == "Bio_ClinicalBERT"
  assert not model.do_lower_case


@pytest.mark.parametrize("name", ARCHIVES)
def test_an_archive_is_consistent_with_its_name(name):
  model = TABLE[name]
  assert re.fullmatch(r"[\w.-]+", name)
  address = urllib.parse.urlsplit(model.address)
  assert address.scheme == "https"
  assert address.path.endswith((".zip", ".tar.gz"))
  sizes = re.search(r"L-(\d+)_H-(\d+)", name)
  if sizes:
    shape = model.num_hidden_layers, model.hidden_size
    assert shape == (int(sizes[1]), int(sizes[2]))
    assert sizes[0] in model.address
  case = re.search(r"(un)?cased", name)
  if case:
    assert model.do_lower_case == (case[0] == "uncased")
  if model.sha256:
    assert set(model.sha256) == set(FILES)
    assert all(re.fullmatch("[0-9a-f]{64}", h) for h in model.sha256.values())


@pytest.mark.parametrize("name", REPOSITORIES)
def test_a_repository_is_consistent_with_its_name(name):
  model = TABLE[name]
  assert re.fullmatch(rf"[\w-]+/{re.escape(name)}", model.repository)
  assert model.address is None
  assert set(model.sha256 or ()) <= {"model.safetensors", "vocab.txt"}
  embedding_spec.EmbeddingSpec(**model.embedding)
  assert model.embedding["pooling"] in embedding_spec.POOLINGS
  sizes = {"small": (12, 384), "base": (12, 768), "large": (24, 1024)}
  size = re.search("small|base|large", name.lower())
  if size:
    shape = model.num_hidden_layers, model.hidden_size
    assert shape == sizes[size[0]]


@pytest.mark.parametrize(
  "name",
  sorted(tokenization._CASED_MODELS | tokenization._LOWER_CASED_MODELS),
)
def test_the_tokenizer_knows_the_casing_of_a_fetched_model(name):
  do_lower_case = TABLE[name].do_lower_case
  checkpoint = f"cache/{name}/bert_model.ckpt"
  tokenization.validate_case_matches_checkpoint(do_lower_case, checkpoint)
  with pytest.raises(ValueError, match=r"do_lower_case"):
    tokenization.validate_case_matches_checkpoint(not do_lower_case, checkpoint)


@pytest.mark.parametrize(
  ("name", "file", "parts"),
  [
    ("uncased_L-12_H-768_A-12", "vocab.txt", ("vocab", "uncased.txt")),
    ("cased_L-24_H-1024_A-16", "vocab.txt", ("vocab", "cased.txt")),
    ("chinese_L-12_H-768_A-12", "vocab.txt", ("vocab", "chinese.txt")),
    ("multi_cased_L-12_H-768_A-12", "vocab.txt", ("vocab", "multi_cased.txt")),
    (
      "uncased_L-24_H-1024_A-16",
      "bert_config.json",
      ("config", "uncased_L-24_H-1024_A-16.json"),
    ),
    (
      "chinese_L-12_H-768_A-12",
      "bert_model.ckpt.index",
      (
        "checkpoint_index_only",
        "chinese_L-12_H-768_A-12.bert_model.ckpt.index",
      ),
    ),
  ],
)
def test_hashes_are_those_of_the_published_files(name, file, parts):
  with open(reference_data.data("bert", *parts), "rb") as published:
    assert TABLE[name].sha256[file] == sha256(published.read())


def archive_in_published_layout(model):
  """An archive in the layout of a model's maker, and the model's files."""
  files = FILES | {"vocab.txt": f"[PAD]\n{model.name}\n".encode()}
  junk = {"bert_model.ckpt.meta": b"a graph", "._vocab.txt": b"of a Mac"}
  if "/2020_02_20/" in model.address:
    return zipped(files.items()), files
  if "/bert_models/" in model.address:
    return zipped(within(model.name, files | junk)), files
  if "scibert" in model.address:
    return tarred(within(model.name, files | junk)), files
  if "biobert-pretrained" in model.address:
    is_new = model.name == "biobert_v1.1_pubmed"
    prefix = "model.ckpt-1000000" if is_new else "biobert_model.ckpt"
    packed = renamed(prefix, files | junk)
    return tarred(within(model.name, packed)), files
  assert "pretrained_bert_tf" in model.address
  inner = {}
  for folder, other in {"a_model_besides": FILES, model.folder: files}.items():
    steps = folder.rpartition("_")[2]
    packed = renamed(f"model.ckpt-{steps}", other | junk)
    packed |= {"pytorch_model.bin": b"the same once more"}
    inner[folder + ".tar.gz"] = tarred(within(folder, packed))
  return tarred(within("pretrained_bert_tf", inner)), files


@pytest.mark.parametrize("name", ARCHIVES)
def test_each_model_is_unpacked_from_its_published_layout(
  name, site, cache, monkeypatch
):
  path = urllib.parse.urlsplit(TABLE[name].address).path
  site.files[path], files = archive_in_published_layout(TABLE[name])
  model = dataclasses.replace(
    TABLE[name], address=f"{site.url}{path}?dl=1", size=None, sha256=None
  )
  monkeypatch.setattr(published_models, "load_table", lambda: {name: model})
  folder = zoo.fetch(name, str(cache))
  assert folder == str(cache / name)
  assert contents(folder) == files
  checkpoint = str(cache / name / "bert_model.ckpt")
  assert zoo.checkpoint_path(folder) == checkpoint


def test_the_folder_of_a_model_is_found_in_an_archive(publish, fetch):
  packed = within("all/a", FILES | {"vocab.txt": b"a"})
  packed += within("all/b", FILES | {"vocab.txt": b"b"})
  publish(tarred(packed), ".tar.gz", folder="b")
  assert contents(fetch())["vocab.txt"] == b"b"


def test_tensorflow_reads_a_renamed_checkpoint(publish, fetch):
  import tensorflow as tf

  toy = functools.partial(reference_data.golden, "modeling", "tiny")
  files = {"vocab.txt": b"[PAD]\n", **contents(toy())}
  publish(tarred(within("m", renamed("model.ckpt-7", files))), ".tar.gz")
  checkpoint = zoo.checkpoint_path(fetch())
  assert tf.train.list_variables(checkpoint) == tf.train.list_variables(
    toy("bert_model.ckpt.index").removesuffix(".index")
  )


# Names


def test_an_alias_stands_for_its_model(publish, fetch, cache):
  publish(zipped(FILES.items()))
  assert fetch("small") == str(cache / "tiny")
  assert published_models.is_name("small")
  assert not published_models.is_name(str(cache / "tiny"))


@pytest.mark.parametrize("wrong", ["bert-base-uncasd", "BERT-BASE-UNCASED"])
def test_a_misspelled_name_is_answered_with_similar_names(wrong):
  with pytest.raises(InputError, match=rf"{wrong}: no.* bert-base-uncased "):
    published_models.find(wrong)


def test_an_unknown_name_is_answered_with_the_list_command():
  with pytest.raises(InputError, match=r"no such model. download_model.py --l"):
    published_models.find("?")


# The cache


def test_a_cached_model_is_not_downloaded_again(publish, fetch, site):
  publish(zipped(FILES.items()))
  assert fetch() == fetch()
  assert len(site.seen) == 1


def test_only_the_model_and_its_hashes_remain_in_the_cache(
  publish, fetch, cache
):
  publish(zipped(FILES.items()))
  fetch()
  assert set(os.listdir(cache)) == {"tiny", "tiny.json", "tiny.lock"}


def test_the_environment_sets_the_cache(monkeypatch):
  monkeypatch.setenv("HOME", "/h")
  assert zoo.default_cache_dir() == "/h/.cache/bert-estimator"
  monkeypatch.setenv("XDG_CACHE_HOME", "/x")
  assert zoo.default_cache_dir() == "/x/bert-estimator"
  monkeypatch.setenv("BERT_CACHE_DIR", "/b")
  assert zoo.default_cache_dir() == "/b"


def test_a_folder_already_in_the_cache_is_used(publish, fetch, cache, site):
  publish(b"")
  folder = cache / "tiny"
  folder.mkdir(parents=True)
  for name, content in renamed("model.ckpt-5").items():
    (folder / name).write_bytes(content)
  assert zoo.checkpoint_path(fetch()) == str(folder / "model.ckpt-5")
  assert not site.seen


def test_an_archive_already_in_the_cache_is_used(publish, fetch, cache, site):
  publish(b"")
  cache.mkdir()
  (cache / "tiny.zip").write_bytes(zipped(FILES.items()))
  assert contents(fetch()) == FILES
  assert not site.seen


@pytest.mark.parametrize("missing", FILES)
def test_an_incomplete_folder_is_refused(missing, publish, fetch, cache):
  publish(b"")
  (cache / "tiny").mkdir(parents=True)
  for name in FILES.keys() - {missing}:
    (cache / "tiny" / name).write_bytes(FILES[name])
  named = "a checkpoint" if "index" in missing else missing
  with pytest.raises(
    InputError, match=rf"tiny: is incomplete, it lacks {named}.* remove the fol"
  ):
    fetch()


@pytest.mark.parametrize(
  ("other", "missing"),
  [
    ("second.index", "a checkpoint (one .index and all of its .data)"),
    (
      "bert_model.ckpt.data-00001-of-00003",
      "bert_model.ckpt.data-00000-of-00003 and"
      " bert_model.ckpt.data-00002-of-00003",
    ),
  ],
)
def test_a_folder_with_more_than_one_checkpoint_is_refused(
  other, missing, tmp_path
):
  for name in (*FILES, other):
    (tmp_path / name).write_bytes(b"")
  with pytest.raises(InputError, match=rf"lacks {re.escape(missing)}\."):
    zoo.checkpoint_path(str(tmp_path))


# Interrupted and failed downloads


def archive_of(size):
  """A model's archive of at least this many bytes."""
  noise = hashlib.shake_256(b"noise").digest(size)
  return zipped((FILES | {f"bert_model.ckpt.{DATA}": noise}).items())


@pytest.mark.parametrize(
  ("etag", "modified", "version"),
  [
    ('"1"', None, '"1"'),
    ('"1"', "Thu, 01 Jan 1970 00:00:00 GMT", '"1"'),
    # A weak tag does not guarantee equal bytes.
    (
      'W/"1"',
      "Thu, 01 Jan 1970 00:00:00 GMT",
      "Thu, 01 Jan 1970 00:00:00 GMT",
    ),
  ],
)
def test_an_interrupted_download_is_resumed(
  etag, modified, version, publish, fetch, site
):
  publish(archive_of(50000))
  site.etag, site.modified = etag, modified
  site.plans = [serve(until=20000), serve(until=30000)]
  fetch()
  assert ranges(site) == [None, "bytes=19999-", "bytes=29999-"]
  assert [headers.get("If-Range") for _, _, headers in site.seen[1:]] == [
    version,
    version,
  ]


def test_delays_grow_until_there_is_progress(publish, fetch, site):
  publish(archive_of(50000))
  site.plans = [serve(until=100), *[status(503)] * 2, serve(until=5000)]
  fetch()
  assert fetch.waits == [2, 4, 8, 2]


def test_four_attempts_without_progress_are_an_error(publish, fetch, site):
  publish(archive_of(50000))
  site.plans = [serve(until=1000)] + [serve(until=1000)] * 3
  with pytest.raises(InputError, match=r"ended after 1000 of 5"):
    fetch()
  assert fetch.waits == [2, 4, 8]


def test_the_next_call_resumes_a_failed_download(publish, fetch, site):
  publish(archive_of(50000))
  site.plans = [serve(until=1000), *[status(500)] * 3]
  with pytest.raises(InputError):
    fetch()
  fetch()
  assert ranges(site)[-1] == "bytes=999-"


def test_a_complete_part_is_recognized(publish, fetch, cache, site):
  archive = publish(archive_of(50000))
  cache.mkdir()
  (cache / "tiny.zip.part").write_bytes(archive)
  (cache / "tiny.json").write_text(json.dumps({"version": '"1"'}))
  fetch()
  assert ranges(site) == [f"bytes={len(archive) - 1}-"]


@pytest.mark.parametrize(
  "versions", [{"etag": None}, {"etag": 'W/"1"'}], ids=["none", "weak"]
)
def test_a_download_without_version_starts_over(versions, publish, fetch, site):
  publish(archive_of(50000))
  site.etag = versions["etag"]
  site.plans = [serve(until=20000)]
  assert len(contents(fetch())[f"bert_model.ckpt.{DATA}"]) == 50000
  assert ranges(site) == [None, None]


def test_a_download_without_ranges_starts_over(publish, fetch, site):
  publish(archive_of(50000))
  site.plans = [serve(until=20000), serve(ranges=False)]
  assert len(contents(fetch())[f"bert_model.ckpt.{DATA}"]) == 50000


def test_parts_of_different_versions_are_not_combined(publish, fetch, site):
  publish(archive_of(50000))

  def change_then_serve(handler):
    site.files["/tiny.zip"] = archive_of(60000)
    site.etag = '"2"'
    handler.serve()

  site.plans = [serve(until=20000), change_then_serve]
  assert len(contents(fetch())[f"bert_model.ckpt.{DATA}"]) == 60000


def test_a_wrong_range_is_not_used(publish, fetch, site):
  archive = publish(archive_of(50000))

  def serve_wrong_range(handler):
    handler.send_response(206)
    handler.send_header("Content-Range", f"bytes 0-99/{len(archive)}")
    handler.send_header("Content-Length", "100")
    handler.end_headers()
    handler.wfile.write(archive[:100])

  site.plans = [serve(until=20000), serve_wrong_range]
  assert len(contents(fetch())[f"bert_model.ckpt.{DATA}"]) == 50000


def test_a_content_length_that_is_too_large_is_an_error(publish, fetch, site):
  archive = publish(archive_of(50000))
  longer = len(archive) + 10
  site.plans = [serve(length=longer, ranges=False)] * 4
  with pytest.raises(
    InputError, match=rf"ended after {len(archive)} of {longer} bytes"
  ):
    fetch()


def test_a_content_length_that_is_too_small_is_an_error(
  publish, fetch, site, cache
):
  publish(archive_of(50000))
  site.plans = [serve(length=20000)]
  with pytest.raises(InputError, match=r"incomplete or .* was removed"):
    fetch()
  assert not (cache / "tiny.zip").exists()
  fetch()


def test_a_size_that_differs_from_the_table_is_refused(publish, fetch, site):
  archive = archive_of(50000)
  publish(archive, size=len(archive) + 1)
  with pytest.raises(
    InputError, match=rf"has {len(archive)} bytes, not {len(archive) + 1} as in"
  ):
    fetch()
  assert len(site.seen) == 1


def test_without_content_length_the_size_in_the_table_is_used(
  publish, fetch, site
):
  archive = archive_of(50000)
  publish(archive, size=len(archive))

  def disconnect(handler):
    handler.wfile.write(b"HTTP/1.0 200 OK\r\n\r\n" + archive[:300])

  site.plans = [disconnect]
  fetch()
  assert len(site.seen) == 2


def test_an_interrupted_chunked_response_is_not_used(publish, fetch, site):
  archive = publish(archive_of(50000))

  def disconnect(handler):
    handler.send_response(200)
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    handler.wfile.write(b"12c\r\n" + archive[:300] + b"\r\nffff\r\n" + b"some")

  site.plans = [disconnect]
  fetch()
  assert len(site.seen) == 2


def test_a_request_that_times_out_is_repeated(
  publish, fetch, site, monkeypatch, log
):
  publish(archive_of(50000))
  monkeypatch.setattr(zoo, "_TIMEOUT", 0.2)
  done = threading.Event()

  def stall(handler):
    handler.serve(until=20000)
    done.wait(10)

  site.plans = [stall]
  fetch()
  done.set()
  assert ranges(site) == [None, "bytes=19999-"]
  assert any("timed out" in line for line in log)


@pytest.mark.parametrize("code", [403, 404, 410])
def test_permanent_http_errors_are_not_retried(
  code, publish, fetch, site, cache
):
  publish(b"")
  site.plans = [status(code)]
  with pytest.raises(InputError) as error:
    fetch()
  assert f"{site.url}/tiny.zip: HTTP Error {code}" in str(error.value)
  assert f"save it as {cache}/tiny.zip or its files in {cache}/tiny" in str(
    error.value
  )
  assert len(site.seen) == 1


@pytest.mark.parametrize("code", [408, 429, 500, 502, 503])
def test_temporary_http_errors_are_retried(code, publish, fetch, site):
  publish(archive_of(100))
  site.plans = [status(code)] * 3
  fetch()
  assert fetch.waits == [2, 4, 8]


@pytest.mark.parametrize("code", [301, 302, 303, 307])
def test_a_redirected_download_is_resumed(code, publish, fetch, site):
  publish(archive_of(50000))
  site.files["/there.zip"] = site.files.pop("/tiny.zip")
  moved = status(code, Location="/there.zip")
  site.plans = [moved, serve(until=20000), moved]
  fetch()
  assert ranges(site) == [None, None, "bytes=19999-", "bytes=19999-"]


def test_without_a_network_the_error_says_how_to_proceed(publish, fetch, cache):
  with socket.socket() as taken:
    taken.bind(("127.0.0.1", 0))
    address = f"http://127.0.0.1:{taken.getsockname()[1]}/tiny.zip"
    publish(b"", address=address)
    with pytest.raises(InputError) as error:
      fetch()
  assert re.fullmatch(
    rf"{address}: .*refused. Download it by other means, and save it as"
    rf" {cache}/tiny.zip or its files in {cache}/tiny",
    str(error.value),
  )
  assert fetch.waits == [2, 4, 8]


def test_a_proxy_of_the_environment_is_used(publish, fetch, site, monkeypatch):
  publish(archive_of(100), address="http://zoo.invalid/tiny.zip")
  monkeypatch.setenv("http_proxy", site.url)
  fetch()
  assert [path for _, path, _ in site.seen] == ["http://zoo.invalid/tiny.zip"]


def test_a_proxy_for_https_is_used_as_a_tunnel(
  publish, fetch, site, monkeypatch
):
  publish(b"", address="https://zoo.invalid/tiny.zip")
  monkeypatch.setenv("https_proxy", site.url)
  site.plans = [status(403)] * 4
  with pytest.raises(InputError, match=r"https://zoo.invalid/.*403"):
    fetch()
  assert site.seen[0][:2] == ("CONNECT", "zoo.invalid:443")


# Hashes


HASHES = {name: sha256(content) for name, content in FILES.items()}


def test_published_hashes_are_checked_and_nothing_is_recorded(
  publish, fetch, cache, log
):
  publish(zipped(FILES.items()), sha256=HASHES)
  fetch()
  record = json.loads((cache / "tiny.json").read_text())
  assert "sha256" not in record
  assert not any("SHA-256" in line for line in log)


@pytest.mark.parametrize("file", FILES)
def test_a_file_with_another_hash_than_published_is_refused(
  file, publish, fetch, cache
):
  publish(zipped(FILES.items()), sha256=HASHES | {file: "0" * 64})
  with pytest.raises(InputError) as error:
    fetch()
  assert file in str(error.value)
  assert f"is {HASHES[file]}, not {'0' * 64} as in" in str(error.value)
  assert "It was removed; download it again" in str(error.value)
  assert set(os.listdir(cache)) == {"tiny.json", "tiny.lock"}


def test_unpublished_hashes_are_recorded_and_logged(publish, fetch, cache, log):
  publish(zipped(FILES.items()))
  fetch()
  record = json.loads((cache / "tiny.json").read_text())
  assert record["sha256"] == HASHES
  assert any(
    "its SHA-256 is not published" in line and f"{cache}/tiny.json" in line
    for line in log
  )


def test_a_later_download_must_have_the_hashes_of_the_first(
  publish, fetch, site, cache
):
  publish(zipped(FILES.items()))
  os.rename(fetch(), cache / "moved")
  fetch()
  os.rename(cache / "tiny", cache / "moved again")
  changed = FILES | {"vocab.txt": b"[PAD]\n"}
  site.files["/tiny.zip"] = zipped(changed.items())
  with pytest.raises(InputError) as error:
    fetch()
  expected = f"not {HASHES['vocab.txt']} as in {cache}/tiny.json"
  assert expected in str(error.value)
  (cache / "tiny.json").unlink()
  assert contents(fetch()) == changed


def test_hashes_that_are_not_all_published_are_recorded(publish, fetch, cache):
  publish(zipped(FILES.items()), sha256={"vocab.txt": HASHES["vocab.txt"]})
  fetch()
  assert json.loads((cache / "tiny.json").read_text())["sha256"] == HASHES


# Repositories of the Hugging Face Hub


PROMPT = "Represent this: "


def repository_files():
  """Files of a repository, as sentence-transformers wrote them."""
  folder = os.path.dirname(
    reference_data.golden("sentence_transformers", "5.1.2", "modules.json")
  )
  names = ("config.json", "tokenizer_config.json", "sentence_bert_config.json")
  names += ("model.safetensors", "1_Pooling/config.json")
  files = {}
  for name in names:
    with open(os.path.join(folder, name), "rb") as file:
      files[name] = file.read()
  modules = run_outputs.read_json(os.path.join(folder, "modules.json"))
  dense = modules.pop(2)
  assert dense["path"] == "2_Dense"
  files["modules.json"] = json.dumps(modules).encode()
  tokenizer = run_outputs.read_json(os.path.join(folder, "tokenizer.json"))
  ids = tokenizer["model"]["vocab"]
  pieces = sorted(ids, key=ids.get)
  files["vocab.txt"] = "".join(f"{piece}\n" for piece in pieces).encode()
  return files


@pytest.fixture
def publish_repository(site, publish, monkeypatch):
  """Publishes a repository as the model "tiny"; returns its files."""

  def publish_repository(**entry):
    monkeypatch.setenv("HF_ENDPOINT", f"{site.url}/")
    site.files.update(
      {
        f"/us/tiny/resolve/main/{name}": content
        for name, content in repository_files().items()
      }
    )
    embedding = {"pooling": "cls", "normalize": True}
    embedding["prompts"] = {"query": PROMPT}
    publish(
      b"", address=None, repository="us/tiny", embedding=embedding, **entry
    )
    return repository_files()

  return publish_repository


def test_a_repository_is_downloaded_and_converted(
  publish_repository, fetch, cache
):
  publish_repository()
  folder = fetch()
  assert zoo.checkpoint_path(folder) == str(cache / "tiny" / "bert_model.ckpt")
  description = run_outputs.read_json(cache / "tiny" / "model.json")
  assert description["script"] == "run_embeddings"
  assert description["max_seq_length"] == 24
  embedding = description["embedding"]
  assert (embedding["pooling"], embedding["normalize"]) == ("cls", True)
  assert embedding["prompts"] == {"query": PROMPT}
  assert set(os.listdir(cache)) == {"tiny", "tiny.json", "tiny.lock"}


def test_prompts_of_the_repository_take_precedence(
  publish_repository, fetch, cache, site
):
  publish_repository()
  prompts = {"query": "q: ", "document": ""}
  site.files["/us/tiny/resolve/main/config_sentence_transformers.json"] = (
    json.dumps({"prompts": prompts}).encode()
  )
  fetch()
  description = run_outputs.read_json(cache / "tiny" / "model.json")
  assert description["embedding"]["prompts"] == {"query": "q: "}


def test_the_files_of_a_repository_have_its_address(
  publish_repository, fetch, site
):
  files = publish_repository()
  fetch()
  requested = [path for _, path, _ in site.seen]
  assert set(requested) == {
    f"/us/tiny/resolve/main/{name}"
    for name in {*files, "config_sentence_transformers.json"}
  }
  assert len(requested) == len(set(requested))


def test_the_hub_is_the_default_address(monkeypatch):
  monkeypatch.setenv("HF_ENDPOINT", "")
  assert (
    TABLE["gte-small"].origin == "https://huggingface.co/thenlper/gte-small"
  )


def test_an_interrupted_repository_is_resumed(publish_repository, fetch, site):
  weights = publish_repository()["model.safetensors"]
  before = len(repository_files()) + 1  # requests, with those of all weights
  site.plans = [Handler.serve] * (before - 1) + [serve(until=20000)]
  fetch()
  assert ranges(site) == [None] * before + ["bytes=19999-"]
  assert len(weights) > 20000


def test_files_of_a_repository_already_in_the_cache_are_used(
  publish_repository, fetch, cache, site
):
  for name, content in publish_repository().items():
    path = cache / "tiny.download" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
  fetch()
  assert [path.rpartition("/")[2] for _, path, _ in site.seen] == [
    "config_sentence_transformers.json"
  ]
  assert not (cache / "tiny.download").exists()


def test_a_repository_without_a_required_file_is_refused(
  publish_repository, fetch, site, cache
):
  publish_repository()
  del site.files["/us/tiny/resolve/main/modules.json"]
  with pytest.raises(InputError) as error:
    fetch()
  assert f"{site.url}/us/tiny/resolve/main/modules.json: HTTP Error 404" in str(
    error.value
  )
  assert f"save it as {cache}/tiny.download/modules.json" in str(error.value)


def test_hashes_of_a_repository_are_recorded_and_logged(
  publish_repository, fetch, cache, log
):
  files = publish_repository()
  fetch()
  record = run_outputs.read_json(cache / "tiny.json")
  expected = {name: sha256(content) for name, content in files.items()}
  assert record["sha256"] == expected
  assert any("not verified" in line for line in log)


def test_weights_of_another_hash_are_refused(publish_repository, fetch, cache):
  publish_repository(sha256={"model.safetensors": "0" * 64})
  with pytest.raises(
    InputError, match=r"model.safetensors is .*, not 000.* as"
  ):
    fetch()
  assert set(os.listdir(cache)) == {"tiny.json", "tiny.lock"}


def test_corrupt_weights_are_removed(publish_repository, fetch, cache, site):
  publish_repository()
  site.files["/us/tiny/resolve/main/model.safetensors"] = b"<html>"
  with pytest.raises(InputError, match=r"incomplete or corrupt .*was removed"):
    fetch()
  assert set(os.listdir(cache)) == {"tiny.json", "tiny.lock"}


def test_a_missing_safetensors_package_is_named_before_the_download(
  publish_repository, fetch, site, monkeypatch
):
  publish_repository()
  monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
  with pytest.raises(InputError, match=r"tiny: .* pip install safetensors"):
    fetch()
  assert not site.seen


@pytest.mark.process
def test_the_command_prints_only_the_flags_of_a_repository(
  command, publish_repository, cache
):
  publish_repository()
  lines = commands.succeed(*command, "tiny").stdout.splitlines()
  assert [line.partition("=")[0] for line in lines] == [
    *("--vocab_file", "--bert_config_file", "--init_checkpoint"),
    "--do_lower_case",
  ]


# Malicious and corrupt archives


COMPLETE = within("m", FILES)
LINK = {"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"}
HARD_LINK = {"type": tarfile.LNKTYPE, "linkname": "../../../table.json"}
DEVICE = {"type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 5}


def without(name):
  return within("m", {key: FILES[key] for key in FILES if key != name})


@pytest.mark.parametrize(
  "path", ["/{}", "../../{}", "m/../../{}", "/etc/cron.d/../../{}", "./{}"]
)
@pytest.mark.parametrize("pack", [zipped, tarred])
def test_paths_cannot_escape_the_folder(
  pack, path, publish, fetch, cache, tmp_path
):
  packed = [(path.format(name), content) for name, content in FILES.items()]
  packed.append(("../../escaped.txt", b"free"))
  publish(pack(packed), ".zip" if pack is zipped else ".tar.gz")
  assert contents(fetch()) == FILES
  assert set(os.listdir(tmp_path)) == {"cache", "table.json"}
  assert set(os.listdir(cache)) == {"tiny", "tiny.json", "tiny.lock"}


@pytest.mark.parametrize("kind", [LINK, HARD_LINK, DEVICE], ids=lambda k: "")
def test_only_regular_files_are_unpacked(kind, publish, fetch, cache):
  publish(tarred([*without("vocab.txt"), ("m/vocab.txt", kind)]), ".tar.gz")
  with pytest.raises(InputError, match=r"lacks vocab.txt. It was removed"):
    fetch()
  assert set(os.listdir(cache)) == {"tiny.json", "tiny.lock"}


def test_links_in_a_zip_are_not_unpacked(publish, fetch):
  buffer = io.BytesIO(zipped(without("vocab.txt")))
  with zipfile.ZipFile(buffer, "a") as archive:
    info = zipfile.ZipInfo("m/vocab.txt")
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    archive.writestr(info, "/etc/passwd")
  publish(buffer.getvalue())
  with pytest.raises(InputError, match=r"lacks vocab.txt"):
    fetch()


def test_files_are_not_written_through_links(publish, fetch, tmp_path):
  link = {"type": tarfile.SYMTYPE, "linkname": str(tmp_path)}
  publish(tarred([("m", link), *COMPLETE]), ".tar.gz")
  assert contents(fetch()) == FILES
  assert set(os.listdir(tmp_path)) == {"cache", "table.json"}


@pytest.mark.parametrize("name", [*FILES, "vocab.txt", "other.ckpt.index"])
def test_two_models_in_one_archive_are_refused(name, publish, fetch):
  publish(zipped([*COMPLETE, (f"second/{name}", b"of another")]))
  with pytest.raises(
    InputError, match=rf"has more than one model \(second/{name}"
  ):
    fetch()


def test_a_duplicate_file_is_refused(publish, fetch):
  publish(tarred([*COMPLETE, ("m/vocab.txt", b"another")]), ".tar.gz")
  with pytest.raises(InputError, match=r"more than one model"):
    fetch()


@pytest.mark.parametrize("name", FILES)
def test_an_archive_without_a_file_is_refused(name, publish, fetch):
  publish(zipped(without(name)))
  missing = "a checkpoint" if "index" in name else name
  with pytest.raises(InputError, match=rf"tiny.zip: is .* lacks {missing}"):
    fetch()


def test_index_and_data_of_different_checkpoints_are_refused(publish, fetch):
  data = f"bert_model.ckpt.{DATA}"
  publish(zipped([*without(data), (f"m/other.{DATA}", b"")]))
  with pytest.raises(InputError, match=r"more than one model"):
    fetch()


@pytest.mark.parametrize("pack", [zipped, tarred])
def test_a_zip_bomb_is_refused(pack, publish, fetch, monkeypatch, cache):
  monkeypatch.setattr(zoo, "_MAX_BYTES", 2**22)
  bomb = [*COMPLETE, ("m/zeros", bytes(2**22))]
  publish(pack(bomb), ".zip" if pack is zipped else ".tar.gz")
  with pytest.raises(InputError, match=r"unpacks to more than 4194304 bytes"):
    fetch()
  assert set(os.listdir(cache)) == {"tiny.json", "tiny.lock"}


def test_a_huge_size_in_a_tar_header_is_refused(publish, fetch):
  header = tarfile.TarInfo("m/vocab.txt")
  header.size = 2**40
  publish(gzip.compress(header.tobuf(tarfile.GNU_FORMAT)), ".tar.gz")
  with pytest.raises(InputError, match=r"unpacks to more than 17179869184"):
    fetch()


def test_a_tar_header_that_would_exhaust_the_memory_is_refused(publish, fetch):
  header = tarfile.TarInfo("m")
  header.type, header.size = tarfile.XHDTYPE, 2**40
  publish(gzip.compress(header.tobuf(tarfile.GNU_FORMAT)), ".tar.gz")
  with pytest.raises(InputError, match=r"1099511627776 bytes of header"):
    fetch()


def test_deeply_nested_archives_are_not_unpacked(publish, fetch):
  inner = tarred(within("b", FILES))
  for _ in range(50):
    inner = tarred([("b.tar.gz", inner)])
  publish(inner, ".tar.gz", folder="b")
  with pytest.raises(InputError, match=r"lacks bert_config.json, vocab"):
    fetch()


@pytest.mark.parametrize("ending", [".zip", ".tar.gz"])
def test_a_web_page_instead_of_an_archive_is_refused(ending, publish, fetch):
  publish(b"<html>Please confirm that you are no robot</html>", ending)
  with pytest.raises(InputError, match=r"incomplete or corrupt archive"):
    fetch()


@pytest.mark.parametrize("pack", [zipped, tarred])
def test_an_archive_truncated_anywhere_is_refused(pack, publish, tmp_path):
  files = FILES | {f"bert_model.ckpt.{DATA}": b"data"}
  archive = publish(pack(within("m", files)))
  path = str(tmp_path / ("a.zip" if pack is zipped else "a.tar.gz"))
  # A tar archive ends in zeros, which may be missing.
  for size in range(0, len(archive) - 70, 13):
    with open(path, "wb") as file:
      file.write(archive[:size])
    folder = tmp_path / str(size)
    folder.mkdir()
    with pytest.raises(InputError, match=r"incomplete or corrupt arch|lacks"):
      zoo._unpack(path, published_models.find("tiny"), str(folder))


@pytest.mark.process
@pytest.mark.parametrize("flags", [0x1, 0x40], ids=["password", "strong"])
def test_an_archive_with_a_password_is_refused(flags, publish, fetch):
  archive = bytearray(zipped(COMPLETE))
  for start in re.finditer(b"PK\x01\x02", bytes(archive)):
    archive[start.start() + 8] |= flags
  for start in re.finditer(b"PK\x03\x04", bytes(archive)):
    archive[start.start() + 6] |= flags
  publish(bytes(archive))
  with pytest.raises(InputError, match=r"incomplete or corrupt archive"):
    fetch()


# Processes


SCRIPT = f"""
import sys
sys.path.insert(0, {commands.ROOT!r})
import download_model
from bertlib.exchange import published_models
from bertlib.cli import app
published_models.TABLE = sys.argv.pop(1)
app.parse_flags(download_model.DownloadSettings)
app.run(download_model.main)
"""


@pytest.fixture
def command(tmp_path, cache):
  """A command line that uses the table of `publish`."""
  script = tmp_path / "download_model.py"
  script.write_text(SCRIPT)
  return [script, tmp_path / "table.json", f"--cache_dir={cache}"]


def start(command, *arguments):
  return subprocess.Popen(
    [sys.executable, *command, *arguments],
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )


def wait_for(condition):
  end = time.monotonic() + 30
  while not condition():
    assert time.monotonic() < end
    time.sleep(0.01)


@pytest.mark.process
def test_the_download_of_a_killed_process_is_resumed(
  command, publish, fetch, site, cache
):
  archive = publish(archive_of(300000))
  killed = threading.Event()

  def stall(handler):
    handler.serve(until=200000)
    killed.wait(30)

  site.plans = [stall]
  part = cache / "tiny.zip.part"
  process = start(command, "tiny")
  wait_for(lambda: part.exists() and part.stat().st_size > 150000)
  process.send_signal(signal.SIGKILL)
  process.communicate()
  killed.set()
  assert not (cache / "tiny").exists()
  have = part.stat().st_size
  assert contents(fetch())["vocab.txt"] == FILES["vocab.txt"]
  assert ranges(site) == [None, f"bytes={have - 1}-"]
  assert len(archive) > 300000


@pytest.mark.process
def test_a_process_killed_while_unpacking_leaves_no_incomplete_model(
  publish, fetch, cache
):
  publish(zipped(FILES.items()))
  ended = subprocess.Popen(["true"])
  ended.wait()
  own = files.temporary_name(str(cache / "tiny"))
  incomplete = pathlib.Path(own.replace(f"-{os.getpid()}-", f"-{ended.pid}-"))
  incomplete.mkdir(parents=True)
  (incomplete / "vocab.txt").write_bytes(b"half")
  (cache / "tiny.zip").write_bytes(zipped(FILES.items()))
  assert contents(fetch()) == FILES
  assert not incomplete.exists()


def test_an_archive_that_was_in_the_cache_is_kept(publish, fetch, cache, site):
  publish(zipped(FILES.items()))
  archive = cache / "tiny.zip"
  archive.parent.mkdir(exist_ok=True)
  archive.write_bytes(b"of the user")
  with pytest.raises(InputError, match=r"corrupt .* Remove it; download it"):
    fetch()
  assert archive.read_bytes() == b"of the user"
  archive.write_bytes(zipped(FILES.items()))
  assert contents(fetch()) == FILES
  assert archive.exists() and not site.seen


@pytest.mark.process
def test_one_of_several_processes_downloads(command, publish, site, cache):
  publish(archive_of(50000))
  both_run = threading.Event()

  def wait_then_serve(handler):
    both_run.wait(30)
    handler.serve()

  site.plans = [wait_then_serve]
  first = start(command, "tiny")
  wait_for(lambda: site.seen)
  second = start(command, "small")
  logged = second.stderr.readline()
  both_run.set()
  results = [process.communicate() for process in (first, second)]
  assert "tiny.lock: locked by another process; waiting" in logged
  assert [first.returncode, second.returncode] == [0, 0], results
  assert results[0][0] == results[1][0]
  assert len(site.seen) == 1
  assert len(contents(cache / "tiny")) == 4


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS])
def test_a_model_is_downloaded_to_a_file_system_without_locks(
  number, publish, fetch, monkeypatch, caplog, cache
):
  def refuse(*_):
    raise OSError(number, os.strerror(number))

  monkeypatch.setattr("fcntl.flock", refuse)
  publish(zipped(FILES.items()))
  assert contents(fetch()) == FILES
  assert f"{cache / 'tiny'}: cannot be locked" in caplog.text


@pytest.mark.process
def test_a_full_disk_is_an_error_that_keeps_the_part(
  command, publish, fetch, site, cache
):
  publish(archive_of(300000))
  done = commands.run(*command, "tiny", largest_file=100000)
  assert done.returncode == 1
  assert f"error: {cache}: File too large. Make room there" in done.stderr
  fetch()
  assert ranges(site) == [None, "bytes=99999-"]


@pytest.mark.process
def test_a_disk_full_while_unpacking_keeps_the_archive(
  command, publish, fetch, site, cache
):
  publish(zipped((FILES | {f"bert_model.ckpt.{DATA}": bytes(10**6)}).items()))
  done = commands.run(*command, "tiny", largest_file=100000)
  assert done.returncode == 1
  assert f"{DATA}: File too large. Make room there" in done.stderr
  assert set(os.listdir(cache)) == {"tiny.zip", "tiny.json", "tiny.lock"}
  fetch()
  assert len(site.seen) == 1


@pytest.mark.process
def test_the_command_prints_the_flags(command, publish, cache):
  publish(zipped(FILES.items()))
  assert commands.succeed(*command, "small").stdout == (
    f"--vocab_file={cache}/tiny/vocab.txt\n"
    f"--bert_config_file={cache}/tiny/bert_config.json\n"
    f"--init_checkpoint={cache}/tiny/bert_model.ckpt\n"
    "--do_lower_case=False\n"
  )


def test_the_printed_flags_are_a_flag_file(publish, capsys, tmp_path):
  publish(zipped(FILES.items()))
  cache = tmp_path / "models of mine"
  path = tmp_path / "model.flags"
  with commands.in_process(download_model) as main:
    main("tiny", f"--cache_dir={cache}")
  path.write_text(capsys.readouterr().out)
  argv = command_line.read_flag_files(["x.py", f"--flagfile={path}"])
  assert argv[1] == f"--vocab_file={cache}/tiny/vocab.txt"
  assert len(argv) == 5


def test_maker_and_license_are_logged(publish, fetch, log):
  publish(zipped(FILES.items()), license="MIT", paper="arxiv.org/abs/1")
  fetch()
  assert log[0].startswith("tiny by us, license MIT, see arxiv.org/abs/1; from")


def test_the_command_lists_the_table(capsys):
  with commands.in_process(download_model) as main:
    main("--list")
  lines = capsys.readouterr().out.splitlines()
  assert lines[0].split()[0] == "name"
  assert [line.split()[0] for line in lines[1:]] == list(TABLE)
  assert lines[1].endswith("uncased  12      768    408   text of any kind")


def test_the_command_requires_one_name():
  assert "name one model" in commands.fail("download_model.py")


@pytest.mark.process
def test_the_command_does_not_import_tensorflow():
  code = "import sys, download_model; sys.exit('tensorflow' in sys.modules)"
  subprocess.run([sys.executable, "-c", code], check=True, cwd=commands.ROOT)
