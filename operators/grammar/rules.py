"""The rules of the grammar: Python as Triton modules are written in it, with kernels as a family of statements of their own.

A rule is text: names of rules, terminals in capitals, words and signs in quotes, and ``( ) | ? * +``. A blank inside the quotes says
that one is needed there where letters touch. Host code (``h``) and kernels (``j``) have families of their own, expressions stand twice,
outside of brackets (``o``) and inside (``i``, where lines may be broken), and statements once for every level of indentation.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

VERSION = 1
"""Raised with every change of the language that the grammar describes."""

LEVELS = 10
"""Levels of indentation."""

# Outside of brackets and inside.
_EXPRESSIONS = {
    "expression": "disjunction (' if ' disjunction ' else ' expression)?",
    "disjunction": "inversion ((' and '|' or ') inversion)*",
    "inversion": "'not '* comparison",
    "comparison": "arithmetic ((COMPARE|' in '|' not ' 'in '|' is '|' is ' 'not ') arithmetic)*",
    "arithmetic": "factor (BINARY factor)*",
    "factor": "SIGN* primary",
    "primary": "atom trailer* stray?",
    "atom": "NAME | NUMBER | CONSTANT | STRING+ | '(' inside? ')' | '[' elements? ']'",
    "trailer": "'.' NAME | '(' arguments? ')' | '[' slices ']'",
    "target": "(NAME | atom trailer* ('.' NAME | '[' slices ']') | '(' target_list ')' | '[' target_list ']') stray?",
    "stray": "NAME NEVER",
    "targets": "'*'? target (',' '*'? target)* ','?",
    "condition": "expression | NAME ':=' expression",
    "managed": "expression (' as ' target)?",
}

_HOST_EXPRESSIONS = {
    "expression": "disjunction (' if ' disjunction ' else ' expression)? | 'lambda' lambda_parameters? ':' expression",
    "factor": "SIGN* 'await '? primary",
    "atom": "NAME | NUMBER | CONSTANT | STRING+ | '(' inside? ')' | '[' elements? ']' | '{' (pairs | elements)? '}'",
    "lambda_parameters": (
        "NAME (',' NAME)* (',' lambda_default)* (',' lambda_rest)? ','?"
        " | lambda_default (',' lambda_default)* (',' lambda_rest)? ','? | lambda_rest ','?"
    ),
    "lambda_default": "NAME '=' expression",
    "lambda_rest": (
        "'*' NAME (',' NAME ('=' expression)?)* (',' '**' NAME)? | '*' (',' NAME ('=' expression)?)+ (',' '**' NAME)? | '**' NAME"
    ),
    "member": "NAME (' as ' NAME)?",
}

_STRICT = {"atom": _EXPRESSIONS["atom"].replace("NAME", "UNQUALIFIED | QUALIFIED")}

# Inside of brackets, whatever stands around them.
_BRACKETED = {
    "target_list": "targets",
    "named": "expression | NAME ':=' expression",
    "element": "named | '*' arithmetic",
    "inside": "element (comprehension | (',' element)* ','?)",
    "elements": "element (comprehension | (',' element)* ','?)",
    "comprehension": "(' for ' targets ' in ' disjunction (' if ' disjunction)*)+",
    "slices": "slice (',' slice)* ','?",
    "slice": "named | '*' arithmetic | expression? ':' expression? (':' expression?)?",
    "arguments": (
        "positional (',' positional)* (',' keyed)* (',' mapped)* ','? | keyed (',' keyed)* (',' mapped)* ','?"
        " | mapped (',' mapped)* ','? | named comprehension"
    ),
    "positional": "named | '*' expression",
    "keyed": "NAME '=' expression | '*' expression",
    "mapped": "NAME '=' expression | '**' expression",
    "parameters": (
        "plain (',' plain)* (',' '/' (',' plain)*)? (',' defaulted)* (',' '/' (',' defaulted)*)? (',' rest)? ','?"
        " | defaulted (',' defaulted)* (',' '/' (',' defaulted)*)? (',' rest)? ','? | rest ','?"
    ),
    "plain": "NAME (':' expression)?",
    "defaulted": "NAME (':' expression)? '=' expression",
    "keyword_only": "NAME (':' expression)? ('=' expression)?",
    "rest": "'*' plain (',' keyword_only)* (',' mapping)? | '*' (',' keyword_only)+ (',' mapping)? | mapping",
    "mapping": "'**' plain",
}

_HOST_BRACKETED = {
    "inside": "element (comprehension | (',' element)* ','?) | 'yield ' 'from '? element (',' element)* | 'yield'",
    "comprehension": "(' async '? ' for ' targets ' in ' disjunction (' if ' (disjunction | NAME ':=' expression))*)+",
    "pairs": "pair (',' pair)* ','? | expression ':' expression comprehension",
    "pair": "expression ':' expression | '**' arithmetic",
    "import_list": "member (',' member)* ','?",
    "managed_list": "managed (',' managed)* ','?",
}

# On one line, outside of brackets.
_SIMPLE = {
    "line": "small (';' small)* ';'?",
    "small": (
        "expressions | assignment | 'pass' | 'return' | 'return ' expressions | 'assert ' expression (',' expression)?"
        " | 'raise ' expression"
    ),
    "assignment": "(targets '=')+ expressions | target AUGMENT expressions | target ':' expression ('=' expressions)?",
    "expressions": "starred (',' starred)* ','?",
    "starred": "expression | '*' arithmetic",
}

_HOST_SIMPLE = {
    "small": (
        "expressions | assignment | 'pass' | 'return' | 'return ' expressions | 'assert ' expression (',' expression)?"
        " | 'break' | 'continue' | 'del ' targets | 'raise' | 'raise ' expression (' from ' expression)?"
        " | 'global ' NAME (',' NAME)* | 'nonlocal ' NAME (',' NAME)*"
        " | 'import ' import_as (',' import_as)* | 'from ' origin ' import ' imported | yielded"
    ),
    "assignment": (
        "(targets '=')+ (expressions | yielded) | target AUGMENT (expressions | yielded) | target ':' expression ('=' expressions)?"
    ),
    "yielded": "'yield' | 'yield ' 'from '? expressions",
    "dotted": "NAME ('.' NAME)* stray?",
    "import_as": "dotted (' as ' NAME)?",
    "origin": "DOTS? dotted | DOTS",
    "imported": "'*' | member (',' member)* | '(' import_list ')'",
}

# Of one level of indentation. NEWLINE begins a line of it, DEEPER one of the next, whose statements `nested` are.
_COMPOUND = {
    "statement": "line | if_statement | while_statement | for_statement | with_statement",
    "block": "':' (line | (DEEPER nested)+)",
    "if_statement": "'if ' condition block (NEWLINE 'elif ' condition block)* (NEWLINE 'else' block)?",
    "while_statement": "'while ' condition block",
    "for_statement": "'for ' targets ' in ' expressions block",
    "with_statement": "'with ' managed (',' managed)* block",
}

_HOST_COMPOUND = {
    "statement": (
        "line | if_statement | while_statement | for_statement | try_statement | with_statement"
        " | 'async ' (with_statement | for_statement) | definition | class_definition"
        " | (decorator NEWLINE)+ (definition | class_definition) | (decorator NEWLINE)* kernel"
    ),
    "while_statement": "'while ' condition block (NEWLINE 'else' block)?",
    "for_statement": "'for ' targets ' in ' expressions block (NEWLINE 'else' block)?",
    "try_statement": (
        "'try' block ((NEWLINE handler)+ (NEWLINE 'else' block)? (NEWLINE 'finally' block)? | NEWLINE 'finally' block)"
    ),
    "handler": "'except' block | 'except ' '*'? expression (' as ' NAME)? block",
    "with_statement": "'with ' (managed (',' managed)* | '(' managed_list ')') block",
    "definition": "'async '? 'def ' NAME '(' parameters? ')' ('->' expression)? block",
    "class_definition": "'class ' NAME ('(' arguments? ')')? block",
    "decorator": "'@' NAME (('.' NAME)* '.' OTHER)? ('(' arguments? ')')*",
    "kernel": "'@' NAME '.' 'jit' ('(' arguments? ')')? NEWLINE 'def ' NAME '(' parameters? ')' ('->' expression)? block@j",
}

_REFERENCE = re.compile(r"'[^']*'|[A-Z]+|[a-z_]+(?:@j)?")
_TOKEN = re.compile(r"""'[^']*'[oi]|"(?:\\.|[^"\\])*"|[A-Z]+_[a-z0-9]+|[a-z_]+_[hj][oi0-9]|[a-z_]+""")
"""What resolved rules consist of, besides signs."""

