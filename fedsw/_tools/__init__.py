"""Tools of every room, which know no room: whole files and locks, text, secure randomness, settings, registries.

`database` opens SQLite's files on any medium, `exits` has the exit codes, `files` writes whole files and holds locks,
`installed` is the package's digest, `later` imports torch and `lazy` a package's names when they are used,
`randomness` draws from a secure source,
`registry` finds things by name, `settings` reads and checks them, `subnormal` switches flushing to zero, `text` words
numbers and tables.
"""

__all__ = [
    "database", "exits", "files", "installed", "later", "lazy", "randomness", "registry", "settings", "subnormal",
    "text",
]  # fmt: skip
