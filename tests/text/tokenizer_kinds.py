"""Tokenizers of the kinds that models have, and texts in many scripts that they know."""

from unicodedata import normalize

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from sparsity_length.text.tokenizer import train_bpe

TEXTS = {
    "Latin": "Il cafe\u0301 noir, don't: l’e\u0301te\u0301 naïve.",
    "Chinese": "伦敦是英国的首都。她说：「好！」然后走了",
    "Japanese": "東京タワーはか\u3099っこいい。𠮷野家へ行く",
    "Korean": "서울은 한국의 수도입니다. 나라",
    "Hindi": "नमस्ते दुनिया, राम की किताब है। कि यह",
    "Arabic": "كِتَاب الولد، هل رأيتَ مدينة؟ می‌خواهم",
    "Thai": "ที่นี่คือกรุงเทพ สวัสดี",
}
ENGLISH = [
    "The cat sat on a mat, and the cat saw the dog 2 times.",
    "A naïve  cat;\n the dog sat on it again.",
]
SPECIAL = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]
_EVERY_TEXT = " ".join([*TEXTS.values(), *ENGLISH])


def byte_level(*, add_prefix_space: bool = False) -> Tokenizer:
    tokenizer = Tokenizer.from_str(train_bpe([*TEXTS.values(), *ENGLISH * 4], 400).to_json())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    return tokenizer


def metaspace() -> Tokenizer:
    """As SentencePiece's: a blank before the text, which is a token of its own before 伦敦."""
    letters = sorted({*_EVERY_TEXT.replace("伦", "").replace(" ", "▁")})
    of_bytes = (f"<0x{byte:02X}>" for byte in range(256))
    pieces = dict.fromkeys([*SPECIAL, *of_bytes, *letters, "▁I", "▁Il", "▁t", "▁th", "▁the"])
    tokenizer = Tokenizer(
        models.BPE(
            {piece: token_id for token_id, piece in enumerate(pieces)},
            [("▁", "I"), ("▁I", "l"), ("▁", "t"), ("▁t", "h"), ("▁th", "e")],
            unk_token="<unk>",
            byte_fallback=True,
        )
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


def unigram() -> Tokenizer:
    scores = dict.fromkeys(SPECIAL, 0.0) | {"▁": -2.0, "伦敦": -2.5, "▁한국": -2.5, "▁the": -2.5, "cat": -3.0}
    letters = sorted({*normalize("NFKC", _EVERY_TEXT)} - {" "})
    tokenizer = Tokenizer(models.Unigram([*(scores | dict.fromkeys(letters, -9.0)).items()], 0))
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


def word_piece() -> Tokenizer:
    """Folds cases, drops accents, and knows few words and letters."""
    words = ["the", "cat", "sat", "on", "a", "mat", "and", "dog", "times", "naive", "it", "2", ",", ".", ";"]
    known = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *words, *(f"##{letter}" for letter in "abeginsv")]
    tokenizer = Tokenizer(models.WordPiece({word: id_ for id_, word in enumerate(known)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer
