"""Tests of the pipeline, in the environment of Apache Beam.

`make test-beam` runs them; without `-m "not slow"` its command adds Dask.
"""

import glob
import hashlib
import json
import os

import commands
import pytest

pytest.importorskip("apache_beam", reason="make test-beam")

from apache_beam.io.filesystem import FileMetadata, MatchResult
from apache_beam.io.localfilesystem import LocalFileSystem

pytestmark = pytest.mark.process

SCRIPT = "create_pretraining_data_beam.py"
VOCAB = "[PAD] [UNK] [CLS] [SEP] [MASK] ##s one two three word of ."
PROCESSES = (
  "--runner=apache_beam.runners.portability.fn_api_runner.FnApiRunner",
  "--direct_running_mode=multi_processing",
  "--direct_num_workers=2",
)
# The default would download a runner.
IN_PROCESS = "--", "--runner=BundleBasedDirectRunner"
DASK = "--runner=apache_beam.runners.dask.dask_runner.DaskRunner"


class FarFileSystem(LocalFileSystem):
  """A file system that only Beam knows: `far://here/NAME` is `NAME`."""

  @classmethod
  def scheme(cls):
    return "far"

  def match(self, patterns, limits=None):
    def found(pattern):
      for path in glob.glob(local(pattern)):
        yield FileMetadata(f"far://here/{path}", os.path.getsize(path))

    return [MatchResult(pattern, [*found(pattern)]) for pattern in patterns]

  def create(self, path, *arguments, **options):
    return super().create(local(path), *arguments, **options)

  def open(self, path, *arguments, **options):
    return super().open(local(path), *arguments, **options)

  def exists(self, path):
    return super().exists(local(path))

  def rename(self, sources, targets):
    super().rename([*map(local, sources)], [*map(local, targets)])


def local(path):
  return path.removeprefix("far://here/")


@pytest.fixture
def folder(tmp_path, monkeypatch):
  """Changes to a folder with a vocabulary and two texts."""
  monkeypatch.chdir(tmp_path)
  monkeypatch.setenv("PYTHONPATH", commands.ROOT)  # for Beam's workers
  (tmp_path / "vocab.txt").write_text(VOCAB.replace(" ", "\n"))
  for name, number in (("a.txt", 40), ("b.txt", 25)):
    documents = (
      f"one word of {i} .\ntwo words .\r\nthree\rwords of two" * (1 + i % 5)
      for i in range(number)
    )
    (tmp_path / name).write_bytes("\n\n".join(documents).encode())
  return tmp_path


def flags(output_file, num_shards=3, input_file="a.txt,b*.txt"):
  return [
    f"--input_file={input_file}",
    "--max_predictions_per_seq=3",
    "--max_seq_length=16",
    f"--num_shards={num_shards}",
    f"--output_file={output_file}",
    "--vocab_file=vocab.txt",
  ]


# Input and output files on `FarFileSystem`.
FAR = flags("far://here/far", input_file="far://here/a.txt,far://here/b*")


def read_json(path):
  return json.loads(path.read_text())


def read_outputs(folder, name):
  """Contents of the three output files."""
  return [
    (folder / f"{name}-0000{number}-of-00003").read_bytes()
    for number in range(3)
  ]


def write_blocks(folder, *options):
  """Writes `blocks` by create_pretraining_data.py; returns their receipt."""
  arguments = *flags("blocks"), "--num_workers=1", *options
  commands.succeed("create_pretraining_data.py", *arguments)
  return read_json(folder / "blocks.run.json")


def test_files_and_receipt_equal_those_of_workers(folder):
  blocks = write_blocks(folder)
  commands.succeed(SCRIPT, *flags("beam"), "--", *PROCESSES, own_process=True)
  assert read_outputs(folder, "beam") == read_outputs(folder, "blocks")
  assert not [*folder.glob(".bert-tmp-*")]
  receipt = read_json(folder / "beam.run.json")
  assert receipt["script"] == SCRIPT
  assert receipt["given"] == flags("beam")
  assert [(file["use"], file["path"]) for file in receipt["files"]] == [
    ("text", "a.txt"),
    ("text", "b.txt"),
  ]
  assert receipt["results"] == blocks["results"]
  assert receipt["results"]["documents"] == 65
  assert receipt["results"]["sha256"] == [
    hashlib.sha256(content).hexdigest()
    for content in read_outputs(folder, "beam")
  ]


