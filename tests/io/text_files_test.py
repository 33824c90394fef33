"""Tests of reading text: encodings, lines and invalid bytes."""

import bz2
import gzip
import io
import lzma
import pickle
import re
import sys
import zipfile

import pytest
import refused
from parametrize import parametrize
from refused import assert_refused

from bertlib.cli.errors import InputError
from bertlib.data import tf_records, vocabulary
from bertlib.io import document_files, text_files
from bertlib.io.text_files import Encoding

pytestmark = pytest.mark.unit

TEXT = "the cat\r\nsömé téxt\n\n中文\x85one\u2028line\rstill\nno end"
CHINESE = "今天天气很好，我们去公园散步吧。\n" * 3
RUSSIAN = "Привет мир, это простой текст на русском языке\n" * 3
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 9\n"
PAGE = b"\n<!DOCTYPE html>\n<html><body>Not found</body></html>\n"


def write(folder, content, name="text.txt"):
  (folder / name).write_bytes(content)
  return str(folder / name)


def refusal(path, encoding=text_files.UTF8):
  """Returns the error message after the path."""
  message = refused.refusal(list, text_files.read_lines(path, encoding))
  assert message.startswith(path)
  return message[len(path) :]


@parametrize(
  "name", "utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32-be", "gb18030"
)
@parametrize("block_bytes", 7, 2**20)
def test_lines_are_the_same_in_every_encoding(
  tmp_path, monkeypatch, name, block_bytes
):
  monkeypatch.setattr(text_files, "_BLOCK_BYTES", block_bytes)
  path = write(tmp_path, TEXT.encode(name))
  lines = [f"{line}\n" for line in TEXT.split("\n")]
  lines[-1] = lines[-1][:-1]
  encoding = Encoding(name)
  assert list(text_files.read_lines(path, encoding)) == lines
  found = list(document_files.read_lines(path, encoding))
  assert found == [line.encode() for line in lines]
  assert text_files.read_text(path, encoding) == TEXT


@parametrize("name", "utf-8", "utf-16-le", "utf-16-be")
def test_byte_order_mark_is_removed(tmp_path, name):
  path = write(tmp_path, "\ufeffa\ufeff\n".encode(name))
  assert list(text_files.read_lines(path, Encoding(name))) == ["a\ufeff\n"]
  path = write(tmp_path, "\ufeff".encode(name))
  assert not list(text_files.read_lines(path, Encoding(name)))


def test_gz_files_are_decompressed_and_stdin_is_read(tmp_path, monkeypatch):
  path = write(tmp_path, gzip.compress(TEXT.encode()), "text.gz")
  assert "".join(text_files.read_lines(path)) == TEXT
  assert_refused(f"^{path}: is compressed by gzip", text_files.read_text, path)
  stdin = io.TextIOWrapper(io.BytesIO(TEXT.encode("utf-16")))
  monkeypatch.setattr(sys, "stdin", stdin)
  assert text_files.read_text("-", Encoding("utf-16")) == TEXT


@parametrize("name", "utf-8", "utf-16", "gb18030")
@parametrize("block_bytes", 3, 2**20)
@parametrize(
  "content, lines",
  ("the cat\r\r中文\r", ["the cat\n", "\n", "中文\n"]),
  ("the cat\rno end", ["the cat\n", "no end"]),
  ("white\rspace\n", ["white\rspace\n"]),
  ("white\rspace\nno\rend", ["white\rspace\n", "no\rend"]),
  ("", []),
)
def test_cr_ends_lines_only_in_a_file_without_lf(
  tmp_path, monkeypatch, name, block_bytes, content, lines
):
  monkeypatch.setattr(text_files, "_BLOCK_BYTES", block_bytes)
  path = write(tmp_path, content.encode(name))
  encoding = Encoding(name)
  assert list(text_files.read_lines(path, encoding)) == lines
  found = list(document_files.read_lines(path, encoding))
  assert found == [line.encode() for line in lines]
  assert text_files.read_text(path, encoding) == "".join(lines)


