"""Which fedsw is installed."""


def installed_version() -> str:
    """The version in pyproject.toml when the package was installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("fedsw")
    except PackageNotFoundError:
        return "0+not.installed"
