"""The entities of the demonstration world, made once for all tests: it takes seconds, and they are always the same."""

import functools

from envs.retrieval import elements as _elements
from envs.retrieval import facts as _facts

geography = functools.cache(_facts.geography)
elements = functools.cache(_elements.elements)