_OPENING = frozenset("([{")


# The form of generated modules.
_GENERATED = {
    "value": "KEY_i ':'i INTEGER_i",
    "choices": "KEY_i ':'i '['i INTEGER_i (','i INTEGER_i)* ']'i",
    "entry_block": "':'o (NEWLINE_1 statement_h1)+",
}


def rules(*, tidy: bool, strict: bool) -> dict[str, str]:
    """Every rule by its full name, e.g. ``expression_jo``, resolved: references are full names as well, terminals carry their place
    (``NAME_o``), and so do words and signs (``'+'o``).

    Args:
        tidy: For text that is generated. Otherwise, where a name follows an operand the whole name is read and then refused, so that
            ``a inb`` is not taken for ``a in b``; a generator would be led into a blind alley by that. Strings side by side are not
            generated.
        strict: In kernels, what follows ``tl.`` is one of a list.
    """
    made: dict[str, str] = {}
    for family in "hj":
        host = family == "h"
        expressions = _EXPRESSIONS | (_HOST_EXPRESSIONS if host else _STRICT if strict else {})
        bracketed = _BRACKETED | (_HOST_BRACKETED if host else {})
        simple = _SIMPLE | (_HOST_SIMPLE if host else {})
        compound = _COMPOUND | (_HOST_COMPOUND if host else {})
        places = dict.fromkeys(bracketed, "i") | dict.fromkeys(simple, "o")
        for place in "oi":
            where = places | dict.fromkeys(expressions, place)
            bodies = expressions | (simple if place == "o" else bracketed)
            made |= {f"{name}_{family}{place}": _resolved(body, family, place, where) for name, body in bodies.items()}
        for level in range(LEVELS):
            where = places | dict.fromkeys(expressions, "o") | dict.fromkeys(compound, str(level)) | {"nested": str(level + 1)}
            for name, body in compound.items():
                text = "':' line" if name == "block" and level == LEVELS - 1 else body
                made[f"{name}_{family}{level}"] = _resolved(text, family, "o", where)
    if tidy:
        made |= {f"kernel_h{level}": made[f"kernel_h{level}"].replace("NAME_o", "'triton'o", 1) for level in range(LEVELS)}
        made = {name: re.sub(r" stray_..\?|(?<=STRING_.)\+", "", body) for name, body in made.items()}
    return made | _GENERATED


def _resolved(body: str, family: str, place: str, where: Mapping[str, str]) -> str:
    level = int(where.get("statement", 0))

    def full(match: re.Match[str]) -> str:
        text = match[0]
        if text.startswith("'"):
            return f"{text}{'i' if text[1] in _OPENING else place}"
        if text in ("NEWLINE", "DEEPER"):
            return f"NEWLINE_{level + (text == 'DEEPER')}"
        if text.isupper():
            return f"{text}_{place}"
        name, _, other = text.partition("@")
        return f"{'statement' if name == 'nested' else name}_{other or family}{where[name]}"

    return _REFERENCE.sub(full, body)


def tokens(body: str) -> list[str]:
    """The references and tokens of a resolved rule, in order."""
    return _TOKEN.findall(body)


def rewritten(body: str, spell: Mapping[str, str]) -> str:
    """A resolved rule in another spelling of its references and tokens."""
    return _TOKEN.sub(lambda match: spell[match[0]], body)
