"""Tools of every room, which know no room: whole files and locks, text, secure randomness, settings, registries.

`database` opens SQLite's files on any medium, `exits` has the exit codes, `files` writes whole files and holds locks,
`installed` is the package's digest, `later` imports torch and a package's names when they are used,
`own_objects` loads what settings name as `module:name`, `randomness` draws from a secure source,
`registry` finds things by name, `section` is the base of every section of settings, `settings` reads and checks them,
`subnormal` switches flushing to zero, `text` words numbers and tables.
"""

__all__ = [
    "database", "exits", "files", "installed", "later", "own_objects", "randomness", "registry",
    "section", "settings", "subnormal", "text",
]  # fmt: skip