def test_files_of_other_records_equal_those_of_workers(folder):
  options = "--segments=sentences", "--pack"
  write_blocks(folder, *options)
  commands.succeed(SCRIPT, *flags("beam"), *options, *IN_PROCESS)
  assert read_outputs(folder, "beam") == read_outputs(folder, "blocks")


@pytest.mark.slow
def test_dask_writes_the_same_files_and_counts_nothing(folder):
  from dask.distributed import LocalCluster

  blocks = write_blocks(folder)
  with LocalCluster(n_workers=2, threads_per_worker=1) as cluster:
    address = f"--dask_client_address={cluster.scheduler_address}"
    done = commands.succeed(
      SCRIPT, *flags("beam"), "--", DASK, address, own_process=True
    )
  assert "Traceback" not in done.stderr
  assert read_outputs(folder, "beam") == read_outputs(folder, "blocks")
  results = read_json(folder / "beam.run.json")["results"]
  assert results == {"sha256": blocks["results"]["sha256"]}


@pytest.mark.parametrize("runner", ["Unknown", "un.known", "os.Runner"])
def test_unknown_runner_prints_one_line(folder, runner):
  line = commands.fail(SCRIPT, *flags("beam"), "--", f"--runner={runner}")
  assert f"-- --runner={runner}: " in line
  assert not [*folder.glob("beam*")]


def test_files_may_be_on_any_beam_file_system(folder):
  commands.succeed(SCRIPT, *flags("near"), *IN_PROCESS)
  commands.succeed(SCRIPT, *FAR, *IN_PROCESS)
  assert read_outputs(folder, "far") == read_outputs(folder, "near")
  receipt = read_json(folder / "far.run.json")
  assert [file["path"] for file in receipt["files"]] == [
    "far://here/a.txt",
    "far://here/b.txt",
  ]
  assert not [*folder.glob(".bert-tmp-*")]


def test_doctor_reads_from_beam_file_systems(folder):
  done = commands.succeed(SCRIPT, "--doctor", *FAR)
  statuses = [line.split()[:2] for line in done.stdout.splitlines()]
  assert ["pass", "input"] in statuses and ["pass", "text"] in statuses
  assert not [status for status, _ in statuses if status != "pass"]
  assert not [*folder.glob("far*")]


@pytest.mark.parametrize(
  ("changed", "expected"),
  [
    ({"num_shards": 99}, "65 documents are too few for 99 output files"),
    ({"input_file": "bytes"}, "bytes, line 1, byte 4: 0xFF is not UTF-8"),
  ],
)
def test_bad_input_prints_one_line(folder, changed, expected):
  (folder / "bytes").write_bytes(b"one\xff")
  assert expected in refuse(folder, **changed)


def refuse(folder, **changed):
  """The line of a run that fails; Beam logs the error before it."""
  done = commands.run(SCRIPT, *flags("beam", **changed), *IN_PROCESS)
  assert done.returncode == 1
  line = done.stderr.splitlines()[-1]
  assert line.startswith(f"{SCRIPT}: error: ")
  assert "while running" not in line
  assert not [*folder.glob("*.run.json")]
  return line


def test_files_of_an_earlier_run_do_not_count(folder):
  paths = [folder / f"beam-0000{number}-of-00003" for number in range(3)]
  for path in paths:
    path.write_bytes(b"earlier")
  (folder / "two.txt").write_text("one word .\n\ntwo words .\n")
  line = refuse(folder, input_file="two.txt")
  (missing,) = [path.name for path in paths if path.read_bytes() == b"earlier"]
  assert f"2 documents are too few for 3 output files; {missing} got" in line
