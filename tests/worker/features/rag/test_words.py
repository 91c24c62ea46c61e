"""Index terms of texts and queries."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.features.rag.text.languages import COMMON_WORDS, detect_language
from worker.features.rag.text.terms import MOST_WORDS, query_terms, terms


def words(text: str, language: str = "en") -> list[str]:
    return list(terms(text, language))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Running runs", ["en:run", "en:run"]),
        ("MAX_INFLIGHT", ["max_inflight", "en:max", "en:inflight"]),
        ("job_id", ["job_id", "en:job", "en:id"]),
        ("__init__", ["__init__", "en:init"]),
        ("HTTPServer", ["httpserver", "en:http", "en:server"]),
        ("camelCase", ["camelcase", "en:camel", "en:case"]),
        ("sha256", ["sha256", "en:sha", "256"]),
        ("v8.2.3 and 3,14", ["v8", "en:v", "8", "2.3", "2", "3", "en:and", "3,14", "3", "14"]),
        ("it's l'eau don't", ["en:it", "en:eau", "en:don"]),
        ("café CAFÉ cafe\u0301 cafe", ["en:cafe"] * 4),
        ("ﬁnd", ["en:find"]),
        ("東京都", ["東", "京", "都", "東京", "京都"]),
        ("文", ["文"]),
        ("Redisは速い", ["en:redi", "は", "速", "い", "は速", "速い"]),
        ("_ ___ - !", []),
        ("x" * 500, ["en:" + "x" * 64]),
        ("re\u00adli\u00adable", ["en:re", "en:li", "en:abl"]),
    ],
)
def test_terms(text: str, found: list[str]) -> None:
    assert words(text) == found


def test_other_languages_have_other_stems() -> None:
    assert words("Häuser Haus", "de") == ["de:haus", "de:haus"]
    assert words("Straße STRASSE", "de") == ["de:strass", "de:strass"]
    assert len(set(words("chanter chantait chante", "fr"))) == 1
    assert len(set(words("книга книги книгу", "ru"))) == 1
    assert words("हिन्दी भाषा")[0] != words("हिन भाषा")[0]


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("The cat is on the roof and it does not want to come down.", "en"),
        ("Der Hund ist nicht auf dem Dach, und die Katze auch nicht.", "de"),
        ("Le chat est sur la table et il ne mange pas dans la maison.", "fr"),
        ("El perro es de la casa y no se va por la noche con los otros.", "es"),
        ("Il cane è della casa e non si muove per la notte con gli altri.", "it"),
        ("O cão não é da casa e as crianças são do vizinho.", "pt"),
        ("De hond is van het huis en hij wordt niet door de buren gezien.", "nl"),
        ("Hunden är inte på taket och det är bra att han sover.", "sv"),
        ("Собака не на крыше, и она как кошка, что спит.", "ru"),
        ("def main(): return 1", "en"),
        ("", "en"),
        ("東京都は日本の首都です。", "en"),
    ],
)
def test_languages(text: str, language: str) -> None:
    assert detect_language(text) == language


def test_each_word_is_searched_in_all_languages() -> None:
    [group] = query_terms("Häuser", {"en", "de"})
    assert set(group) == {"de:haus", "en:hauser", "hauser"}
    assert query_terms("job jobs", {"en"}) == [("en:job", "job", "jobs")]
    assert query_terms("iPhone iphone", {"en"})[0] == ("iphone",)
    assert ("en:iphon", "iphone") in query_terms("iphone", {"en"})
    assert query_terms("京", {"en"}) == [("京",)]
    assert query_terms("東京都", {"en"}) == [("東京",), ("京都",)]
    assert query_terms("8.2", {"en"}) == [("8.2",)]


def test_common_words_count_only_alone() -> None:
    assert query_terms("what is the lease", {"en"}) == [("en:leas", "lease")]
    assert len(query_terms("what is the", {"en"})) == 3
    assert query_terms("", {"en"}) == []
    assert len(query_terms(" ".join(f"w{n}x" for n in range(500)), {"en"})) == MOST_WORDS


@given(st.text(max_size=200), st.sampled_from(sorted(COMMON_WORDS)))
def test_any_text_has_terms_that_a_query_for_it_finds(text: str, language: str) -> None:
    held = set(terms(text, language))
    for group in query_terms(text, {language}):
        assert held & set(group)
