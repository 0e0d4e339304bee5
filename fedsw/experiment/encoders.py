"""Ways to encode the private half of a data set of images, by name; rooms above, which learn them, register theirs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fedsw._tools.registry import Registry

Encoder = Callable[[Any, int, int], Any]
"""From a whole `Dataset` of images, the length of a code and epochs to a `Dataset` of codes."""

ENCODERS: Registry[Encoder] = Registry("an encoder")
