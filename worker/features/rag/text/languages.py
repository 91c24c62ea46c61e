"""Detects the language of a text by its stopwords, and stems words."""

from __future__ import annotations

import re
import threading
from functools import lru_cache
from typing import Any, Final

ENGLISH: Final = "en"


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: Stopwords of each language, chosen to differ between languages. They identify the language of a
#: text; in a query they count only if it has no other words.
COMMON_WORDS: Final = {
    ENGLISH: _words(
        "the of and to in is that it was for on are as with they be at this have from or by "
        "but not what all were when can there an which their if will how do does a who where "
        "why"
    ),
    "de": _words(
        "der die das und ist nicht ein eine einen einem einer zu den mit von im auf für dem "
        "des sich wird als auch es an werden aus er hat dass sie nach bei wie oder was wer wo "
        "wenn"
    ),
    "fr": _words(
        "le la les de des et est un une du en que qui dans pour pas sur au aux plus par ce il "
        "elle sont avec ne se son sa ses ou mais comme être quel quelle où"
    ),
    "es": _words(
        "el la los las de del y en que un una es por con para no se su al lo como más pero "
        "sus este esta son fue ha o cuando muy qué cómo dónde"
    ),
    "it": _words(
        "il lo la gli le di del della e è che un una per con non si da in sono come anche al "
        "dei nel alla più ma questo questa ha i chi cosa dove"
    ),
    "pt": _words(
        "o a os as de do da dos das e é que um uma em para com não por se no na ao mais como "
        "mas foi são seu sua ou quando muito onde"
    ),
    "nl": _words(
        "de het een en van in is dat op te zijn met voor niet aan er om ook als bij door maar "
        "naar heeft worden werd hij ze wordt kan nog wat wie waar"
    ),
    "sv": _words(
        "och att det som en på är av för med till den har de inte om ett han men var jag sig "
        "från vi så kan när vad hur eller"
    ),
    "ru": _words(
        "и в не на что я с как это он а то все она так его но они к у же вы за бы по от из "
        "для кто где был или"
    ),
}
_STEMMERS: Final = {
    ENGLISH: "english",
    "de": "german",
    "fr": "french",
    "es": "spanish",
    "it": "italian",
    "pt": "portuguese",
    "nl": "dutch",
    "sv": "swedish",
    "ru": "russian",
}
_WORD: Final = re.compile(r"[^\W\d_]+")
#: Characters of a text that are examined.
_SAMPLE_CHARS: Final = 20_000
#: Any language but English needs this many stopwords, and this many times those of English.
_LEAST: Final = 3
_CLEAR_LEAD: Final = 1.3
#: Cached stems: computing one takes fifty times as long as a lookup.
_REMEMBERED: Final = 50_000
#: Stemmers are not thread-safe.
_STEM_LOCK: Final = threading.Lock()


def detect_language(text: str) -> str:
    """The most likely language of a text; English if there is no clear other one."""
    counts = dict.fromkeys(COMMON_WORDS, 0)
    for word in _WORD.findall(text[:_SAMPLE_CHARS].lower()):
        for language, common in COMMON_WORDS.items():
            counts[language] += word in common
    best = max(counts, key=lambda language: counts[language])
    clear = counts[best] >= _LEAST and counts[best] > _CLEAR_LEAD * counts[ENGLISH]
    return best if clear else ENGLISH


@lru_cache(maxsize=_REMEMBERED)
def stem(word: str, language: str) -> str:
    """The stem of a lower-case word."""
    with _STEM_LOCK:
        found: str = _stemmer(language).stemWord(word)
    return found


@lru_cache
def _stemmer(language: str) -> Any:
    # Imported here because it loads all its languages.
    import snowballstemmer  # type: ignore[import-untyped]

    return snowballstemmer.stemmer(_STEMMERS[language])
