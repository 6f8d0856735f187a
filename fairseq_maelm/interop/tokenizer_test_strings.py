"""Strings on which tokenizers tend to differ.

An exported tokenizer must give the same tokens as fairseq's for all ``HARD_STRINGS``. ``MAY_DIFFER`` (text ->
reason) has texts whose tokens may differ; an export reports those whose tokens do differ.
"""

from collections.abc import Iterable

_WORDS = [
    "",
    " ",
    "   ",
    "a",
    " a",
    "a ",
    "  two  spaces  between   and around  ",
    "The quick brown fox jumps over the lazy dog.",
    "THE QUICK BROWN FOX.",
    "don't, can't: \"quoted\" (in brackets) [and] {others}; 50% off!?",
    "e.g. U.S.A., 3.14159, 1,000,000 and -7e-12; https://example.org/a_b?c=d&e=f#g user@example.org",
    "snake_case CamelCase kebab-case ALLCAPS x1y2z3",
    "a" * 300,
    "ab" * 150,
    "supercalifragilisticexpialidocious pneumonoultramicroscopicsilicovolcanoconiosis",
    ". , ; : ! ? - -- --- ... ....",
    "\\ / | ~ ` ^ @ # $ % & * + = < >",
]
_WHITE_SPACE = [
    "line one\nline two",
    "line one\r\nline two\r",
    "tab\tseparated\ttext",
    "\n\n leading and trailing \n\n",
    "\t\tstarts with tabs",
    "no-break\u00a0space, thin\u2009space, ideographic\u3000space, narrow\u202fspace",
    "\u3000starts with an ideographic space",
    "line\u2028separator and paragraph\u2029separator, next line\u0085here",
    "file\x1cgroup\x1drecord\x1eunit\x1fseparators",
    "zero\u200bwidth\u200bspace and soft\u00adhyphen",
]
_LETTERS = [
    "caf\u00e9 na\u00efve \u00fcber \u00c5ngstr\u00f6m \u0141\u00f3d\u017a \u010cesk\u00fd \u0130stanbul \u0131",
    "cafe\u0301 nai\u0308ve u\u0308ber A\u030angstro\u0308m",
    "CAF\u00c9 \u00dcBER CAFE\u0301 U\u0308BER",
    "stra\u00dfe STRASSE \u1e9e \u00e6 \u00c6 \u0153 \u00f8",
    "\ufb01ne \ufb02ow o\ufb03ce \u2460 \u00b2 \u00bd \u2122 \u212b \u2126 \u33a5",
    "\uff26\uff55\uff4c\uff4c \uff37\uff49\uff44\uff54\uff48 \uff11\uff12\uff13",
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440! \u0401\u043b\u043a\u0430 \u0439\u043e\u0434",
    "\u0393\u03b5\u03b9\u03ac \u03c3\u03bf\u03c5 \u039a\u03cc\u03c3\u03bc\u03b5 \u03a3\u0391\u03a3",
    "\u05e9\u05dc\u05d5\u05dd \u05e2\u05d5\u05dc\u05dd",
    "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645 \u0661\u0662\u0663",
    "\u0928\u092e\u0938\u094d\u0924\u0947 \u0926\u0941\u0928\u093f\u092f\u093e",
    "\u0915\u094d\u200d\u0937 \u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645 A\u200cB C\u200dD \u00c9\u200d \u200cE",
    "\u0e19\u0e49\u0e33 \u0e17\u0e33 \u0e33 A\u0e33 \u00b2\u0e33 \u0e99\u0ec9\u0eb3 \u0eb3 B\u0eb3",
    "B\u0301 x\u0301 Q\u0308 T\u0324H\u0331 O\u0335",
    "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35\u0e0a\u0e32\u0e27\u0e42\u0e25\u0e01",
    "\u4f60\u597d\uff0c\u4e16\u754c\u3002\u7e41\u9ad4\u5b57",
    "\u3053\u3093\u306b\u3061\u306f\u4e16\u754c \u30ab\u30bf\u30ab\u30ca",
    "\uc548\ub155\ud558\uc138\uc694 \uc138\uacc4 \u1112\u1161\u11ab\u1100\u116e\u11a8",
    "Ti\u1ebfng Vi\u1ec7t Tie\u0302\u0301ng Vie\u0323\u0302t Ti\u00ea\u0301ng Vi\u00ea\u0323t A\u0344",
    "\u10d2\u10d0\u10db\u10d0\u10e0\u10ef\u10dd\u10d1\u10d0 \u0532\u0561\u0580\u0587 \u12a0\u121b\u122d\u129b",
]
_SYMBOLS = [
    "\U0001f600 \U0001f680\U0001f680 \U0001f1eb\U0001f1f7",
    "\U0001f469\u200d\U0001f4bb \U0001f44d\U0001f3fd",
    "\u270c\U0001f3fd \u261d\U0001f3fb OK\U0001f3ff \u2122\U0001f3fd \U0001f469\U0001f3fc\u200d\u2764\ufe0f",
    "heart\u2764\ufe0f A\ufe0f 1\ufe0f\u20e3 \u00a9\ufe0f \u2122\ufe0e \U0001f3f4\U000e0067\U000e0062\U000e007f",
    "\u201ccurly\u201d \u2018quotes\u2019 \u2013 en \u2014 em \u2026 \u2022 \u20ac \u00a3 \u00a5",
    "\u2200x\u2208\u211d: \u221ax \u2264 x\u00b2 \u2192 \u221e \u222b \u2211",
    "\U0001d49c\U0001d4ee\U0001d4f2 \U00020000 \U0010fffd",
    "\ufeffbyte order mark",
    "a literal \u2581 symbol and \u2581word",
    "NUL\x00 bell\x07 escape\x1b delete\x7f C1\x9f end, in\x01side w\x80ords, \x00 alone \x1b",
    "replacement \ufffd character, private \ue000 use",
]
_MASKS = [
    "<mask>",
    "<mask>.",
    "The <mask> is old.",
    "The<mask>is old.",
    "  The   <mask>   <mask>\tof  the day <mask>",
    "<mask> at the start, and <mask><mask>",
    'before <mask>, after <mask>; "<mask>"',
]
HARD_STRINGS = _WORDS + _WHITE_SPACE + _LETTERS + _SYMBOLS + _MASKS

