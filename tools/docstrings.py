"""Judge whether docstrings are sentences: does the first one of each have a verb?

The judgement is a heuristic on words, with a list of verbs made for this project. It has no
grammar: of the docstrings said to have a main verb, about one in ten has none when a person looks.
So compare the figures of two trees rather than trust one of them.

- A sentence that opens with a listed verb, with or without an s, is an imperative: `Read a plan.`
- Elsewhere a verb is a word such as `is` or `can`; a listed verb with an s, unless the word before
  it shows a noun (`the calls`); a listed verb after a plural (`workers share`); or a form in -ed
  after a pronoun (`who asked`). Verbs that are as often nouns are looked at with more doubt.
- Words such as `that`, `what` and `if` open a side clause, which takes the next verb for itself:
  `Rows that cannot be painted.` has a verb, but only in its side clause. A comma closes the clause.
- What stands in backticks is a name and never a verb.
"""

import ast
import re
from collections.abc import Iterator
from enum import Enum
from itertools import pairwise
from typing import Any


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# The base forms of verbs that open a docstring, or stand in it with a third-person s.
_VERBS = _words(
    """abandon abort accept acknowledge add adjust admit advance allow announce append apply arrange
    average configure embed recover reshape sleep treat
    arise arrive ask assign assume attach attend avoid await become begin believe belong bind
    break bring build bury cancel carry cast catch cause choose clear close collect combine come
    compare compile complete compute connect contain continue convert cost cover create cut
    decide decode define delete deliver depend derive describe detach detect die differ dispatch
    divide download drain drop emit empty encode enforce enqueue ensure enter estimate evaluate
    examine execute exist expect expire explain expose extend fail fall feed fetch fill filter
    find finish fit flush fold follow forbid forget forgive generate get give go grow guarantee
    halve handle hang happen have hear help hold ignore implement import include initialise
    inject insert inspect install invoke iterate join keep kill know lack launch learn leave let lie
    live look lose make match mean measure mend merge mount need normalise notify obey occur
    omit open owe own pack pad paint parse pass perform pick pop prefer prepare prevent print
    produce protect prove provide publish pull purge push put quit raise reach read rebuild
    receive reconnect redirect redrive reduce refuse register reject release reload remain
    remember remove rename render renew repair repeat replace replay represent requeue require
    resend reserve reset resize resolve restart resume retire retry return revoke rise route
    save say scale seal see select send serve settle show shrink shut simulate sit skip sort
    speak spell spend stand stay stream strip submit succeed sum summarise survive swap sweep
    take talk tell throw translate travel trim truncate understand unpack unwrap update upload
    use validate verify vet wait wake walk want warn wire withdraw wrap write yield"""
)
# These are as often nouns, so that their neighbours decide: `RunRecords of a namespace`, `It runs`.
_NOUN_TOO = _words(
    """answer attempt batch block call change check claim copy count draw end file group guess
    hand key lease limit list load lock map mark mix move name note number offer order part
    pause place plan poll progress project queue record report request result run sample
    schedule score set share shift sign split start state step stop store support test try turn
    watch weigh work"""
)
_FINITE = _words(
    """is are was were has have had does do did can cannot may might must will would shall
    should could came went took gave knew saw began wrote ran died chose got held kept left made
    said sent stood told lost met found"""
)
# A word of _FINITE that may also be a participle counts only after one of these.
_PARTICIPLES = _words("held kept left made said sent stood told lost met found got")
_PRONOUNS = _words(
    """i we you he she it they this that there who which what nobody somebody everybody nothing
    something everything one each others X"""
)
_ACTORS = _words("it he she they we you who that which others nobody somebody")
_NO_SUBJECT = _words(
    """a an the its their our your his her this these those all no some any many few several
    both every each other more most of in on at by for from to with without as than between
    beside under over after before within one two three"""
)
_LINKS = _words("of and or that which who whose with as for by in from to under is are")
_AFTER_NOUN = _words("of and or for , : ;")
_SIDE = _words(
    """that which who whom whose what whatever whoever where wherever when whenever whether how
    why if unless until while because as since after before than"""
)
_ENDINGS = (("s", ""), ("es", ""), ("ies", "y"))
_ADVERBS = _words("always never first then also only just not")


class Verb(Enum):
    """A member tells where the verb of a sentence stands."""

    MAIN = "main"
    SIDE = "side"
    NONE = "none"


_Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """Yield line, owner and text of each docstring of a module, its classes and functions."""
    for node in ast.walk(tree):
        if isinstance(node, _Documented) and (text := ast.get_docstring(node)):
            yield node.body[0].lineno, getattr(node, "name", "module"), text


