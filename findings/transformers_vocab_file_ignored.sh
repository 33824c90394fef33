#!/usr/bin/env bash
# BertTokenizer(vocab_file=...) of transformers 5 knows five tokens, silently.
#
# Versions: transformers 5.24.0, tokenizers 0.23.3.
# Expected: `vocab_file` is the argument of transformers 1 to 4, also by its
#   position in many scripts. It is read, or refused by TypeError.
# Happens: the argument is called `vocab` now. `vocab_file=` goes into the
#   keywords that are kept for the tokenizer's config, and the vocabulary is the
#   five special tokens, numbered from 0: every word is [UNK]. No warning, no
#   error; the same path as `vocab=` or as the first argument is read.
# Matters: a data set is tokenized into [UNK] alone, and trains. Check
#   `len(tokenizer)`.
# Output:
#   vocab_file=: 5 tokens, [2, 1, 1, 3]
#   vocab=:      7 tokens, [2, 5, 6, 3]
#   first:       7 tokens, [2, 5, 6, 3]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile \
  transformers==5.24.0 tokenizers==0.23.3 || exit 2
cat > "$folder/finding.py" <<'PYTHON'
import sys

import transformers

path = sys.argv[1] + "/vocab.txt"
words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "hello", "world"]
with open(path, "w") as file:
  file.write("\n".join(words) + "\n")
by_name = {
  "vocab_file=": transformers.BertTokenizer(vocab_file=path),
  "vocab=": transformers.BertTokenizer(vocab=path),
  "first": transformers.BertTokenizer(path),
}
found = {}
for name, tokenizer in by_name.items():
  found[name] = len(tokenizer), tokenizer("Hello world")["input_ids"]
  print(f"{name + ':':12} {found[name][0]} tokens, {found[name][1]}")
if found["vocab_file="][0] != 5 or found["vocab="] != (7, [2, 5, 6, 3]):
  sys.exit("changed: vocab_file is not ignored, or vocab is not read")
PYTHON
"$folder/venv/bin/python" "$folder/finding.py" "$folder"