@parametrize(
  "content, position, fault",
  ("a\nsömé téxt\n".encode("latin-1"), (2, 2), "0xF6 is not UTF-8"),
  (CHINESE.encode("gb18030"), (1, 1), "0xBD is not UTF-8"),
  (RUSSIAN.encode("koi8-r"), (1, 1), "0xF0 is not UTF-8"),
  (RUSSIAN.encode("utf-16-be"), (1, 13), "null bytes"),
  (CHINESE.encode("utf-16-le"), (1, 1), "is not UTF-8"),
  ("plain text\n".encode("utf-16"), (1, 1), "byte-order mark of UTF-16"),
  ("plain text\n".encode("utf-16-le"), (1, 2), "null bytes"),
  ("plain text\n".encode("utf-32"), (1, 1), "byte-order mark of UTF-32"),
  (b"a\n" + b"\0" * 100, (2, 1), "null bytes"),
  (bytes(range(1, 255)) * 9, (2, 118), "0x80 is not UTF-8"),
  (CHINESE.encode()[:-2], (3, 46), "ends within a character"),
  (b"a" + CHINESE.encode() + b"\xff", (4, 1), "0xFF is not UTF-8"),
  (b"a" * 2**21 + b"\nb\xe9c", (2, 2), "0xE9 is not UTF-8"),
  (b"a" * 2**21 + b"b\xe9c", (1, 2**21 + 2), "0xE9 is not UTF-8"),
  (b"a" * 2**20 + b"\0" * 2**20, (1, 2**20 + 1), "null bytes"),
  (b"a\rb\r\xe9 c\r", (3, 1), "0xE9 is not UTF-8"),
)
def test_invalid_bytes_have_their_position(tmp_path, content, position, fault):
  message = refusal(write(tmp_path, content))
  assert message.startswith(", line {}, byte {}: ".format(*position))
  assert fault in message


@parametrize(
  "content, encoding, fix",
  (RUSSIAN.encode("koi8-r"), None, "Convert it to UTF-8"),
  (
    RUSSIAN.encode("koi8-r"),
    text_files.UTF8,
    "Convert it to UTF-8, or name its encoding with --encoding",
  ),
  (
    RUSSIAN.encode("utf-16"),
    text_files.UTF8,
    "Convert it to UTF-8, or give --encoding=utf-16",
  ),
  (RUSSIAN.encode("utf-8-sig"), Encoding("cp1251"), "Leave out --encoding"),
)
def test_encodings_are_suggested_if_certain(tmp_path, content, encoding, fix):
  assert refusal(write(tmp_path, content), encoding).endswith(f". {fix}")


@parametrize(
  "text",
  *("PAR1 and PAR2\n", "GIF89a\n", "BZh91AY&SY\n", "%PDF-\n", "a\0b c\n"),
  *("<html>a</html>\tx\n", "<html>a</html>\n<html>b</html>\n"),
  *("{ann}\n", '{"a": 1} is a dict\n', "[\n", '{"a": b}\n', "1\n"),
)
def test_text_may_begin_like_another_format(tmp_path, text):
  path = write(tmp_path, text.encode())
  assert "".join(text_files.read_lines(path)) == text
  assert b"".join(document_files.read_lines(path)) == text.encode()
  assert list(text_files.read_pairs(path))


@parametrize(
  "content, name",
  (b"\0\1\0\2", "latin-1"),  # which takes any byte
  ("text\n".encode("utf-16"), "latin-1"),
  ("text\n".encode("utf-8-sig"), "cp1252"),
  (b"texts\n", "utf-16"),  # ideographs, taken so
  (b"texts", "utf-16-le"),
  ("é".encode(), "ascii"),
  (b"\x81", "cp1252"),
  (b"\\ud800", "raw_unicode_escape"),
)
def test_wrong_encoding_is_refused(tmp_path, content, name):
  message = refusal(write(tmp_path, content), Encoding(name))
  assert re.match(r", line 1, byte \d+: |: is not UTF-16", message)


