"""Whether every path from a parameter to an output runs through the layer that owns the parameter."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from torch import Tensor
from torch.autograd.graph import Node

from fedsw.clipping.refusals import UnsupportedModule


def leaves(outputs: Iterable[Tensor], sources: dict[Node, Node | None]) -> Iterator[Tensor]:
    """The tensors that the graph below the outputs starts from: those that a gradient would be accumulated in.

    Args:
        outputs: tensors of any shape that carry gradient.
        sources: for the node that made the output of a recorded call, the node that made its input: the walk
            steps over the call, so that a parameter is met only if it is used behind its layer's back.
    """
    pending = []
    for output in outputs:
        if output.grad_fn is None:
            yield output
        else:
            pending.append(output.grad_fn)
    seen = set(pending)
    while pending:
        node = pending.pop()
        if node in sources:
            below = [sources[node]]
        else:
            below = [child for child, _ in node.next_functions]
            if hasattr(node, "variable"):
                yield node.variable
        for child in below:
            if child is not None and child not in seen:
                seen.add(child)
                pending.append(child)


def refuse_strays(reached: Iterable[Tensor], names: Mapping[int, str]) -> None:
    """Refuse a trainable parameter among the leaves, of any shape.

    Raises:
        UnsupportedModule: naming the parameter.
    """
    for leaf in reached:
        name = names.get(id(leaf))
        if name is not None:
            raise UnsupportedModule(
                f"parameter {name!r} reaches the output outside the layer that owns it (functional use), "
                "where its per-sample gradient is not measured. Call the layer itself, once, or detach the "
                "parameter."
            )
