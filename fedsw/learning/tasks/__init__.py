"""Learning tasks: models with their outputs, losses and held-out measures, and the public side of a matching.

`task` is the interface, and the shipped tasks are here by name; `problem` is an experiment made concrete.
"""

from typing import TYPE_CHECKING

from fedsw._tools.later import named

if TYPE_CHECKING:
    from fedsw.learning.tasks.kinds._adaptation import Adaptation as Adaptation
    from fedsw.learning.tasks.kinds._autoencoder import Autoencoder as Autoencoder
    from fedsw.learning.tasks.kinds._classification import Classification as Classification
    from fedsw.learning.tasks.kinds._generation import Generation as Generation
    from fedsw.learning.tasks.kinds._regression import Regression as Regression
    from fedsw.learning.tasks.kinds._representation import Representation as Representation
    from fedsw.learning.tasks.kinds._synthesis import Synthesis as Synthesis

_KINDS = ("Adaptation", "Autoencoder", "Classification", "Generation", "Regression", "Representation", "Synthesis")

__all__ = [*_KINDS]

__getattr__ = named(__name__, {f"kinds._{kind.lower()}": (kind,) for kind in _KINDS})
