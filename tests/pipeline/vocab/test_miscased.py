"""Turkish in a vocabulary that lower-cases: the last line says that I becomes i, not ı."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloze.core.config import parse_config
from cloze.core.stages.execute import execute
from cloze.pipeline.corpus.config import CorpusConfig
from cloze.pipeline.corpus.stage import STAGE
from cloze.pipeline.vocab.stage import headline
from tests.pipeline.corpus.script_texts import TEXTS
from tests.pipeline.vocab.vocabularies import make

TURKISH = (
    "Küçük kasaba geniş bir ırmağın kıyısında bulunur ve eskiden üzerinde ahşap bir köprü vardı. "
    "Her sabah satıcılar pazarda tezgâhlarını açar, elma, peynir ve taze ekmek satarlar. "
    "Öğrenciler belediyenin önünden geçer, fırıncıya selam verir ve okulun zilini uzaktan duyarlar."
)


@pytest.mark.parametrize(
    ("text", "lowercase", "warned"),
    [(TURKISH, True, True), (TURKISH, False, False), (TEXTS["de"], True, False)],
)
def test_turkish_is_not_lower_cased_in_silence(
    tmp_path: Path, text: str, lowercase: bool, warned: bool
) -> None:
    (tmp_path / "text").mkdir()
    for number in range(3):
        (tmp_path / "text" / f"{number}.txt").write_text(f"{text} Bölüm {number}.")
    settings = {"sources": [{"kind": "text", "path": str(tmp_path / "text")}]}
    corpus = tmp_path / "corpus"
    execute(STAGE, parse_config(CorpusConfig, settings, "corpus"), {}, str(corpus))
    vocab = make(str(corpus), tmp_path / "vocab", size=200, lowercase=lowercase)
    summary = vocab.manifest.summary
    assert ("tr" in summary.get("miscased", [])) is warned
    assert ("vocab.lowercase to false" in headline(summary)) is warned
