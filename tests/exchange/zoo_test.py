"""Tests of downloading published models, from a local server."""

import dataclasses
import functools
import hashlib
import http.server
import io
import json
import os
import re
import stat
import sys
import tarfile
import threading
import urllib.parse
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import commands
import pytest
import reference_data
import run_outputs
import tensorflow as tf
import tiny_huggingface
from parametrize import parametrize
from refused import assert_refused

import download_model
import tokenization
from bertlib.cli import command_line
from bertlib.exchange import initial_model, zoo
from bertlib.io import output_folders
from bertlib.settings import embedding_spec

pytestmark = pytest.mark.unit

INDEX, DATA = "bert_model.ckpt.index", "data-00000-of-00001"
FILES = {
  "bert_config.json": b'{"vocab_size": 3}',
  "vocab.txt": b"[PAD]\n[UNK]\nthe\n",
  INDEX: b"index",
  f"bert_model.ckpt.{DATA}": bytes(range(256)) * 400,
}


TABLE = initial_model.load_table()
ARCHIVES = {name: m for name, m in TABLE.items() if not m.repository}
COMMIT = "0123456789abcdef0123456789abcdef01234567"
PROMPT = "Represent this: "
ESCAPES = ("/{}", "../../{}", "m/../../{}", "/etc/cron.d/../../{}", "./{}")


class Site(http.server.ThreadingHTTPServer):
  """Serves archives, and a repository as the Hugging Face Hub does.

  Attributes:
    files: bytes by path.
    repository: bytes by name of the files of the repository us/tiny.
    plans: functions of the request handler for the next downloads; after them,
      `Handler.serve`.
    seen: path of each request.
  """

  daemon_threads = True

  def __init__(self):
    super().__init__(("127.0.0.1", 0), Handler)
    self.files, self.repository, self.plans, self.seen = {}, {}, [], []
    self.url = f"http://127.0.0.1:{self.server_port}"

  def handle_error(self, *unused):
    """Ignores clients that disconnect."""


class Handler(http.server.BaseHTTPRequestHandler):
  def log_message(self, *unused):
    pass

  def do_GET(self):
    self.server.seen.append(self.path)
    plans = self.server.plans
    plan = plans.pop(0) if plans and "/api/" not in self.path else Handler.serve
    plan(self)

  def do_HEAD(self):
    self.serve()

  def serve(self, until=None):
    """Sends the file, or its bytes before `until`."""
    content = self._content()
    if content is None:
      self.send_error(404)
      return
    start = int(self.headers.get("Range", "bytes=0-")[6:].split("-")[0])
    content = content[start:]
    self.send_response(206 if start else 200)
    self.send_header("ETag", f'"{sha256(content)}"')
    self.send_header("X-Repo-Commit", COMMIT)
    self.send_header("Content-Length", str(len(content)))
    self.end_headers()
    if self.command == "GET":
      self.wfile.write(content[:until])

  def _content(self):
    path = urllib.parse.urlsplit(self.path).path
    repository = self.server.repository
    revisions = [f"/api/models/us/tiny/revision/{r}" for r in (COMMIT, "main")]
    if path in revisions:
      siblings = [{"rfilename": name} for name in repository]
      about = {"id": "us/tiny", "sha": COMMIT, "siblings": siblings}
      return json.dumps(about).encode()
    if path == f"/api/models/us/tiny/tree/{COMMIT}":
      rows = [
        {"type": "file", "path": name, "size": len(content), "oid": "0" * 40}
        for name, content in repository.items()
      ]
      return json.dumps(rows).encode()
    if path.startswith(f"/us/tiny/resolve/{COMMIT}/"):
      return repository.get(path.split("/", 5)[5])
    return self.server.files.get(path)


@pytest.fixture
def site():
  with Site() as server:
    thread = threading.Thread(target=server.serve_forever, args=[0.02])
    thread.start()
    yield server
    server.shutdown()
    thread.join()


# Archives


