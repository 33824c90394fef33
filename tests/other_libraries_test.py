"""Tests of the page on other libraries: its code runs in the real ones."""

import asyncio
import re
from pathlib import Path

import commands
import numpy as np
import predict_test
import pytest
import signatures_test

from bertlib.export import OnnxModel

pytest.importorskip("onnx", reason="pip install -e .[onnx]")
pytest.importorskip("onnxruntime", reason="pip install -e .[test]")

pytestmark = pytest.mark.train

PAGE = Path(commands.ROOT) / "docs" / "how_to" / "other_libraries.md"
TEXTS = ["the cat sat", "is it good? (bad, good)", "the dog ran home"]


@pytest.fixture(scope="module")
def vectors(once, tmp_path_factory):
  place = tmp_path_factory.mktemp("vectors")
  return str(predict_test.exported(once, "embeddings", place) / "exported")


@pytest.fixture(scope="module")
def classifier(once, tmp_path_factory):
  place = tmp_path_factory.mktemp("classifier")
  return str(predict_test.exported(once, "single", place) / "exported")


def run_block(heading, folder):
  """Runs the Python code below a heading; returns its names."""
  _, section = PAGE.read_text(encoding="utf-8").split(f"## {heading}")
  (code,) = re.findall(r"```python\n(.*?)```", section.split("\n## ")[0], re.S)
  names = {"__name__": "page"}
  exec(re.sub(r'"output/exported/\w+"', repr(folder), code), names)
  return names


def test_bertopic_embeds_documents(vectors):
  pytest.importorskip("bertopic", reason="pip install bertopic")
  names = run_block("BERTopic", vectors)
  embedder = names["topic_model"].embedding_model
  np.testing.assert_array_equal(
    embedder.embed_documents(TEXTS), OnnxModel(vectors).encode(TEXTS)
  )


def test_langchain_finds_the_nearest_document(vectors, capsys):
  pytest.importorskip("langchain_core", reason="pip install langchain-core")
  store = run_block("LangChain", vectors)["store"]
  texts = [text for text in TEXTS if store.add_texts([text])]
  (found,) = store.similarity_search(TEXTS[1], k=1)
  assert found.page_content == texts[1]
  assert capsys.readouterr().out.strip()


def test_fastembed_loads_the_folder(vectors):
  pytest.importorskip("fastembed", reason="pip install fastembed")
  model = run_block("fastembed", vectors)["model"]
  prompt = signatures_test.PROMPTS["passage"]
  found = [*model.embed([prompt + text for text in TEXTS])]
  np.testing.assert_allclose(found, OnnxModel(vectors).encode(TEXTS), atol=1e-6)


def test_fastapi_predicts_waiting_requests_in_one_batch(classifier):
  pytest.importorskip("fastapi", reason="pip install fastapi")
  httpx = pytest.importorskip("httpx", reason="pip install httpx")
  names = run_block("FastAPI", classifier)
  batches = []

  class Recorder:
    def predict(self, texts):
      batches.append(len(texts))
      return OnnxModel(classifier).predict(texts)

  names["model"] = Recorder()
  app = names["app"]

  async def ask():
    transport = httpx.ASGITransport(app=app)
    async with (
      app.router.lifespan_context(app),
      httpx.AsyncClient(transport=transport, base_url="http://here") as client,
    ):
      return await asyncio.gather(
        *(client.post("/predict", params={"text": text}) for text in TEXTS * 4)
      )

  answers = [answer.json() for answer in asyncio.run(ask())]
  expected = OnnxModel(classifier).predict(TEXTS)
  assert [a["label"] for a in answers] == [p.label for p in expected] * 4
  assert sum(batches) == len(answers) > len(batches)


def test_fastapi_answers_after_an_error(classifier):
  pytest.importorskip("fastapi", reason="pip install fastapi")
  testclient = pytest.importorskip("fastapi.testclient")
  names = run_block("FastAPI", classifier)
  with testclient.TestClient(
    names["app"], raise_server_exceptions=False
  ) as client:
    model, names["model"] = names["model"], None
    assert client.post("/predict", params={"text": "cat"}).status_code == 500
    names["model"] = model
    assert client.post("/predict", params={"text": "cat"}).status_code == 200
