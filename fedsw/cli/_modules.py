"""Names that verbs use of other modules: each is imported when a verb first asks it for a name.

So `fedsw --help` and a word that is wrong load nothing that computes (tests/cli/test_app_startup.py), and no verb loads
what another one needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedsw._tools.later import imported_later

__all__ = [
    "additive_shapes", "answer_files", "audited", "budgets", "bundles", "cards", "certificates", "client_check",
    "client_states", "code_books", "comparable", "comparison", "comparison_grid", "comparison_page",
    "comparison_table", "data_places", "demo_grid", "description_page", "descriptions", "drafts", "drifting",
    "driver", "examining", "execution", "experiment_code", "experiment_files", "experiments", "exporting",
    "figures", "following", "installed", "lifetime", "limits", "model_shapes",
    "node_settings", "observers", "other_tables", "pool", "private_search", "progress_bars", "public_rows",
    "rehearsal", "roll_call", "rosters", "run_accounts", "run_commands", "run_documents", "run_facts", "run_files",
    "run_folder", "run_grid", "run_pages", "run_plan", "run_progress", "run_status", "run_view", "screens",
    "searching", "selections", "served", "settings_models", "shape_figures", "sources", "synthetic_table",
    "table_columns", "telemetry", "trained", "understanding", "verbs",
]  # fmt: skip

if TYPE_CHECKING:
    from rich import progress as progress_bars

    from fedsw import audit as audited
    from fedsw import experiment as experiments
    from fedsw._tools import installed as installed
    from fedsw._tools import settings as settings_models
    from fedsw.cli import columns as table_columns
    from fedsw.cli import demo as demo_grid
    from fedsw.cli import execution as execution
    from fedsw.data import places as data_places
    from fedsw.data import sources as sources
    from fedsw.desk import budget as budgets
    from fedsw.desk import compare as comparison
    from fedsw.desk import run_grid as run_grid
    from fedsw.desk import verbs as verbs
    from fedsw.desk.compare import comparison_grid as comparison_grid
    from fedsw.desk.compare import comparison_page as comparison_page
    from fedsw.desk.compare import methods as comparable
    from fedsw.desk.compare import table as comparison_table
    from fedsw.desk.own_data import answers as answer_files
    from fedsw.desk.own_data import apart as other_tables
    from fedsw.desk.own_data import card as cards
    from fedsw.desk.own_data import code_book as code_books
    from fedsw.desk.own_data import description as descriptions
    from fedsw.desk.own_data import description_page as description_page
    from fedsw.desk.own_data import draft as drafts
    from fedsw.desk.own_data import drifts as drifting
    from fedsw.desk.own_data import examine as examining
    from fedsw.desk.own_data import rehearsal as rehearsal
    from fedsw.desk.own_data import synthetic_table as synthetic_table
    from fedsw.desk.own_data import understood as understanding
    from fedsw.desk.planning import private_search as private_search
    from fedsw.desk.planning import public_rows as public_rows
    from fedsw.desk.planning import run_plan as run_plan
    from fedsw.desk.planning import search as searching
    from fedsw.desk.use import export as exporting
    from fedsw.desk.use import trained as trained
    from fedsw.experiment import choices as experiment_code
    from fedsw.experiment import load as experiment_files
    from fedsw.federation.deploy import bundle as bundles
    from fedsw.federation.deploy import certificates as certificates
    from fedsw.federation.deploy import client_check as client_check
    from fedsw.federation.deploy import node_settings as node_settings
    from fedsw.federation.deploy import serving as served
    from fedsw.federation.engines import driver as driver
    from fedsw.federation.engines import following as following
    from fedsw.federation.engines import pool as pool
    from fedsw.federation.node import limits as limits
    from fedsw.federation.node import roster as rosters
    from fedsw.privacy.accounting import lifetime as lifetime
    from fedsw.privacy.accounting import selection as selections
    from fedsw.runs import accounts as run_accounts
    from fedsw.runs import additive_shapes as additive_shapes
    from fedsw.runs import client_status as client_states
    from fedsw.runs import commands as run_commands
    from fedsw.runs import directory as run_folder
    from fedsw.runs import observers as observers
    from fedsw.runs import progress as run_progress
    from fedsw.runs import roll_call as roll_call
    from fedsw.runs import run_files as run_files
    from fedsw.runs import shapes_of_model as model_shapes
    from fedsw.runs import status as run_status
    from fedsw.runs import telemetry as telemetry
    from fedsw.runs import view as run_view
    from fedsw.runs import write as run_pages
    from fedsw.runs.report import facts as run_facts
    from fedsw.runs.report import figures as figures
    from fedsw.runs.report import run_documents as run_documents
    from fedsw.runs.report import screens as screens
    from fedsw.runs.report import shapes as shape_figures

globals().update(imported_later(__spec__))