def zipped(files):
  buffer = io.BytesIO()
  with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
    for name, content in files:
      info = zipfile.ZipInfo(name)
      info.external_attr = (stat.S_IFREG | 0o644) << 16
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
def environment(monkeypatch, cache):
  """Removes the user's proxies and caches; retries do not wait."""
  users = re.compile(r"HF_.*|.*_(CACHE_DIR|HOME|proxy|PROXY)")
  for name in filter(users.fullmatch, list(os.environ)):
    monkeypatch.delenv(name)
  monkeypatch.setenv("BERT_CACHE_DIR", str(cache))
  monkeypatch.setattr("pooch.core.time.sleep", lambda _: None)


@pytest.fixture
def publish(site, tmp_path, monkeypatch):
  """Publishes an archive as the model "tiny", on the site and in the table."""

  def publish(archive, ending=".zip", **entry):
    site.files["/tiny" + ending] = archive
    entry = {
      "aliases": ["small"],
      "do_lower_case": False,
      "maker": "us",
      "license": None,
      "paper": "arxiv.org/abs/1",
      "address": f"{site.url}/tiny{ending}",
      **entry,
    }
    table = tmp_path / "table.json"
    table.write_text(json.dumps({"tiny": entry}))
    monkeypatch.setattr(initial_model, "TABLE", str(table))
    return archive

  return publish


@pytest.fixture
def cache(tmp_path):
  return tmp_path / "cache"


def fetch(name="tiny"):
  return zoo.fetch(name)


@pytest.fixture
def refuse(cache):
  """Fetches "tiny", which must fail and leave only a lock and `source`."""

  def refuse(message, *source):
    assert_refused(message, fetch)
    assert {*os.listdir(cache)} == {"tiny.lock", *source}

  return refuse


def contents(folder):
  return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def place(folder, files=FILES):
  folder.mkdir(parents=True)
  for name, content in files.items():
    (folder / name).write_bytes(content)
  return folder


def sha256(content):
  return hashlib.sha256(content).hexdigest()


# The published table


def test_the_documentation_lists_the_published_models():
  page = Path(commands.ROOT, "docs/how_to/models.md").read_text()
  names = {n for model in TABLE.values() for n in (model.name, *model.aliases)}
  assert names <= {*re.findall(r"`([\w.-]+)`", page)}


def test_the_table_is_consistent():
  names = [n for model in TABLE.values() for n in (model.name, *model.aliases)]
  assert len(names) == len({name.lower() for name in names})
  assert all(re.fullmatch(r"[\w.-]+", name) for name in names)
  for model in TABLE.values():
    if model.repository:
      assert re.fullmatch(r"[\w-]+/[\w.-]+", model.repository)
      assert re.fullmatch("[0-9a-f]{40}", model.revision or COMMIT)
    else:
      assert model.address.startswith("https://") and not model.revision
    checkpoint = f"cache/{model.name}/bert_model.ckpt"
    is_lower = model.do_lower_case
    tokenization.validate_case_matches_checkpoint(is_lower, checkpoint)
    if model.embedding:
      embedding_spec.EmbeddingSpec(**model.embedding)


@parametrize(
  "name, path",
  ("cased_L-24_H-1024_A-16", "vocab/cased.txt"),
  ("all-MiniLM-L6-v2", "vocab/uncased.txt"),
)
def test_hashes_are_those_of_the_published_files(name, path):
  with open(reference_data.data("bert", path), "rb") as published:
    assert TABLE[name].sha256["vocab.txt"] == sha256(published.read())


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


@parametrize("name", *ARCHIVES)
def test_models_are_unpacked_from_their_layouts(name, site, cache, monkeypatch):
  path = urllib.parse.urlsplit(TABLE[name].address).path
  site.files[path], files = archive_in_published_layout(TABLE[name])
  address = f"{site.url}{path}?dl=1"
  model = dataclasses.replace(TABLE[name], address=address, sha256=None)
  monkeypatch.setattr(initial_model, "load_table", lambda: {name: model})
  folder = zoo.fetch(name)
  assert folder == str(cache / name)
  assert contents(folder) == files
  assert zoo.checkpoint_path(folder) == str(cache / name / "bert_model.ckpt")


