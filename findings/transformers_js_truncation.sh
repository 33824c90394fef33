#!/usr/bin/env bash
# truncation of transformers.js drops [SEP], and of a pair the second text.
#
# Versions: @huggingface/transformers 4.3.2, Node.js 20.
# Expected: truncation: true shortens the texts, the longest first, and keeps the
#   special tokens, as truncation=True does in Python.
# Happens: the finished row is cut at max_length: the last [SEP] is gone, and of
#   a pair all of the second text. There is no warning.
# Matters: all pipelines of texts ask for it. A classifier or an encoder gets a
#   row as it has never seen one, and a reranker scores a query without its
#   passage. Texts that fit are right, so tests with short ones do not show it.
# Output:
#   max_length 5, one text: [CLS] red red red red
#   max_length 6, a pair: [CLS] red red red red red
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --ignore-scripts @huggingface/transformers@4.3.2 || exit 2
cat > finding.mjs <<'JAVASCRIPT'
import { BertTokenizer } from "@huggingface/transformers";

const words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "red", "blue"];
const vocab = Object.fromEntries(words.map((word, id) => [word, id]));
const text = (name, type_id) => ({ Sequence: { id: name, type_id } });
const special = (id, type_id) => ({ SpecialToken: { id, type_id } });
const single = [special("[CLS]", 0), text("A", 0), special("[SEP]", 0)];
const special_tokens = Object.fromEntries(
  ["[CLS]", "[SEP]"].map((id) => [id, { id, ids: [vocab[id]], tokens: [id] }]),
);
const tokenizer = new BertTokenizer(
  {
    version: "1.0",
    added_tokens: [],
    normalizer: { type: "BertNormalizer", clean_text: true, lowercase: true },
    pre_tokenizer: { type: "BertPreTokenizer" },
    post_processor: {
      type: "TemplateProcessing",
      single,
      pair: [...single, text("B", 1), special("[SEP]", 1)],
      special_tokens,
    },
    decoder: { type: "WordPiece", prefix: "##", cleanup: true },
    model: {
      type: "WordPiece",
      unk_token: "[UNK]",
      continuing_subword_prefix: "##",
      max_input_chars_per_word: 100,
      vocab,
    },
  },
  { pad_token: "[PAD]", sep_token: "[SEP]", unk_token: "[UNK]" },
);
const red = "red ".repeat(9);
const tokens = (options) =>
  tokenizer(red, { truncation: true, return_tensor: false, ...options })
    .input_ids.map((id) => words[id]);
const one = tokens({ max_length: 5 });
const pair = tokens({ max_length: 6, text_pair: "blue" });
console.log("max_length 5, one text:", ...one);
console.log("max_length 6, a pair:", ...pair);
if (one.includes("[SEP]") || pair.includes("blue")) {
  console.log("changed: special tokens or the second text are kept");
  process.exit(1);
}
JAVASCRIPT
node finding.mjs
