#!/usr/bin/env bash
# The two BertNormalizers of Hugging Face leave rare Chinese characters in words.
#
# Versions: tokenizers 0.23.3; @huggingface/tokenizers 0.2.0, Node.js 20.
# Expected: with handle_chinese_chars each character of the CJK blocks is a word
#   of its own, also beyond U+FFFF, as in google-research/bert, whose blocks are
#   20000-2A6DF, 2A700-2B73F, 2B740-2B81F, 2B820-2CEAF and 2F800-2FA1F.
# Happens: in JavaScript none beyond U+FFFF is: the text is taken apart into
#   UTF-16 units, whose numbers are in no block. In Rust the block 2B820-2CEAF
#   begins at 2B920, so 256 characters are not.
# Matters: names of people and places have such characters. In a run of text
#   without spaces they make one long word, mostly [UNK], of what Python splits.
#   One tokenizer.json gives other ids in a browser than on a server.
# Output:
#   first characters of a block   google  Rust  JavaScript
#   U+4E00                        alone   alone  alone
#   U+20000                       alone   alone  joined
#   U+2B740                       alone   alone  joined
#   U+2B820                       alone   joined joined
#   U+2B920                       alone   alone  joined
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile tokenizers==0.23.3 || exit 2
cd "$folder"
npm install --silent --ignore-scripts @huggingface/tokenizers@0.2.0 || exit 2
cat > finding.mjs <<'JAVASCRIPT'
import { Tokenizer } from "@huggingface/tokenizers";

const tokenizer = new Tokenizer(
  {
    added_tokens: [],
    normalizer: { type: "BertNormalizer", handle_chinese_chars: true },
    pre_tokenizer: { type: "BertPreTokenizer" },
    post_processor: null,
    decoder: null,
    model: { type: "WordPiece", unk_token: "[UNK]", vocab: { "[UNK]": 0 } },
  },
  {},
);
for (const point of process.argv.slice(2)) {
  const text = `a${String.fromCodePoint(Number(point))}b`;
  console.log(tokenizer.normalizer.normalize(text).includes(" "));
}
JAVASCRIPT
cat > finding.py <<'PYTHON'
import subprocess
import sys

from tokenizers import normalizers

POINTS = [0x4E00, 0x20000, 0x2B740, 0x2B820, 0x2B920]
normalizer = normalizers.BertNormalizer(handle_chinese_chars=True)
in_rust = [" " in normalizer.normalize_str(f"a{chr(x)}b") for x in POINTS]
command = ["node", "finding.mjs", *map(str, POINTS)]
lines = subprocess.check_output(command, text=True).split()
in_javascript = [line == "true" for line in lines]
words = {True: "alone", False: "joined"}
print("first characters of a block   google  Rust  JavaScript")
for point, *found in zip(POINTS, in_rust, in_javascript):
  row = (f"{words[x]:6}" for x in found)
  print(f"U+{point:<28X}alone   {' '.join(row)}".rstrip())
if in_rust != [True, True, True, False, True] or in_javascript != [
  point < 0x10000 for point in POINTS
]:
  sys.exit("changed: other characters are alone")
PYTHON
venv/bin/python finding.py
