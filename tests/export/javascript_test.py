"""Tests of exports and of their page in Node.js and in a browser.

    python -m pytest -m slow tests/export/javascript_test.py

They install transformers.js from npm, without its scripts, which download CUDA.
"""

import functools
import http.server
import json
import os
import queue
import re
import shutil
import subprocess
import threading

import commands
import numpy as np
import pytest
import signatures_test

import export_model
from bertlib.export import OnnxModel

pytest.importorskip("onnx", reason="pip install -e .[onnx]")
pytest.importorskip("onnxruntime", reason="pip install -e .[test]")

pytestmark = [
  pytest.mark.slow,
  pytest.mark.skipif(not shutil.which("npm"), reason="Node.js"),
]

PACKAGE = "@huggingface/transformers@4.3.2"
TEXTS = [
  "the cat sat",
  "Is it GOOD? (bad, good)",
  "Résumé 中文",
  "ΑΣ' ΣΑΣ",
  "[SEP]",
]
QUESTION = "is it good?"
KINDS = {
  **signatures_test.MODELS,
  **signatures_test.EMBEDDINGS,
  "quantized": signatures_test.EMBEDDINGS["embeddings, mean"],
}

# Numbers of each pipeline by the folder of its model.
PIPELINES = """
import * as transformers from "@huggingface/transformers";

const { AutoModel, AutoTokenizer, env, pipeline } = transformers;

const of = (...given) => given;
const calls = {
  classification: of("text-classification", { top_k: null }),
  multi_label: of("text-classification", { top_k: null }),
  ner: of("token-classification", { ignore_labels: [] }),
  squad_1: of("question-answering"),
  mean: of("feature-extraction", { pooling: "mean", normalize: true }),
  cls: of("feature-extraction", { pooling: "cls", normalize: true }),
  quantized: of("feature-extraction", { pooling: "mean", normalize: true }),
};

export async function compute(root, texts, question) {
  env.allowRemoteModels = env.useBrowserCache = false;
  env.allowLocalModels = true;
  env.localModelPath = root;
  const found = {};
  for (const [folder, [task, options]] of Object.entries(calls)) {
    const run = await pipeline(task, folder);
    const call = (text) => options ? run(text, options) : run(question, text);
    found[folder] = [];
    for (const text of texts) {
      const output = await call(text);
      found[folder].push(output.tolist?.()[0] ?? output);
    }
  }
  const tokenizer = await AutoTokenizer.from_pretrained("max");
  const model = await AutoModel.from_pretrained("max");
  const outputs = await model(tokenizer(texts, { padding: true }));
  return { ...found, max: outputs.sentence_embedding.tolist() };
}
"""
IN_NODE = """
import { compute } from "./pipelines.mjs";
import { readFileSync } from "node:fs";
const given = JSON.parse(readFileSync("arguments.json"));
console.log(JSON.stringify(await compute(...given)));
"""
IN_BROWSER = """<!doctype html><meta charset="utf-8">
<script type="importmap">{"imports": {"@huggingface/transformers":
  "/node_modules/@huggingface/transformers/dist/transformers.min.js"}}</script>
<script type="module">
import { env } from "@huggingface/transformers";
import { compute } from "/pipelines.mjs";
env.backends.onnx.wasm.wasmPaths = "/node_modules/onnxruntime-web/dist/";
const [, ...given] = await (await fetch("/arguments.json")).json();
const found = await compute("/exported/", ...given).catch(String);
await fetch("/", { method: "POST", body: JSON.stringify(found) });
</script>
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
  """A folder with transformers.js, and with models in `exported`."""
  place = tmp_path_factory.mktemp("javascript")
  install = ["npm", "install", "--ignore-scripts", PACKAGE]
  done = subprocess.run(install, cwd=place, capture_output=True, check=False)
  if done.returncode:
    pytest.skip(f"{PACKAGE} cannot be installed")
  (place / "models").mkdir()
  texts = place / "texts.txt"
  texts.write_text("\n".join(signatures_test.WORDS), encoding="utf-8")
  with commands.in_process(export_model) as main:
    for kind, model in KINDS.items():
      name = kind.rpartition(" ")[2]
      folder = signatures_test.make_model(place / "models" / name, **model)
      flags = [f"--model_dir={folder}", f"--export_dir={place}/exported/{name}"]
      if kind == "quantized":
        flags += ["--quantize=int8", f"--calibration_file={texts}"]
      main(*flags, "--format=onnx")
  given = [f"{place}/exported/", TEXTS, QUESTION]
  (place / "arguments.json").write_text(json.dumps(given))
  (place / "pipelines.mjs").write_text(PIPELINES, encoding="utf-8")
  return place


def node(place, code):
  (place / "script.mjs").write_text(code, encoding="utf-8")
  return subprocess.run(
    ["node", "script.mjs"], cwd=place, stdout=subprocess.PIPE, check=True
  ).stdout.decode()


def best_span(logits, sep):
  """Score of the pipeline: no span in the question, nor [CLS]."""
  is_text = np.arange(logits.shape[1]) > sep
  is_text[0] = True
  powers = np.where(is_text, np.exp(logits), 0.0)
  start, end = powers / powers.sum(axis=1, keepdims=True)
  return np.triu(np.outer(start, end))[1:, 1:].max()


def expected(place):
  """The numbers of `OnnxModel` that those of `PIPELINES` stand for."""

  @functools.cache
  def model(folder):
    return OnnxModel(f"{place}/exported/{folder}", engine="onnxruntime")

  def outputs(folder, texts=TEXTS):
    rows = [row._asdict() for row in model(folder).encode_texts(texts)]
    for row, output in zip(rows, model(folder).run(rows)):
      num_tokens = sum(row["input_mask"])
      yield np.array(output, np.float64), row["input_ids"], num_tokens

  found = {
    folder: [
      sorted(text.probabilities.values(), reverse=True)
      for text in model(folder).predict(TEXTS)
    ]
    for folder in ("classification", "multi_label")
  }
  found["ner"] = [
    output[1 : size - 1].max(axis=1) for output, _, size in outputs("ner")
  ]
  pairs = [(QUESTION, text) for text in TEXTS]
  found["squad_1"] = [
    best_span(
      output[:, :size], ids.index(model("ner").tokenizer.vocab["[SEP]"])
    )
    for output, ids, size in outputs("squad_1", pairs)
  ]
  for folder in ("mean", "cls", "max", "quantized"):
    found[folder] = model(folder).encode(TEXTS)
  return found


def numbers(found):
  """Scores where there are labels or answers."""
  if isinstance(found, dict):
    return found["score"]
  return [*map(numbers, found)] if isinstance(found, list) else found


def check(found, place):
  assert isinstance(found, dict), found
  for folder, rows in expected(place).items():
    for text, row in zip(found[folder], rows, strict=True):
      # In another engine, 8-bit values may round the other way.
      atol = 1e-3 if folder == "quantized" else 1e-5
      np.testing.assert_allclose(numbers(text), row, rtol=0, atol=atol)


def test_pipelines_in_node_have_our_numbers(place):
  check(json.loads(node(place, IN_NODE)), place)


def test_pipelines_in_a_browser_have_our_numbers(place):
  browser = shutil.which("chromium") or shutil.which("google-chrome")
  if not browser:
    pytest.skip("Chromium")
  (place / "index.html").write_text(IN_BROWSER)
  posted = queue.Queue()

  class Handler(http.server.SimpleHTTPRequestHandler):
    def do_POST(self):
      size = int(self.headers["Content-Length"])
      posted.put(json.loads(self.rfile.read(size)))
      self.send_response(204)
      self.end_headers()

    def log_message(self, *arguments):
      pass

  handler = functools.partial(Handler, directory=str(place))
  with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}/"
    profile = f"--user-data-dir={place}/profile"
    process = subprocess.Popen(
      [browser, "--headless", "--no-sandbox", profile, address],
      stderr=subprocess.DEVNULL,
    )
    try:
      found = posted.get(timeout=300)
    finally:
      process.terminate()
      process.wait()
      server.shutdown()
  check(found, place)


def test_the_page_runs_and_cuts_as_we_do(place):
  exported = place / "output" / "exported"
  exported.mkdir(parents=True)
  for name, kind in (("demo", "classification"), ("mrpc", "classification")):
    os.symlink(place / "exported" / kind, exported / f"{name}_onnx")
  os.symlink(place / "exported" / "mean", exported / "minilm_onnx")
  page = os.path.join(commands.ROOT, "docs", "how_to", "onnx.md")
  with open(page, encoding="utf-8") as file:
    blocks = re.findall(r"```js\n(.*?)```", file.read(), re.S)
  assert [bool(node(place, block)) for block in blocks] == [True] * 3
  words = signatures_test.ODD
  texts = signatures_test.random_texts(100, 20, words, 3, separators=(" ",))
  pairs = [*zip(texts, texts[1:]), *((text, "") for text in texts)]
  (place / "pairs.json").write_text(json.dumps(pairs))
  code = """
    const { readFileSync } = await import("node:fs");
    const pairs = JSON.parse(readFileSync("pairs.json"));
    console.log(JSON.stringify(pairs.map((pair) => {
      const rows = encode(...pair);
      const found = [rows.input_ids, rows.token_type_ids];
      return found.map((tensor) => tensor.tolist()[0].map(Number));
    })));
  """
  found = json.loads(node(place, blocks[1] + code).splitlines()[-1])
  model = OnnxModel(str(exported / "mrpc_onnx"))
  for row, ours in zip(found, model.encode_texts(pairs), strict=True):
    count = ours.num_tokens
    assert row == [ours.input_ids[:count], ours.segment_ids[:count]]