def test_the_folder_of_a_model_is_found_in_an_archive(publish):
  packed = within("all/a", FILES | {"vocab.txt": b"a"})
  packed += within("all/b", FILES | {"vocab.txt": b"b"})
  publish(tarred(packed), ".tar.gz", folder="b")
  assert contents(fetch())["vocab.txt"] == b"b"


def test_a_model_is_downloaded_once_without_archive(publish, site, cache, log):
  publish(zipped(FILES.items()))
  assert fetch() == fetch("small") == str(cache / "tiny")
  assert log[0] == "tiny by us, license unknown, see arxiv.org/abs/1"
  assert log[-1] == "tiny: not verified, its SHA-256 is not published"
  assert len(site.seen) == 1
  assert set(os.listdir(cache)) == {"tiny", "tiny.lock"}


def test_the_environment_sets_the_cache(monkeypatch):
  monkeypatch.delenv("BERT_CACHE_DIR")
  monkeypatch.setenv("HOME", "/h")
  assert zoo.default_cache_dir() == "/h/.cache/bert-estimator"
  monkeypatch.setenv("XDG_CACHE_HOME", "/x")
  assert zoo.default_cache_dir() == "/x/bert-estimator"
  monkeypatch.setenv("BERT_CACHE_DIR", "/b")
  assert zoo.default_cache_dir() == "/b"


def test_a_folder_already_in_the_cache_is_used(publish, cache, site):
  publish(b"")
  folder = place(cache / "tiny", renamed("model.ckpt-5"))
  assert zoo.checkpoint_path(fetch()) == str(folder / "model.ckpt-5")
  assert not site.seen


def test_an_incomplete_folder_is_refused(publish, cache):
  publish(b"")
  (cache / "tiny").mkdir(parents=True)
  (cache / "tiny" / INDEX).write_bytes(b"")
  message = "tiny: is incomplete, it lacks bert_config.json, .* remove the fol"
  assert_refused(message, fetch)


def test_an_archive_already_in_the_cache_is_used_and_kept(publish, cache, site):
  publish(zipped(FILES.items()))
  archive = cache / "tiny.zip"
  archive.parent.mkdir(exist_ok=True)
  archive.write_bytes(b"of the user")
  assert_refused(r"corrupt .* Remove it; download it", fetch)
  assert archive.read_bytes() == b"of the user"
  archive.write_bytes(zipped(FILES.items()))
  assert contents(fetch()) == FILES
  assert archive.exists() and not site.seen


def test_a_failed_download_is_repeated(publish, site):
  publish(zipped(FILES.items()))
  site.plans = [
    functools.partial(Handler.send_error, code=503),
    functools.partial(Handler.serve, until=100),
  ]
  assert contents(fetch()) == FILES
  assert len(site.seen) == 3


def test_a_failed_address_and_its_file_are_named(publish, refuse, site, cache):
  publish(b"")
  site.files.clear()
  refuse(rf"^{site.url}/tiny.zip: .* \(404.* save it as {cache}/tiny.zip$")


HASHES = {name: sha256(content) for name, content in FILES.items()}


def test_published_hashes_are_checked(publish, cache, log):
  publish(zipped(FILES.items()), sha256=HASHES)
  assert contents(fetch()) == FILES
  assert not any("SHA-256" in line for line in log)


@parametrize("file", *FILES)
def test_a_file_with_a_hash_not_published_is_refused(file, publish, refuse):
  publish(zipped(FILES.items()), sha256=HASHES | {file: "0" * 64})
  hashes = f"{file} is {HASHES[file]}, not {'0' * 64} as in"
  refuse(f"{hashes}.* Remove it; download", "tiny.zip")


# Repositories of the Hugging Face Hub


