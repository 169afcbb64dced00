"""Text to nodes. Names and operators of C and of Python mean the same here."""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Container, Iterable
from typing import NamedTuple

from ..errors import ExpressionError
from .functions import ALIASES, CONSTANTS, FUNCTIONS
from .nodes import Node, as_real, call, name, number
from .place import at_place, brief

_MAX_CHARACTERS = 10_000
_MAX_DEPTH = 50  # a level takes up to eight Python frames, of a thousand that there usually are

_TOKEN = re.compile(
    r"""
      (?P<space> \s+ )
    | (?P<number> (?: [0-9]+ (?: \. [0-9]* )? | \. [0-9]+ ) (?: [eE] [+-]? [0-9]+ )? [fF]? (?! [\w.] ) )
    | (?P<name> [A-Za-z_] [A-Za-z0-9_]* )
    | (?P<sign> \*\* | && | \|\| | [<>=!]= | [-+*/%<>!?:(),;=] )
    """,
    re.VERBOSE,
)

_COMPARISON = 3
_BINDING = {"or": 1, "||": 1, "and": 2, "&&": 2, "+": 4, "-": 4, "*": 5, "/": 5, "%": 5}
_BINDING |= dict.fromkeys(("<", "<=", ">", ">=", "==", "!="), _COMPARISON)
_DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+")
_RANDOM = re.compile(r"rand|normal|uniform|bernoulli|dropout|poisson|multinomial")
_WORDS = {"and", "or", "not", "if", "else"}
_MEANING = {"||": "or", "&&": "and"}


class _Token(NamedTuple):
    kind: str  # "number", "name", "sign" or "end"; the words above are signs
    text: str
    offset: int


def parse(text: str, names: Iterable[str], where: str = "kit") -> tuple[Node, ...]:
    """The expressions in ``text``, a node each.

    Expressions are separated by commas. Before them may come statements ``t = exp(-x);``. From the loosest:
    ``c ? a : b`` and ``a if c else b``; ``||`` ``or``; ``&&`` ``and``; ``not``; one comparison; ``+ -``; ``* / %``; the
    signs ``- + !``; ``**``. Numbers are floating-point, so ``1 / 2`` is 0.5; ``%`` has the sign of its right side, as
    in Python and torch; a truth value counts 1 or 0 in arithmetic, and a number other than 0 is true.

    Args:
        text: the expressions.
        names: what they may read beside ``pi``, ``e``, ``inf`` and ``nan``, which such a name hides.
        where: the op's name, for messages.

    Raises:
        ExpressionError: with the line and the place in it.
    """
    if not isinstance(text, str):
        raise ExpressionError(f"[{where}] an expression must be text, got {type(text).__name__}")
    if len(text) > _MAX_CHARACTERS:
        raise ExpressionError(f"[{where}] an expression has at most {_MAX_CHARACTERS} characters, got {len(text)}")
    try:
        return _Parser(text, names, where).outputs()
    except RecursionError:  # the caller's own stack was nearly full
        raise ExpressionError(f"[{where}] the expression is nested too deep for what is left of the stack") from None


