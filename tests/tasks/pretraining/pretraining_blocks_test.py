"""Tests of pretraining data in blocks, and of resuming stopped runs."""

import dataclasses
import os
import re
import shutil
import signal
import sys
from collections import Counter
from itertools import chain

import commands
import pytest
from hypothesis import given
from hypothesis import strategies as st
from parametrize import parametrize
from pretraining_corpus import Corpus, parsed, parts, read_file

from bertlib.io import files, text_files
from bertlib.tasks.pretraining import pretraining_blocks, pretraining_text
from bertlib.tasks.pretraining.pretraining_blocks import BlockRun
from bertlib.tasks.pretraining.recipe import Recipe

pytestmark = pytest.mark.process


@pytest.mark.unit
@given(
  documents=st.lists(st.lists(st.integers(1, 30), min_size=1)),
  block_bytes=st.integers(1, 100),
  num_blocks=st.integers(1, 7),
  file_number=st.integers(0, 9),
)
def test_every_document_is_dealt_once_and_evenly(
  documents, block_bytes, num_blocks, file_number
):
  lines = [
    [b"%d %s" % (number, b"x" * length) for length in document]
    for number, document in enumerate(documents)
  ]
  text = b"\n\n \n".join(b"\r\n".join(document) for document in lines)
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(pretraining_blocks, "BLOCK_BYTES", block_bytes)
    lines_of_text = text.splitlines(keepends=True)
    sizes = file_number, num_blocks, 0
    dealt = pretraining_blocks.deal_documents(lines_of_text, *sizes)
    dealt = list(dealt)
  found = [document.splitlines() for _, document in dealt]
  assert all(document.pop() == b"" for document in found)
  assert [*chain(*found)] == [*chain(*lines)]
  for document in found:
    assert len({line.split()[0] for line in document}) == 1
    # Without its last line it is smaller than a block, or it had been split.
    assert sum(map(len, document[:-1])) < block_bytes
  if all(sum(map(len, document)) < block_bytes / 2 for document in lines):
    assert len(found) == len(lines)
  sizes = Counter(block for block, _ in dealt)
  sizes = [sizes[block] for block in range(num_blocks)]
  assert max(sizes) - min(sizes) <= 1
  assert sum(sizes) == len(dealt)


@pytest.mark.unit
def test_files_of_one_document_are_dealt_evenly_too():
  blocks = Counter()
  for number in range(23):
    dealt = pretraining_blocks.deal_documents([b"word"], number, 5, 0)
    blocks.update(block for block, _ in dealt)
  assert sorted(blocks.values()) == [4, 4, 5, 5, 5]


@pytest.mark.unit
@parametrize("encoding", "utf-8", "utf-16", "latin-1")
def test_the_encoding_does_not_change_blocks(tmp_path, monkeypatch, encoding):
  monkeypatch.setattr(pretraining_blocks, "BLOCK_BYTES", 10)
  path = tmp_path / "text"
  path.write_bytes(f"{50 * 'é'}\n".encode(encoding))  # 101 bytes of UTF-8
  encoding = text_files.Encoding(encoding)
  assert pretraining_blocks.count_blocks([str(path)], 1, encoding) == 11


