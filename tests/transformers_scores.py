"""Labels and scores of a Hugging Face folder, computed by its own libraries.

A program of its own, since TensorFlow and PyTorch do not share a process:

  python transformers_scores.py TASK FOLDER EXAMPLES.json SCORES.json

EXAMPLES has a list, SCORES gets a list of (label, numbers) of the same length.
The task `make` writes the folder: a random model, which EXAMPLES describes.
"""

import json
import os
import shutil
import sys
import tempfile

import torch
import transformers


def load(folder, name):
  """The tokenizer and the model of a class, in float32."""
  tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
  model = getattr(transformers, name).from_pretrained(folder)
  return tokenizer, model.float().eval()


def encode(tokenizer, *texts, **options):
  """The inputs of a model for one text or pair."""
  return tokenizer(*texts, truncation=True, return_tensors="pt", **options)


def texts(folder, examples):
  """Label by `problem_type`, and all outputs, of texts or pairs."""
  tokenizer, model = load(folder, "AutoModelForSequenceClassification")
  names = model.config.id2label
  for example in examples:
    pair = [example] if isinstance(example, str) else example
    logits = model(**encode(tokenizer, *pair)).logits[0]
    if model.config.problem_type == "regression":
      yield None, logits.tolist()
    elif model.config.problem_type == "multi_label_classification":
      scores = logits.sigmoid()
      yield (
        [names[i] for i, s in enumerate(scores) if s >= 0.5],
        scores.tolist(),
      )
    else:
      yield names[int(logits.argmax())], logits.softmax(-1).tolist()


def choices(folder, examples):
  """Best choice, and the probability of each, of lists of pairs."""
  tokenizer, model = load(folder, "AutoModelForMultipleChoice")
  for pairs in examples:
    inputs = encode(tokenizer, *map(list, zip(*pairs)), padding=True)
    logits = model(**{k: v[None] for k, v in inputs.items()}).logits[0]
    yield str(int(logits.argmax())), logits.softmax(-1).tolist()


def words(folder, examples):
  """Tags and their probabilities, of lists of words."""
  tokenizer, model = load(folder, "AutoModelForTokenClassification")
  for sentence in examples:
    inputs = encode(tokenizer, sentence, is_split_into_words=True)
    best = model(**inputs).logits[0].softmax(-1).max(-1)
    first = {}
    for position, word in enumerate(inputs.word_ids()):
      if word is not None:
        first.setdefault(word, position)
    yield (
      [model.config.id2label[int(best.indices[i])] for i in first.values()],
      [float(best.values[i]) for i in first.values()],
    )


def questions(folder, examples):
  """Sum of the best answer's two logits, of questions and passages."""
  tokenizer, model = load(folder, "AutoModelForQuestionAnswering")
  for question, passage in examples:
    inputs = encode(tokenizer, question, passage)
    outputs = model(**inputs)
    spans = [i for i, part in enumerate(inputs.sequence_ids()) if part == 1]
    score = max(
      float(outputs.start_logits[0, i] + outputs.end_logits[0, j])
      for i in spans
      for j in spans
      if i <= j < i + 30
    )
    yield None, [score]


def masks(folder, examples):
  """Best words and their probabilities, of texts with one [MASK]."""
  tokenizer, model = load(folder, "AutoModelForMaskedLM")
  for text in examples:
    inputs = encode(tokenizer, text)
    position = inputs.input_ids[0].tolist().index(tokenizer.mask_token_id)
    best = model(**inputs).logits[0, position].softmax(-1).topk(5)
    yield (
      tokenizer.convert_ids_to_tokens(best.indices.tolist()),
      best.values.tolist(),
    )


def vectors(folder, examples):
  """No label, and the vector, of texts."""
  import sentence_transformers

  model = sentence_transformers.SentenceTransformer(folder, device="cpu")
  for vector in model.encode(examples):
    yield None, vector.tolist()


def pairs(folder, examples):
  """The score, or best label and the scores of all, by a cross-encoder."""
  import sentence_transformers

  model = sentence_transformers.CrossEncoder(folder, device="cpu")
  names = model.config.id2label
  if len(names) == 1:
    cut = {"text": {"truncation": "only_second"}}
    for score in model.predict(examples, processing_kwargs=cut).tolist():
      yield None, [score]
  else:
    for scores in model.predict(examples, apply_softmax=True):
      yield names[int(scores.argmax())], scores.tolist()


def states(folder, examples):
  """Tokens, and their last hidden states one after the other, of texts."""
  tokenizer, model = load(folder, "AutoModel")
  for text in examples:
    inputs = encode(tokenizer, text)
    tokens = tokenizer.convert_ids_to_tokens(inputs.input_ids[0].tolist())
    yield tokens, model(**inputs).last_hidden_state.flatten().tolist()


def make(folder, model):
  """Saves a random model of a class, as its library does."""
  torch.manual_seed(1)
  config = transformers.BertConfig(**model["config"])
  with tempfile.TemporaryDirectory() as plain:
    getattr(transformers, model["class"])(config).save_pretrained(plain)
    vocab = os.path.join(plain, "vocab.txt")
    shutil.copy(model["vocab"], vocab)
    tokenizer = transformers.BertTokenizerFast.from_pretrained(
      plain, model_max_length=96
    )
    os.remove(vocab)
    tokenizer.save_pretrained(plain)
    if model["library"]:
      import sentence_transformers

      load_here = getattr(sentence_transformers, model["library"])
      options = model["options"]
      if "prompts" in options:
        options["activation_fn"] = torch.nn.Identity()
      load_here(plain, device="cpu", **options).save_pretrained(folder)
    else:
      shutil.copytree(plain, folder)
  return []


def main(task, folder, examples_file, scores_file):
  """Writes the scores of the examples of a task."""
  with open(examples_file, encoding="utf-8") as file, torch.no_grad():
    scores = list(globals()[task](folder, json.load(file)))
  with open(scores_file, "w", encoding="utf-8") as file:
    json.dump(scores, file)


if __name__ == "__main__":
  main(*sys.argv[1:])
