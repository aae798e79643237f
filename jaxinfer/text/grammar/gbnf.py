r"""GBNF, the EBNF of llama.cpp, as the text of Lark that llguidance compiles.

llguidance has a converter. It writes \u0041 without its zeros, so that digits behind are read as a part of the code. It
keeps line ends and \[ in a text, which Lark refuses, and && in a class, which is an intersection of classes in Rust.
All of these are written as both read them before they come to it.
"""

import re

from jaxinfer.errors import InvalidRequest

_CHAR = r"\\(?:u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.|\Z)"
_PART = re.compile(  # a comment, a text, a class; what nobody closes goes on to the end
    rf'#[^\r\n]*|(?P<text>"(?:{_CHAR}|[^"\\])*+"?)|(?P<class>\[(?:{_CHAR}|[^\]\\])*+\]?)', re.DOTALL
)
_OF_TEXT = re.compile(r"\\u(?P<short>[0-9a-fA-F]{4})|\\U(?P<long>[0-9a-fA-F]{8})|\\.|[\x00-\x1f\x7f]", re.DOTALL)
_OF_CLASS = re.compile(rf"(?P<one>{_CHAR}|[^\]])(?:-(?P<last>{_CHAR}|[^\]]))?", re.DOTALL)  # or a range


def lark_of(text: str) -> str:
    """Raises InvalidRequest for what is no grammar, and RecursionError."""
    from llguidance.gbnf_to_lark import any_to_lark, is_lark_syntax

    try:
        return str(any_to_lark(text if is_lark_syntax(text) else _PART.sub(_readable, text)))
    except InvalidRequest:
        raise
    except Exception as error:  # the converter's own kinds
        raise InvalidRequest(str(error)[:400]) from error


def _readable(part: re.Match[str]) -> str:
    """A part of a grammar, in characters that the converter and llguidance read as they are meant."""
    if part["text"] is not None:
        return _OF_TEXT.sub(_spelt, part["text"])
    if part["class"] is None:
        return part[0]
    begin = "[^" if part["class"].startswith("[^") else "["
    return begin + _OF_CLASS.sub(_in_class, part["class"].removeprefix(begin))


def _in_class(found: re.Match[str]) -> str:
    return "-".join(_OF_TEXT.sub(_spelt, char) if len(char) > 1 else _coded(char) for char in found.groups() if char)


def _spelt(found: re.Match[str]) -> str:
    digits = found["short"] or found["long"]
    if digits is None:
        return found[0] if found[0][0] == "\\" and found[0][1:] not in ("[", "]") else _coded(found[0][-1])
    code = int(digits, 16)
    if 0xD800 <= code < 0xE000 or code > 0x10FFFF:
        law = "an escape must be the code of a character, which is at most 10FFFF and no half of a pair (D800 to DFFF)"
        raise InvalidRequest(f"{law}, got {found[0]}; write the character itself, or its whole code as \\U0001F600")
    return _coded(chr(code))


def _coded(char: str) -> str:
    """One that may be a sign of the converter, of Lark or of Rust's expressions by its code."""
    return f"\\x{ord(char):02x}" if ord(char) < 0x80 and not char.isalnum() else char