@pytest.fixture
def small_blocks(monkeypatch, text_file):
  """Makes blocks so small that the text has six, for two output files."""
  size = os.path.getsize(text_file)
  monkeypatch.setattr(pretraining_blocks, "BLOCK_BYTES", size // 5)
  assert pretraining_blocks.count_blocks([text_file], 2) == 6


def write_times(paths):
  return [path.stat().st_mtime_ns for path in paths]


def run_blocks(recipe, text_file, outputs, num_workers=1):
  """Runs in this process; returns the contents of the output files."""
  counts = BlockRun(recipe, [text_file], [*map(str, outputs)]).run(num_workers)
  content = [path.read_bytes() for path in outputs]
  assert counts["records"] == sum(len(read_file(path)) for path in outputs)
  return content


def documents_of(records):
  """Indices of the documents of `text_file` that records are made of."""
  corpus = Corpus([[[1, 2], [3, 1, 2]] * 3 for _ in range(20)])
  found = [parts(parsed(record)) for record in records]
  tokens = chain.from_iterable(chain.from_iterable(found))
  return {corpus.positions[token][0] for token in tokens}


@pytest.mark.usefixtures("small_blocks")
def test_a_pass_has_all_blocks_before_the_next(tmp_path, vocab_file, text_file):
  recipe = Recipe(vocab_file=vocab_file, max_seq_length=24, dupe_factor=4)
  run_blocks(recipe, text_file, [tmp_path / "a"])
  records = read_file(tmp_path / "a")
  half = len(records) // 2
  assert documents_of(records[:half]) == documents_of(records[half:])


@pytest.mark.usefixtures("small_blocks")
@parametrize(
  "options",
  {},
  {"segments": "sentences", "mask_split": (1, 0, 0)},
  {"segments": "documents", "do_span_mask": True},
  {"short_seq_prob": 0.9, "pack": True, "max_sequences_per_row": 4},
  ids=str,
)
def test_any_workers_make_equal_files(tmp_path, vocab_file, text_file, options):
  recipe = Recipe(vocab_file=vocab_file, max_seq_length=24, **options)
  outputs = [[tmp_path / f"{run}-{n}" for n in range(2)] for run in "ab"]
  content = run_blocks(recipe, text_file, outputs[0])
  assert content == run_blocks(recipe, text_file, outputs[1], num_workers=2)
  # A finished run is found again.
  before = write_times(outputs[0])
  assert content == run_blocks(recipe, text_file, outputs[0])
  assert write_times(outputs[0]) == before
  if not options:
    found = [documents_of(read_file(path)) for path in outputs[0]]
    assert sorted([*found[0], *found[1]]) == list(range(20))
    assert {len(documents) for documents in found} <= {9, 10, 11}


@pytest.mark.unit
def test_at_most_one_pass_of_a_block_is_in_memory(vocab_file):
  recipe = Recipe(vocab_file=vocab_file, max_seq_length=16, dupe_factor=5)
  counts = Counter()
  tokenizer = pretraining_text.load_tokenizer(recipe)
  lines = Corpus([[[1, 1, 1]] * 12] * 8).lines * 40
  held = [
    sys.getallocatedblocks()
    for number in range(3)
    for _ in pretraining_blocks.create_block_records(
      recipe, tokenizer, number, lines, counts
    )
  ]
  records_per_pass = counts["records"] / 15
  assert records_per_pass > 1000
  # Fewer new objects than records of one pass.
  assert max(held) - max(held[:5]) < records_per_pass


def test_remote_output_equals_local_output(tmp_path, vocab_file, text_file):
  recipe = Recipe(vocab_file=vocab_file, max_seq_length=24)
  (expected,) = run_blocks(recipe, text_file, [tmp_path / "local"])
  (remote_text,) = files.find_files([f"file://{text_file}*"])
  remote = f"file://{tmp_path}/remote"
  BlockRun(recipe, [remote_text], [remote]).run(1)
  assert (tmp_path / "remote").read_bytes() == expected
  before = write_times([tmp_path / "remote"])
  BlockRun(recipe, [remote_text], [remote]).run(1)
  assert write_times([tmp_path / "remote"]) == before


@pytest.fixture
def made(tmp_path, vocab_file, text_file):
  """A finished run: text, vocabulary, recipe and output files."""
  text, vocab = str(tmp_path / "text.txt"), str(tmp_path / "vocab.txt")
  shutil.copy(text_file, text)
  shutil.copy(vocab_file, vocab)
  recipe = Recipe(vocab_file=vocab, max_seq_length=24, dupe_factor=2)
  outputs = [tmp_path / f"out-{number}" for number in range(3)]
  run_blocks(recipe, text, outputs)
  return text, vocab, recipe, outputs


def test_only_a_missing_or_truncated_file_is_written_again(made):
  text, _, recipe, outputs = made
  content = [path.read_bytes() for path in outputs]
  before = write_times(outputs)
  outputs[0].unlink()
  outputs[2].write_bytes(content[2][:-1])
  assert run_blocks(recipe, text, outputs) == content
  assert write_times(outputs)[1] == before[1]


@parametrize("changed", "seed", "vocabulary", "text")
def test_a_changed_recipe_or_text_redoes_every_file(made, changed):
  text, vocab, recipe, outputs = made
  before = write_times(outputs)
  if changed == "seed":
    recipe = dataclasses.replace(recipe, random_seed=1)
  elif changed == "vocabulary":
    with open(vocab, "a") as file:
      file.write("\nanother")
  else:
    with open(text, "r+") as file:
      file.write("w0003")  # the size stays the same
  run_blocks(recipe, text, outputs)
  assert not set(before) & set(write_times(outputs))


class Stopped:
  """A run with six output files of two blocks each, which tests stop."""

  def __init__(self, folder, text_file, vocab_file):
    self.folder = folder
    self.text_file = str(folder / "text.txt")
    with open(text_file, "rb") as file:
      (folder / "text.txt").write_bytes(file.read() * 60)
    self.vocab_file = vocab_file
    self.content = self.run(commands.succeed, "whole", num_workers=1)

  def script(self, *lines):
    """Writes a script that executes `lines`, then creates small blocks."""
    block_bytes = os.path.getsize(self.text_file) // 11
    path = self.folder / "script.py"
    program = [
      f"import sys; sys.path.insert(0, {commands.ROOT!r})",
      "import multiprocessing, os, signal",
      "import create_pretraining_data",
      "from bertlib.cli import app",
      "from bertlib.tasks.pretraining import pretraining_blocks",
      "if __name__ == '__main__':",
      *(f"  {line}" for line in lines),
      f"  pretraining_blocks.BLOCK_BYTES = {block_bytes}",
      "  create_pretraining_data.define_flags()",
      "  app.run(create_pretraining_data.main)",
    ]
    path.write_text("\n".join(program))
    return str(path)

  def flags(self, name, num_workers):
    return [
      f"--input_file={self.text_file}",
      f"--vocab_file={self.vocab_file}",
      f"--output_file={self.folder / name / 'out'}",
      "--num_shards=6",
      "--dupe_factor=3",
      f"--num_workers={num_workers}",
    ]

  def run(self, run, name, *lines, num_workers=2, **options):
    """Runs the script until it ends; returns the output files by name."""
    script = self.script(*lines)
    flags = self.flags(name, num_workers)
    self.done = run(script, *flags, own_process=True, **options)
    return self.files(name)

  def files(self, name):
    paths = (self.folder / name).glob("out-0000?-of-00006")
    return {path.name: path.read_bytes() for path in paths}

  def others(self, name):
    """Names of the other files in the folder."""
    found = {path.name for path in (self.folder / name).glob("*")}
    return found - set(self.content)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory, text_file, vocab_file):
  return Stopped(tmp_path_factory.mktemp("stopped"), text_file, vocab_file)