def test_first_invalid_byte_is_found_in_any_block(tmp_path, monkeypatch):
  path = write(tmp_path, "中\nab中".encode() + b"\xe4\xb8\nrest")
  for size in (1, 2, 3, 5, 100):
    monkeypatch.setattr(text_files, "_BLOCK_BYTES", size)
    assert refusal(path).startswith(", line 2, byte 6: 0xE4")


def test_functions_of_the_original_drop_invalid_bytes(tmp_path):
  path = write(tmp_path, b"a\xe9b\0\n\xff\n" + b"\0" * 9)
  lines = list(text_files.read_lines(path, text_files.AS_ORIGINAL))
  assert lines == ["ab\0\n", "\n", "\0" * 9]


def test_incomplete_gz_file_is_refused(tmp_path):
  packed = gzip.compress(b"text " * 1000)
  for content in (b"plain text", packed[:-9], b"", gzip.compress(packed)):
    if content:
      assert refusal(write(tmp_path, content, "text.gz"))


def archive(name):
  """A zip archive of an empty file."""
  with io.BytesIO() as content:
    with zipfile.ZipFile(content, "w") as file:
      file.writestr(name, "")
    return content.getvalue()


@parametrize("name", "data.txt", "data.gz")
@parametrize("encoding", None, Encoding("latin-1"))
@parametrize(
  "content, kind",
  (archive("xl/workbook.xml"), "an Excel workbook"),
  (archive("word/document.xml"), "an office document"),
  (archive("a.txt"), "an archive"),
  (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(99), "an old Excel"),
  (LFS, "a pointer of Git LFS"),
  (PAGE, "a web page"),
  (PAGE.replace(b"\n", b" ").lower(), "a web page"),
  (bz2.compress(b"text"), "compressed by bzip2"),
  (lzma.compress(b"text"), "compressed by xz"),
  (pickle.dumps({"a": 1}), "a pickle"),
  # as pyarrow begins them
  (b"PAR1\x15\x04\x15\x12\x15\x16L\x15\x06\x15\x00\x12\x00", "a Parquet"),
  (b"ARROW1\x00\x00\xff\xff\xff\xffp\x01\x00\x00\x10\x00", "an Arrow"),
  (b"\xff\xff\xff\xffp\x01\x00\x00\x10\x00\x00\x00", "an Arrow"),
  (tf_records.frame_record(b"\n\x04text"), "a TFRecord file"),
)
def test_other_formats_are_named(tmp_path, content, encoding, kind, name):
  message = refusal(write(tmp_path, content, name), encoding)
  assert message.startswith(f": is {kind}")


def test_texts_of_json_lines_are_documents(tmp_path):
  objects = [
    r'{"id": 1, "text": "a b.\n \r\nc\u2028d"}',
    "",
    r'{"text": "\ud83de"}',
    '{"text": ""}',
  ]
  path = write(tmp_path, "\n".join(objects).encode())
  assert b"".join(document_files.read_lines(path)).decode().split("\n") == [
    *("a b.", "c\u2028d", "", "e", "", "", "")
  ]
  assert_refused("is JSON", list, text_files.read_pairs(path))


@parametrize(
  "content, line",
  ('{"text": "a"}\n{"content": "b"}', 2),
  ('{"text": "a"}\nb', 2),
  ('{"text": null}', 1),
  ('[{"text": "a"}, {"text": "b"}]', 1),
  ('{\n  "data": [1]\n}', 1),
)
def test_json_without_texts_is_refused(tmp_path, content, line):
  path = write(tmp_path, content.encode())
  with pytest.raises(InputError, match=f'^{path}, line {line}: .*"text"'):
    list(document_files.read_lines(path))


def test_vocabulary_may_begin_with_a_byte_order_mark(tmp_path):
  path = write(tmp_path, b"\xef\xbb\xbf[PAD]\r\n[UNK]\n\xc3\xa9\n")
  assert vocabulary.load(path) == {"[PAD]": 0, "[UNK]": 1, "é": 2}
  with pytest.raises(InputError, match=f"^{path}, line 2, byte 3"):
    vocabulary.load(write(tmp_path, b"[PAD]\nab\xff\n"))
