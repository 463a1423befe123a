"""What a rewrite, by its name, makes of a module's text, or why nothing."""

from evo.registry import find_operators
from operators.rewrite.base import Rewrite
from operators.rewriting import offers


def found(name, source, target="cuda:90"):
    """All offers."""
    cls = find_operators()[name]
    assert issubclass(cls, Rewrite)
    return offers(cls(), source, target)


def child(name, source, site=0, target="cuda:90"):
    """The text of the child of one site."""
    result = found(name, source, target)
    assert result.children, result.reason or result.sites
    return result.children[site].source


def refusals(name, source, target="cuda:90"):
    """The reasons for which there is no child."""
    result = found(name, source, target)
    assert not result.children, result.children[0].source
    return result.reason or "; ".join(site.reason for site in result.sites)


def edited(source, old, new):
    """The text with one part instead of another, which it has."""
    assert old in source
    return source.replace(old, new)