RECEIPT = ".out-00000-of-00006.receipt.json"

# Runs a line when the second output file is about to get its final name.
AT_THE_SECOND = [
  "replace, seen = os.replace, []",
  "def at_the_second(source, path):",
  "  seen.append(path) if path[-8:] == 'of-00006' else None",
  "  if len(seen) == 2: {}",
  "  replace(source, path)",
  "os.replace = at_the_second",
]


def test_a_complete_run_leaves_its_files_and_a_receipt(stopped):
  assert len(stopped.content) == 6 and all(stopped.content.values())
  assert stopped.others("whole") == {RECEIPT, "out.run.json"}
  stopped.run(commands.succeed, "again")
  assert stopped.files("again") == stopped.content


def test_a_killed_run_resumes_with_the_missing_files(stopped):
  die = "os.kill(os.getpid(), signal.SIGKILL)"
  lines = [line.format(die) for line in AT_THE_SECOND]
  # The log ends only when the workers, which have it open too, have ended.
  kept = stopped.run(commands.run, "killed", *lines, timeout=600)
  assert stopped.done.returncode == -signal.SIGKILL
  assert len(kept) == 1
  assert kept.items() <= stopped.content.items()
  names = [n for n in stopped.others("killed") if n.startswith(".bert-tmp-")]
  half_written = {re.sub(r"^\.bert-tmp-[0-9a-f]{8}-\d+-", "", n) for n in names}
  second = half_written - {"out-00000-of-00006.blocks"}
  assert len(half_written) == 2 and len(second) == 1
  (path,) = ((stopped.folder / "killed" / name) for name in kept)
  before = path.stat().st_mtime_ns

  files = stopped.run(commands.succeed, "killed")
  assert "1 of 6 output files already exist" in stopped.done.stderr
  assert files == stopped.content
  assert path.stat().st_mtime_ns == before
  assert stopped.others("killed") == {RECEIPT, "out.run.json"}


def test_a_dead_worker_is_a_one_line_error_and_complete_files_are_kept(stopped):
  children = "multiprocessing.active_children()"
  die = f"[os.kill(child.pid, signal.SIGKILL) for child in {children}]"
  lines = [line.format(die) for line in AT_THE_SECOND]
  kept = stopped.run(commands.run, "worker", *lines, timeout=600)
  assert stopped.done.returncode == 1
  assert "Traceback" not in stopped.done.stderr
  fault = "script.py: error: a worker died (killed, or out of memory)."
  assert stopped.done.stderr.splitlines()[-1].startswith(fault)
  assert 0 < len(kept) < 6
  assert kept.items() <= stopped.content.items()
  assert stopped.others("worker") == {RECEIPT}
  assert stopped.run(commands.succeed, "worker") == stopped.content


@parametrize(
  "full_at, named",
  ("text", "output"),
  (
    "records",
    r"{}/\.bert-tmp-\w+-\d+-out-00000-of-00006\.blocks/\d+\.tfrecord",
  ),
  ("file", r"{}/out-0000\d-of-00006"),
  ("in memory", "{}/out-00000-of-00006"),
)
def test_a_full_disk_is_a_one_line_error(stopped, full_at, named):
  size = min(map(len, stopped.content.values()))
  text_size = os.path.getsize(stopped.text_file)
  room = {"text": text_size // 24, "file": size * 3 // 4}
  room = room.get(full_at, size // 4)
  num_workers = 0 if full_at == "in memory" else 2
  options = {"largest_file": room, "num_workers": num_workers}
  files = stopped.run(commands.run, full_at, **options)
  assert stopped.done.returncode == 1
  assert "Traceback" not in stopped.done.stderr
  line = stopped.done.stderr.splitlines()[-1]
  named = named.replace("{}", re.escape(str(stopped.folder / full_at)))
  assert re.match(rf"script\.py: error: {named}: File too large", line)
  assert not files
  assert not stopped.others(full_at)