def repository_files():
  """Files of a repository, as sentence-transformers wrote them."""
  folder = Path(reference_data.golden("sentence_transformers", "5.1.2"))
  names = ("config.json", "tokenizer_config.json", "sentence_bert_config.json")
  names += ("model.safetensors", "1_Pooling/config.json")
  modules = run_outputs.read_json(folder / "modules.json")
  dense = modules.pop(2)
  assert dense["path"] == "2_Dense"
  ids = run_outputs.read_json(folder / "tokenizer.json")["model"]["vocab"]
  pieces = sorted(ids, key=ids.get)
  return {
    **{name: (folder / name).read_bytes() for name in names},
    "modules.json": json.dumps(modules).encode(),
    "vocab.txt": "".join(f"{piece}\n" for piece in pieces).encode(),
  }


@pytest.fixture
def publish_hub(site, publish, tmp_path, monkeypatch):
  """Publishes a repository as the model "tiny"; returns its files."""
  # huggingface_hub reads its environment when it is imported.
  monkeypatch.setenv("HF_ENDPOINT", site.url)
  monkeypatch.setenv("HF_HOME", str(tmp_path / "huggingface"))
  for name in list(sys.modules):
    if name.partition(".")[0] == "huggingface_hub":
      monkeypatch.delitem(sys.modules, name)

  def publish_hub(**entry):
    site.repository = repository_files()
    embedding = {"pooling": "cls", "normalize": True}
    entry.setdefault("embedding", embedding | {"prompts": {"query": PROMPT}})
    entry = {"repository": "us/tiny", "revision": COMMIT, **entry}
    publish(b"", address=None, **entry)
    return repository_files()

  return publish_hub


def test_a_repository_is_downloaded_and_converted(
  publish_hub, cache, site, tmp_path, log
):
  files = publish_hub()
  site.repository |= {"pytorch_model.bin": b"a pickle", "README.md": b""}
  assert zoo.checkpoint_path(fetch()) == str(cache / "tiny" / "bert_model.ckpt")
  description = run_outputs.read_json(cache / "tiny" / "model.json")
  assert description["script"] == "run_embeddings"
  assert description["max_seq_length"] == 24
  embedding = description["embedding"]
  assert (embedding["pooling"], embedding["normalize"]) == ("cls", True)
  assert embedding["prompts"] == {"query": PROMPT}
  assert set(os.listdir(cache)) == {"tiny", "tiny.lock"}
  # Only what is needed is downloaded.
  (snapshot,) = (tmp_path / "huggingface/hub").glob("models*/snapshots/*")
  found = {path for path in snapshot.rglob("*") if path.is_file()}
  assert found == {snapshot / name for name in files}
  assert not any("not verified" in line for line in log)


def test_a_plain_model_of_the_hub_is_converted(publish_hub, site, tmp_path):
  publish_hub(embedding=None)
  weights = tiny_huggingface.tensors("BertForPreTraining")
  source = Path(tiny_huggingface.write_folder(tmp_path / "plain", weights))
  site.repository = contents(source)
  folder = Path(fetch())
  description = run_outputs.read_json(folder / "model.json")
  assert description["do_lower_case"] is False
  # A task's default length and google-research/bert's length of words apply.
  assert not {"script", "max_input_chars_per_word"} & description.keys()
  saved = tf.train.load_checkpoint(zoo.checkpoint_path(str(folder)))
  assert saved.has_tensor("cls/seq_relationship/output_weights")
  run_outputs.assert_same_bits(
    {"words": saved.get_tensor("bert/embeddings/word_embeddings")},
    {"words": weights["bert.embeddings.word_embeddings.weight"]},
  )


def test_a_cut_download_of_a_repository_resumes(publish_hub, site):
  publish_hub()
  whole = len(site.repository["model.safetensors"])
  site.plans = [functools.partial(Handler.serve, until=10)] * 8
  fetch()
  assert not site.plans and whole > 10


def test_what_the_client_has_needs_no_network(publish_hub, site):
  publish_hub()
  os.rename(fetch(), f"{fetch()}.moved")
  site.shutdown()
  site.server_close()
  fetch()


def test_hashes_of_a_repository_are_checked(publish_hub, refuse, tmp_path):
  publish_hub(revision=None, sha256={"vocab.txt": "0" * 64})
  folder = tmp_path / "huggingface/hub/models--us--tiny"
  refuse(f"^{folder}: the SHA-256 of its vocab.txt is .* Remove it")


