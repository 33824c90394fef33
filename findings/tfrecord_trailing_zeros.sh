#!/usr/bin/env bash
# The package tfrecord drops zero bytes at the end of several byte strings.
#
# Versions: tfrecord 1.14.6, numpy 2.4.6.
# Expected: a bytes feature is read as it was written, with one value or
#   several.
# Happens: one value is returned as it is. Two or more become a NumPy array of
#   fixed-width strings (dtype S4), which cannot tell b"\1\0\0\0" from b"\1".
#   The file is right: the record itself has all bytes.
# Matters: little-endian numbers, hashes and compressed data end in zeros now
#   and then, so only some records are damaged, and a test with one value
#   passes.
# Output:
#   in the record:   [b'\x01\x00\x00\x00', b'\x00\x01\x00\x00']
#   read, one value: [b'\x01\x00\x00\x00']
#   read, two:       [b'\x01', b'\x00\x01']
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile \
  tfrecord==1.14.6 numpy==2.4.6 || exit 2
cat > "$folder/finding.py" <<'PYTHON'
import struct
import sys

import tfrecord

path = sys.argv[1]
values = [struct.pack("<i", number) for number in (1, 256)]
writer = tfrecord.TFRecordWriter(path)
writer.write({"one": (values[:1], "byte"), "two": (values, "byte")})
writer.close()

(record,) = tfrecord.tfrecord_iterator(path)
example = tfrecord.example_pb2.Example.FromString(bytes(record))
written = list(example.features.feature["two"].bytes_list.value)
(read,) = tfrecord.tfrecord_loader(path, None, {"one": "byte", "two": "byte"})
one, two = [bytes(read["one"])], [bytes(value) for value in read["two"]]
print(f"in the record:   {written}")
print(f"read, one value: {one}")
print(f"read, two:       {two}")
if written != values or one != values[:1] or two == values:
  sys.exit("changed: byte strings are read in another way")
PYTHON
"$folder/venv/bin/python" "$folder/finding.py" "$folder/data.tfrecord"