def attribute_docstrings(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """Yield line, attribute and text of each string that stands below an assignment."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for above, below in pairwise(body) if isinstance(body, list) else ():
            if isinstance(above, ast.Assign | ast.AnnAssign) and isinstance(below, ast.Expr):
                value = below.value
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    owner = above.targets[0] if isinstance(above, ast.Assign) else above.target
                    yield below.lineno, ast.unparse(owner), value.value


def first_sentence(text: str) -> str:
    """Return the first sentence of a docstring, or '' if it opens with `Args:` or the like."""
    if re.match(r"(Args|Raises|Returns|Yields|Attributes):\s", text):
        return ""
    paragraph = " ".join(text.strip().split("\n\n")[0].split())
    return re.split(r"(?<!\bal\.)(?<!\be\.g\.)(?<!\bi\.e\.)(?<=[.!?])\s", paragraph)[0]


def verb_of(sentence: str) -> Verb:
    """Find the verb of a sentence, or tell that it has none."""
    plain = re.sub(r"`[^`]*`", " X ", sentence).replace("\u2019", "'")
    plain = re.sub(r"\bas (many|much|often|long|soon|a whole)\b", "so", plain, flags=re.IGNORECASE)
    words = re.findall(r"[A-Za-z][\w'-]*|[,:;()?]", plain)
    words = [word if word == "X" else word.lower().removesuffix("n't") for word in words]
    found, pending, opening = Verb.NONE, 0, True
    for at, word in enumerate(words):
        before = words[at - 1] if at else ""
        after = words[at + 1] if at + 1 < len(words) else ""
        if word in ",:;()":
            opening, pending = (opening and word == "(") or word in ":;", 0
        elif opening and _opens(word, after):
            return Verb.MAIN
        elif word in _SIDE:
            opening, pending = False, pending + 1
        elif _is_finite(word, before, after):
            goes_on = found is Verb.SIDE and before in ("and", "or")  # that fell and stood up
            if words[-1] == "?" or not (pending or goes_on):
                return Verb.MAIN
            found, pending, opening = Verb.SIDE, max(pending - 1, 0), False
        else:
            opening = opening and (word in _ADVERBS or word.endswith("ly"))
    return found


def docstring_figures(files: list[tuple[str, ast.Module]]) -> dict[str, Any]:
    """Count docstrings by the verb of their first sentence.

    `verbless` and `verbless attributes` list those that have none.
    """
    found = [(path, *doc) for path, tree in files for doc in docstrings(tree)]
    judged = [(where, verb) for where, text, verb in map(_judge, found) if text]
    none = [where for where, verb in judged if verb is Verb.NONE]
    side = sum(verb is Verb.SIDE for _, verb in judged)
    attributes = [(path, *doc) for path, tree in files for doc in attribute_docstrings(tree)]
    bare = [where for where, _, verb in map(_judge, attributes) if verb is Verb.NONE]
    return {
        "docstrings": len(found),
        "docstrings of sections only": len(found) - len(judged),
        "docstrings without a verb": len(none),
        "share without a verb, %": round(100 * len(none) / max(len(judged), 1), 1),
        "docstrings, verb in side clause only": side,
        "share without a main verb, %": round(100 * (len(none) + side) / max(len(judged), 1), 1),
        "attribute docstrings": len(attributes),
        "attribute docstrings without a verb": len(bare),
        "verbless": none,
        "verbless attributes": bare,
    }


def _judge(found: tuple[str, int, str, str]) -> tuple[str, str, Verb]:
    """Return the place and the text of the first sentence of a docstring, its text, its verb."""
    path, line, owner, text = found
    first = first_sentence(text)
    return f"{path}:{line} {owner}: {first}", first, verb_of(first)


def _base(word: str) -> str:
    """Return the listed verb that a word ending in s is a form of, or ''."""
    forms = [word[: -len(end)] + back for end, back in _ENDINGS if word.endswith(end)]
    return next((form for form in forms if form in _VERBS | _NOUN_TOO), "")


def _opens(word: str, after: str) -> bool:
    """Tell whether a word that opens a sentence is its verb."""
    if word in ("do", "does", "be") or word in _VERBS or _base(word) in _VERBS:
        return True
    if word in _NOUN_TOO:
        return after not in _AFTER_NOUN
    return _base(word) in _NOUN_TOO and not _makes_noun(after)


def _makes_noun(after: str) -> bool:
    """Tell whether the next word shows that this one is a noun, as in `runs of` or `steps done`."""
    return after in _LINKS | _PARTICIPLES | {"", ",", ":", ";", "done"} or after.endswith("ed")


def _is_finite(word: str, before: str, after: str) -> bool:
    """Tell whether a word in the middle of a sentence is a finite verb."""
    if before == "to":
        return False
    if word in _FINITE:
        return word not in _PARTICIPLES or before in _PRONOUNS or before in _SIDE
    if before in _ACTORS and word.endswith("ed"):
        return True
    if word in _VERBS | _NOUN_TOO:
        return _is_plural_verb(word, before, after)
    return bool(_base(word)) and _is_singular_verb(word, before, after)


def _is_plural_verb(word: str, before: str, after: str) -> bool:
    """Tell whether a listed verb without an s is finite, as in `workers share`."""
    if word in _NOUN_TOO and _makes_noun(after):
        return False
    plural = (
        before.endswith("s") and not before.endswith(("ss", "'s")) and _base(before) not in _VERBS
    )
    return before in _ACTORS - {"it", "he", "she"} or (
        plural and before not in _NO_SUBJECT | _FINITE | _PRONOUNS | {"as", "less", "redis"}
    )


def _is_singular_verb(word: str, before: str, after: str) -> bool:
    """Tell whether a listed verb with an s is finite, as in `it runs`."""
    if before in _NO_SUBJECT and before not in _PRONOUNS:
        return False
    if _base(word) in _VERBS or before in _PRONOUNS - {"X"}:
        return True
    joined = before in ("and", "or", "", ",", "(") or before.endswith(("ed", "ing"))
    return not joined and not _makes_noun(after)
