#!/usr/bin/env bash
# encode_document ignores a "passage" prompt, and a saved folder keeps that.
#
# Versions: sentence-transformers 6.2.0, transformers 5.24.0, torch 2.14.1.
# Expected: encode_query and encode_document use the prompts of the model. For
#   documents the names "document", "passage" and "corpus" are looked up in this
#   order, so a model with the prompts of E5, "query" and "passage", is served.
# Happens: every model has a "document" prompt, "" if none was given, and the
#   empty one is found first. encode_document then adds nothing. The empty
#   prompt is written to the folder too, where it looks like the author's
#   choice.
# Matters: queries have their prefix and passages do not, which costs quality in
#   a search without any sign. Name the prompt "document" (and "passage" beside
#   it), or call encode(..., prompt_name="passage").
# Output:
#   prompts: {'query': 'query: ', 'document': '', 'passage': 'passage: '}
#   encode_query uses: 'query: '
#   encode_document uses: no prompt
#   the same after save and load: no prompt
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile transformers==5.24.0 \
  sentence-transformers==6.2.0 torch==2.14.1 || exit 2
cat > "$folder/finding.py" <<'PYTHON'
import sys

import numpy as np
import sentence_transformers
import transformers
from sentence_transformers.sentence_transformer import modules

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
PROMPTS = {"query": "query: ", "passage": "passage: "}
TEXT = "red apples"
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS += ["query", "passage", ":", "red", "apples"]


def small_encoder(folder):
  """Writes a BERT of one layer with random weights."""
  transformers.set_seed(0)
  config = transformers.BertConfig(
    vocab_size=len(WORDS),
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=16,
  )
  transformers.BertModel(config).save_pretrained(folder)
  vocabulary = {word: i for i, word in enumerate(WORDS)}
  transformers.BertTokenizer(vocab=vocabulary).save_pretrained(folder)
  return folder


def prompt_used(model, vector):
  for prompt in ("", *PROMPTS.values()):
    if np.allclose(vector, model.encode(prompt + TEXT), atol=1e-5):
      return repr(prompt) if prompt else "no prompt"
  return "unknown"


encoder = modules.Transformer(small_encoder(sys.argv[1] + "/encoder"))
pooling = modules.Pooling(encoder.get_embedding_dimension())
model = sentence_transformers.SentenceTransformer(
  modules=[encoder, pooling], prompts=PROMPTS, device="cpu"
)
model.save(sys.argv[1] + "/saved")
saved = sentence_transformers.SentenceTransformer(
  sys.argv[1] + "/saved", device="cpu"
)
query = prompt_used(model, model.encode_query(TEXT))
document = prompt_used(model, model.encode_document(TEXT))
reloaded = prompt_used(saved, saved.encode_document(TEXT))
print(f"prompts: {model.prompts}")
print(f"encode_query uses: {query}")
print(f"encode_document uses: {document}")
print(f"the same after save and load: {reloaded}")
if (query, document, reloaded) != ("'query: '", "no prompt", "no prompt"):
  sys.exit("changed: encode_document uses another prompt")
PYTHON
HF_HUB_OFFLINE=1 "$folder/venv/bin/python" "$folder/finding.py" "$folder"
