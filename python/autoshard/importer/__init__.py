"""From a StableHLO module to the core's ``Program``."""

from autoshard.importer.imported_program import ImportedProgram as ImportedProgram
from autoshard.importer.program import import_program as import_program
from autoshard.importer.rules import register_rule as register_rule
