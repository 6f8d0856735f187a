"""A sentencepiece model with further pieces, without a library for its format.

A model file is a protocol buffer, and these can be put together by writing one behind the other: repeated fields, as
the pieces are, go on, and fields of a message override those before.
"""

import struct
from collections.abc import Iterator, Sequence

from sentencepiece import SentencePieceProcessor

# Field numbers in sentencepiece_model.proto.
_PIECES, _TRAINER = 1, 2
_PIECE, _SCORE = 1, 2
_MODEL_TYPE, _VOCABULARY_SIZE = 3, 4
_BPE = 2

_VARINT, _DOUBLE, _BYTES, _FLOAT = 0, 1, 2, 5


def with_pieces(model: bytes, pieces: Sequence[str]) -> bytes:
    """Add pieces to a byte-pair encoding, to be merged after all that there are, in the given order.

    Old pieces keep their numbers and are merged as before; only then are the new ones. So a text in which no new piece
    can be merged is encoded as before.

    Args:
        model: serialized sentencepiece model.
        pieces: each the spelling of two pieces one after the other, old ones or new ones before it.

    Raises:
        ValueError: the model is no byte-pair encoding, or has one of the pieces already.
    """
    if model_type(model) != _BPE:
        raise ValueError(
            "the vocabulary is no byte-pair encoding, and only these can be extended: `maelm prepare` makes such ones"
        )
    processor = SentencePieceProcessor(model_proto=model)
    size = processor.get_piece_size()
    known = {processor.id_to_piece(number) for number in range(size)}
    lowest = min(processor.get_score(number) for number in range(size))
    added = b""
    for place, piece in enumerate(pieces, 1):
        if piece in known:
            raise ValueError(f"the vocabulary has the piece {piece!r} already")
        known.add(piece)
        entry = _bytes(_PIECE, piece.encode("utf-8")) + _tag(_SCORE, _FLOAT) + struct.pack("<f", lowest - place)
        added += _bytes(_PIECES, entry)
    size_field = _tag(_VOCABULARY_SIZE, _VARINT) + _varint(size + len(pieces))
    return model + added + _bytes(_TRAINER, size_field)


def model_type(model: bytes) -> int:
    """The model's type: 1 unigram, which files need not say, 2 byte-pair encoding, 3 words, 4 characters.

    Raises:
        ValueError: the bytes are no protocol buffer.
    """
    found = 1
    for number, message in _fields(model):
        if number == _TRAINER and isinstance(message, bytes):
            found = next((int(value) for field, value in _fields(message) if field == _MODEL_TYPE), found)
    return found


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield number and value of each field; fixed numbers as their bytes."""
    place = 0
    while place < len(message):
        tag, place = _read_varint(message, place)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            value, place = _read_varint(message, place)
            yield number, value
            continue
        length = {_DOUBLE: 8, _FLOAT: 4}.get(kind, -1)
        if kind == _BYTES:
            length, place = _read_varint(message, place)
        if length < 0 or place + length > len(message):
            raise ValueError("the sentencepiece model is damaged")
        yield number, message[place : place + length]
        place += length


def _read_varint(message: bytes, place: int) -> tuple[int, int]:
    value, shift = 0, 0
    while place < len(message):
        byte = message[place]
        value |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if not byte & 0x80:
            return value, place
    raise ValueError("the sentencepiece model is damaged")


def _varint(value: int) -> bytes:
    result = b""
    while value > 0x7F:
        result += bytes([value & 0x7F | 0x80])
        value >>= 7
    return result + bytes([value])


def _tag(number: int, kind: int) -> bytes:
    return _varint(number << 3 | kind)


def _bytes(number: int, content: bytes) -> bytes:
    return _tag(number, _BYTES) + _varint(len(content)) + content
