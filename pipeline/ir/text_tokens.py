"""Program text as tokens: names, numbers and signs, with newlines and changes of indentation."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, cast

from pipeline.errors import UserError

Kind = Literal["name", "string", "number", "sign", "newline", "indent", "dedent", "end"]
TOKEN = re.compile(
    r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)"
    r'|(?P<string>"(?:[^"\\]|\\.)*")'
    r"|(?P<number>\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)"
    r"|(?P<sign>//|<=|>=|==|!=|\+=|\*=|[-+*/%<>=()\[\]{},:.])"
)
SHOWN = {"newline": "the end of the line", "end": "the end of the text", "indent": "deeper indentation",
         "dedent": "less indentation"}  # fmt: skip


class ParseError(UserError):
    """Text that is not a program, polynomial or expression."""

    def __init__(self, line: int, column: int, expected: str, found: str) -> None:
        super().__init__(f"expected {expected}", where=f"line {line}, column {column}", why=f"Found {found}")
        self.line, self.column, self.expected = line, column, expected


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of text, and where it stands (lines and columns from 1)."""

    kind: Kind
    text: str
    line: int
    column: int

    @property
    def shown(self) -> str:
        return repr(self.text) if self.text else SHOWN[self.kind]


def tokens(text: str) -> list[Token]:
    """Names, numbers and signs; newlines and changes of indentation are tokens, comments and empty lines are not."""
    found: list[Token] = []
    depths = [0]
    last = 1
    for number, line in enumerate(text.splitlines(), 1):
        at = len(line) - len(line.lstrip(" "))
        if at == len(line) or line[at] == "#":
            continue
        last = number
        if at > depths[-1]:
            depths.append(at)
            found.append(Token("indent", "", number, at + 1))
        while at < depths[-1]:
            depths.pop()
            found.append(Token("dedent", "", number, at + 1))
        if at != depths[-1]:
            raise ParseError(number, at + 1, f"an indentation of {depths[-1]} spaces", f"{at}")
        while at < len(line) and line[at] != "#":
            if line[at] == " ":
                at += 1
                continue
            match = TOKEN.match(line, at)
            if match is None:
                raise ParseError(number, at + 1, "a name, a number or a sign", repr(line[at]))
            found.append(Token(cast(Kind, match.lastgroup), match.group(), number, at + 1))
            at = match.end()
        found.append(Token("newline", "", number, len(line) + 1))
    found.extend(Token("dedent", "", last + 1, 1) for _ in depths[1:])
    found.append(Token("end", "", last + 1, 1))
    return found
