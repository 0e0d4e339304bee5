"""Learning with optimal-transport losses on private data that stays where it is.

`__version__` is what pyproject.toml said when the package was installed.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    __version__: str
else:

    def __getattr__(name: str) -> str:
        if name != "__version__":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("fedsw")
        except PackageNotFoundError:
            return "0+not.installed"
