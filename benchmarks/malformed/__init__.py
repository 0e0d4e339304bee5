"""Malformed inputs: what each command line says and exits with, and that nothing was spent."""

from benchmarks.malformed.commands import COMMANDS
from benchmarks.malformed.models import MODELS
from benchmarks.malformed.settings import SETTINGS
from benchmarks.malformed.tables import TABLES

CASES = (*TABLES, *COMMANDS, *SETTINGS, *MODELS)