def test_prompts_of_the_repository_take_precedence(publish_hub, cache, site):
  publish_hub()
  config = json.dumps({"prompts": {"query": "q: ", "document": ""}}).encode()
  site.repository["config_sentence_transformers.json"] = config
  fetch()
  description = run_outputs.read_json(cache / "tiny" / "model.json")
  assert description["embedding"]["prompts"] == {"query": "q: "}


def test_a_repository_that_was_placed_in_the_cache_is_used_and_kept(
  publish_hub, cache, site
):
  for name, content in publish_hub().items():
    path = cache / "tiny.download" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
  fetch()
  assert not site.seen
  assert (cache / "tiny.download" / "1_Pooling" / "config.json").exists()


@parametrize(
  "name, content, reason",
  ("modules.json", None, "lacks modules.json"),
  ("vocab.txt", None, ".*vocab.txt"),
  ("model.safetensors", None, ".* has no weights"),
  ("model.safetensors", b"\0", ".*incomplete or corrupt "),
  ("model.safetensors", b"<html>", ".*is a web page"),
)
def test_a_repository_with_a_missing_or_corrupt_file_is_refused(
  name, content, reason, publish_hub, refuse, site, tmp_path
):
  publish_hub()
  del site.repository[name]
  if content:
    site.repository[name] = content
  folder = tmp_path / "huggingface/hub/models--us--tiny"
  refuse(f"^{folder}: {reason}.* Remove it")


def test_a_repository_that_cannot_be_downloaded_is_named(
  publish_hub, refuse, cache
):
  publish_hub(revision="1" * 40)
  refuse(rf"^us/tiny: cannot .* save it as {cache}/tiny.download$")


# Malicious and corrupt archives