class _Parser:
    def __init__(self, text: str, names: Iterable[str], where: str) -> None:
        self.text = text
        self.where = where
        self.values = {x: number(value) for x, value in CONSTANTS.items()} | {x: name(x) for x in names}
        self.tokens = self.tokenised()
        self.at = 0
        self.depth = 0

    def error(self, message: str, offset: int) -> ExpressionError:
        return ExpressionError(at_place(self.where, message, self.text, offset))

    def tokenised(self) -> list[_Token]:
        tokens: list[_Token] = []
        offset = 0
        while offset < len(self.text):
            match = _TOKEN.match(self.text, offset)
            if not match:
                if dotted := _DOTTED.match(self.text, tokens[-1].offset if tokens else offset):
                    raise self.error(_without_module(dotted[0], self.values), dotted.start())
                raise self.error(f"cannot read {self.text[offset]!r}{_hint(self.text[offset:])}", offset)
            kind = match.lastgroup or ""
            if kind != "space":
                tokens.append(_Token("sign" if match[0] in _WORDS else kind, match[0], offset))
            offset = match.end()
        return [*tokens, _Token("end", "", offset)]

    @property
    def next(self) -> _Token:
        return self.tokens[self.at]

    def take(self) -> _Token:
        token = self.next
        self.at += token.kind != "end"
        return token

    def accept(self, sign: str) -> bool:
        found = self.next.kind == "sign" and self.next.text == sign
        self.at += found
        return found

    def expect(self, sign: str) -> None:
        if not self.accept(sign):
            raise self.error(f"expected {sign!r}, got {_shown(self.next)}", self.next.offset)

    def deeper(self) -> None:
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise self.error(f"nested deeper than {_MAX_DEPTH} levels; name a part: t = …; … t …", self.next.offset)

    def outputs(self) -> tuple[Node, ...]:
        while self.next.kind == "name" and self.tokens[self.at + 1].text == "=":
            self.statement()
        nodes = [as_real(self.expression())]
        while self.accept(","):
            nodes.append(as_real(self.expression()))
        self.accept(";")
        if self.next.kind != "end":
            raise self.error(f"expected an operator or the end, got {_shown(self.next)}", self.next.offset)
        return tuple(nodes)

    def statement(self) -> None:
        target = self.take()
        self.expect("=")
        value = self.expression()
        if not self.accept(";"):
            raise self.error(
                f"expected ';' behind the value of {brief(target.text)!r}, got {_shown(self.next)}", self.next.offset
            )
        self.values[target.text] = value

    def expression(self) -> Node:
        self.deeper()
        node = self.binary(1)
        if self.accept("?"):
            chosen = self.expression()
            self.expect(":")
            node = call("where", node, chosen, self.expression())
        elif self.accept("if"):
            condition = self.binary(1)
            self.expect("else")
            node = call("where", condition, node, self.expression())
        self.depth -= 1
        return node

    def binary(self, least: int) -> Node:
        """Operators that bind at least so tightly."""
        if least <= _COMPARISON and self.accept("not"):
            self.deeper()
            node = call("not", self.binary(_COMPARISON))
            self.depth -= 1
        else:
            node = self.signed()
        while True:
            token = self.next
            binding = _BINDING.get(token.text, 0) if token.kind == "sign" else 0
            if binding < least or not binding:
                return node
            self.take()
            node = call(_MEANING.get(token.text, token.text), node, self.binary(binding + 1))
            if binding == _COMPARISON and _BINDING.get(self.next.text) == _COMPARISON:
                message = "comparisons in a row differ between C and Python: write a < b && b < c"
                raise self.error(message, self.next.offset)

    def signed(self) -> Node:
        signs = []
        while self.next.kind == "sign" and self.next.text in "+-!":
            signs.append(self.take().text)
        node = self.power()
        for sign in reversed(signs):
            node = call("neg", node) if sign == "-" else call("not", node) if sign == "!" else as_real(node)
        return node

    def power(self) -> Node:
        base = self.primary()
        if not self.accept("**"):
            return base
        self.deeper()
        node = call("pow", base, self.signed())
        self.depth -= 1
        return node

    def primary(self) -> Node:
        token = self.take()
        if token.kind == "number":
            return number(float(token.text.rstrip("fF")))
        if token.kind == "name":
            return self.called(token) if self.accept("(") else self.named(token)
        if token.text == "(":
            node = self.expression()
            self.expect(")")
            return node
        raise self.error(f"expected a number, a name or '(', got {_shown(token)}", token.offset)

    def named(self, token: _Token) -> Node:
        if token.text not in self.values:
            known = ", ".join(x for x in self.values if x not in CONSTANTS)
            raise self.error(f"unknown name {brief(token.text)!r}; there is {known}", token.offset)
        return self.values[token.text]

    def called(self, token: _Token) -> Node:
        arguments: list[Node] = []
        if not self.accept(")"):
            arguments.append(self.expression())
            while self.accept(","):
                arguments.append(self.expression())
            self.expect(")")
        try:
            return call_by_name(token.text, arguments)
        except ValueError as error:
            raise self.error(str(error), token.offset) from None


def call_by_name(function: str, arguments: list[Node]) -> Node:
    """A call as a user writes it; a ValueError says what is wrong with it. ``min`` and ``max`` take two or more."""
    row = FUNCTIONS.get(ALIASES.get(function, function))
    if row is None or function in _WORDS:
        raise ValueError(unknown_function(function))
    if row.name in ("min", "max") and len(arguments) > 2:
        return functools.reduce(lambda a, b: call(row.name, a, b), arguments)
    if len(arguments) != row.arity:
        count = f"{row.arity} argument{'s' * (row.arity > 1)}"
        raise ValueError(f"{function} takes {count}, got {len(arguments)}")
    return call(row.name, *arguments)


def is_random(function: str) -> bool:
    return bool(_RANDOM.match(function))


def unknown_function(function: str) -> str:
    if is_random(function):
        return f"{brief(function)!r} is no function of an element: pass a tensor of random numbers, torch.rand_like(x)"
    callable_by_name = [x for x in (*FUNCTIONS, *ALIASES) if x.isidentifier() and x not in _WORDS]
    near = difflib.get_close_matches(function, callable_by_name, n=1)
    return f"unknown function {brief(function)!r}" + (f"; did you mean {near[0]!r}?" if near else "")


def _without_module(dotted: str, known: Container[str]) -> str:
    """What is wrong with ``torch.exp`` and ``x.exp``."""
    first, last = dotted.partition(".")[0], dotted.rpartition(".")[2]
    if last in FUNCTIONS or last in ALIASES:
        written = f"{last}({first})" if first in known else f"{last}(…)"
        return f"a function is called by its name alone: write {written}, not {brief(dotted)}"
    if last in CONSTANTS:
        return f"a constant has a name alone: write {last}, not {brief(dotted)}"
    return unknown_function(last) if is_random(last) else f"unknown: {brief(dotted)}; names have no dots"


def _shown(token: _Token) -> str:
    return "the end" if token.kind == "end" else repr(brief(token.text))


def _hint(rest: str) -> str:
    if rest[0] == "^":
        return "; a power is x ** y"
    if rest[0] in "&|":
        return "; there is && and ||, no bitwise operator"
    if rest[0].isdigit() or rest[0] == ".":
        return ": what begins here is no number"
    return ""