# Text -> the reason why transformers may tokenize it differently. Cleaned corpora contain no such text.
MAY_DIFFER = {
    "\u00aa\u0301 \uff45\u0301 n\u00ba\u0301": (
        "a mark after a full-width, superscript or other compatibility letter: only sentencepiece composes it with the "
        "plain letter"
    ),
    "\uff76\uff9e\uff77\uff9e\uff8a\uff9f \u304b\uff9e": (
        "kana with a half-width voice mark: only sentencepiece composes them"
    ),
    "a <mask> b\u200b \u200bc <mask> \u00b4": (
        "characters that become spaces, after a mask and next to other spaces or at the end"
    ),
}

# To be filled with the spellings of our special symbols; its tokens may differ too.
SPECIAL_STRING = "text with {} and {} and {} and {} spelled out"
WHY_SPECIAL = (
    "transformers reads a spelled-out special token as that token; fairseq reads it as text, as does "
    "tokenizer(..., split_special_tokens=True) if the spelling is not a piece of the vocabulary"
)


def added_token_strings(tokens: Iterable[str]) -> list[str]:
    """Return texts with tokens that were added to a tokenizer: alone, between words, inside a word and repeated."""
    return [text for token in tokens for text in (token, f"The {token} old ship{token}{token}s, {token}.")]


# Ordinary text in several scripts, for which an imported tokenizer must give the tokens of its source.
ORDINARY_STRINGS = (
    "The quick brown fox jumps over the lazy dog.",
    "It's 3.14159 o'clock, isn't it? (Yes: e-mail me at 17:30!)",
    "Übung macht den Meister; déjà vu, naïve, señor, smørrebrød.",
    "Съешь же ещё этих мягких французских булок.",
    "日本語の文章と中文的句子。",
    "tabs\tand  two spaces",
    "",
)