COMPLETE = within("m", FILES)
LINKS = {
  "link": {"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"},
  "hard link": {"type": tarfile.LNKTYPE, "linkname": "../../../table.json"},
  "device": {"type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 5},
}
PACKED = {".zip": zipped, ".tar.gz": tarred}


def without(name):
  return within("m", {key: FILES[key] for key in FILES if key != name})


def zip_with_flags(flags):
  archive = bytearray(zipped(COMPLETE))
  for signature, offset in ((b"PK\x01\x02", 8), (b"PK\x03\x04", 6)):
    for start in re.finditer(signature, bytes(archive)):
      archive[start.start() + offset] |= flags
  return bytes(archive)


WEB_PAGE = b"<html>Please confirm that you are no robot</html>"
CORRUPT = "incomplete or corrupt archive"
NO_VOCAB = "lacks vocab.txt"
TWO_MODELS = r"has more than one model \(m"
ZIP, TAR = PACKED

# By name: archive, its ending, and the reason for refusing it.
HOSTILE = {
  "file twice": (tarred([*COMPLETE, ("m/vocab.txt", b"2")]), TAR, TWO_MODELS),
  "web page for a zip": (WEB_PAGE, ZIP, CORRUPT),
  "web page for a tar": (WEB_PAGE, TAR, CORRUPT),
  "encrypted": (zip_with_flags(0x1), ZIP, CORRUPT),
}
for name, kind in LINKS.items():
  archive = tarred([*without("vocab.txt"), ("m/vocab.txt", kind)])
  HOSTILE[f"{name} instead of a file"] = archive, TAR, NO_VOCAB
for name in (*FILES, "other.ckpt.index"):
  archive = zipped([*COMPLETE, (f"m2/{name}", b"of another")])
  HOSTILE[f"second {name}"] = archive, ZIP, TWO_MODELS
for name in FILES:
  reason = f"lacks {'a checkpoint' if name == INDEX else name}"
  HOSTILE[f"no {name}"] = zipped(without(name)), ZIP, reason


@parametrize("name", *HOSTILE)
def test_hostile_archives_are_refused(name, publish, refuse, tmp_path):
  archive, ending, reason = HOSTILE[name]
  publish(archive, ending)
  refuse(f"{reason}.* Remove it", f"tiny{ending}")
  assert set(os.listdir(tmp_path)) == {"cache", "table.json"}


@parametrize("path", *ESCAPES)
@parametrize("ending", *PACKED)
def test_paths_cannot_escape_the_folder(ending, path, publish, cache, tmp_path):
  packed = [(path.format(name), content) for name, content in FILES.items()]
  packed.append(("../../escaped.txt", b"free"))
  publish(PACKED[ending](packed), ending)
  assert contents(fetch()) == FILES
  assert set(os.listdir(tmp_path)) == {"cache", "table.json"}
  assert set(os.listdir(cache)) == {"tiny", "tiny.lock"}


def test_files_are_not_written_through_links(publish, tmp_path):
  link = {"type": tarfile.SYMTYPE, "linkname": str(tmp_path)}
  publish(tarred([("m", link), *COMPLETE]), ".tar.gz")
  assert contents(fetch()) == FILES
  assert set(os.listdir(tmp_path)) == {"cache", "table.json"}


@parametrize("ending", *PACKED)
def test_a_cut_archive_is_refused(ending, publish, tmp_path, monkeypatch):
  files = FILES | {f"bert_model.ckpt.{DATA}": b"data"}
  archive = publish(PACKED[ending](within("m", files)), ending)
  # A tar archive ends in zeros, which may be missing.
  for size in range(0, len(archive) - 70, 13):
    folder = tmp_path / str(size)
    folder.mkdir()
    (folder / f"tiny{ending}").write_bytes(archive[:size])
    monkeypatch.setenv("BERT_CACHE_DIR", str(folder))
    assert_refused(rf"{CORRUPT}|lacks", fetch)


def test_the_download_of_another_process_is_awaited(publish, site, cache, log):
  publish(zipped(FILES.items()))
  os.mkdir(cache)
  with ThreadPoolExecutor(1) as threads:
    with output_folders.wait_for_lock(f"{cache}/tiny.lock"):
      fetched = threads.submit(fetch)
      commands.wait_until(lambda: fetched.done() or "waiting" in str(log))
      place(cache / "tiny")
    assert fetched.result() == str(cache / "tiny")
  assert not site.seen


@pytest.mark.process
def test_a_disk_full_while_unpacking_keeps_the_archive(cache):
  name = next(iter(ARCHIVES))
  os.mkdir(cache)
  (cache / f"{name}.zip").write_bytes(zipped(FILES.items()))
  error = commands.fail("download_model.py", name, largest_file=50000)
  assert f"{DATA}: File too large. Make room there" in error
  assert {*os.listdir(cache)} == {f"{name}.zip", f"{name}.lock"}


def test_printed_flags_are_a_flag_file(publish, capsys, tmp_path, monkeypatch):
  publish(zipped(FILES.items()))
  cache = tmp_path / "models of mine"
  monkeypatch.setenv("BERT_CACHE_DIR", str(cache))
  with commands.in_process(download_model) as main:
    main("tiny")
  printed = capsys.readouterr().out
  assert printed == (
    f"--vocab_file={cache}/tiny/vocab.txt\n"
    f"--bert_config_file={cache}/tiny/bert_config.json\n"
    f"--init_checkpoint={cache}/tiny/bert_model.ckpt\n"
    "--do_lower_case=False\n"
  )
  path = tmp_path / "model.flags"
  path.write_text(printed)
  argv = command_line.read_flag_files(["x.py", f"--flagfile={path}"])
  assert argv[1] == f"--vocab_file={cache}/tiny/vocab.txt"
  assert len(argv) == 5


@parametrize(
  "wrong, hint",
  ("bert-base-uncasd", "Did you mean bert-base-uncased "),
  ("BERT-BASE-UNCASED", "Did you mean bert-base-uncased "),
  ("?", "docs/how_to/models.md lists all"),
)
def test_an_unknown_name_is_answered_with_a_hint(wrong, hint):
  assert_refused(rf"^{re.escape(wrong)}: no.*{hint}", initial_model.find, wrong)
