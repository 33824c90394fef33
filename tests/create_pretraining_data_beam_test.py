"""Tests of the pipeline on Beam's DirectRunner; they need apache-beam."""

import commands
import pytest

pytestmark = pytest.mark.process

pytest.importorskip("apache_beam", reason="pip install -e .[beam]")

VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "##s", "one", "two"]
VOCAB += ["three", "word", "of", "."]


@pytest.fixture
def place(tmp_path):
  (tmp_path / "vocab.txt").write_text("\n".join(VOCAB))
  for name, number in (("a.txt", 40), ("b.txt", 25)):
    documents = (
      f"one word of {i} .\ntwo words .\r\nthree\rwords of two" * (1 + i % 5)
      for i in range(number)
    )
    (tmp_path / name).write_bytes("\n\n".join(documents).encode())
  return tmp_path


def make(run, place, script, name, *flags):
  return run(
    script,
    f"--input_file={place}/a.txt,{place}/b*.txt",
    f"--vocab_file={place}/vocab.txt",
    f"--output_file={place / name}",
    "--max_seq_length=16",
    "--max_predictions_per_seq=3",
    *flags,
  )


@pytest.mark.parametrize("options", [(), ("--", "--direct_num_workers=2")])
def test_the_files_are_those_of_workers(place, options):
  make(
    commands.succeed,
    place,
    "create_pretraining_data.py",
    "blocks",
    "--num_workers=1",
    "--num_shards=3",
  )
  make(
    commands.succeed,
    place,
    "create_pretraining_data_beam.py",
    "beam",
    "--num_shards=3",
    *options,
  )
  for shard in range(3):
    ending = f"-0000{shard}-of-00003"
    ours = (place / f"beam{ending}").read_bytes()
    assert ours and ours == (place / f"blocks{ending}").read_bytes()


def test_a_missing_file_costs_one_line(place):
  line = commands.fail(
    "create_pretraining_data_beam.py",
    f"--input_file={place}/c*.txt",
    f"--vocab_file={place}/vocab.txt",
    f"--output_file={place}/beam",
  )
  assert f"{place}/c*.txt: no such file" in line


def test_too_few_documents_cost_one_line(place):
  line = make(
    commands.fail,
    place,
    "create_pretraining_data_beam.py",
    "beam",
    "--num_shards=99",
  )
  assert "65 documents are too few for 99 output files" in line
