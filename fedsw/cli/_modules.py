"""Names that verbs use of other modules: each is imported when a verb first asks it for a name.

So `fedsw --help` and a word that is wrong load nothing that computes (tests/cli/test_app_startup.py), and no verb loads
what another one needs.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from fedsw._tools.later import Later, loading

__all__ = [
    "account_screens", "additive_shapes", "answer_files", "audit_canary", "audit_one_run", "audit_record", "budgets",
    "bundles", "cards", "certificates", "client_check", "client_states", "code_books", "comparable", "comparison",
    "comparison_grid", "comparison_page", "comparison_table", "data_places", "demo_grid", "description_page",
    "descriptions", "drafts", "drifting", "driver", "examining", "execution", "experiment_code", "experiment_files",
    "experiments", "exporting", "figures", "flower_processes", "following", "installed", "lifetime", "limits",
    "moments_plan", "node_files", "observers", "other_tables", "plan_words", "pool", "private_search", "public_rows",
    "rehearsal", "roll_call", "rosters", "run_accounts", "run_commands", "run_facts", "run_files", "run_folder",
    "run_grid", "run_pages", "run_plan", "run_progress", "run_status", "run_view", "screens", "searching",
    "selections", "served", "shape_figures", "sources", "synthetic_table", "table_columns", "telemetry", "trained",
    "understanding", "verbs", "what_if",
]  # fmt: skip

if TYPE_CHECKING:
    from fedsw import experiment as experiments
    from fedsw._tools import installed as installed
    from fedsw.audit import canary as audit_canary
    from fedsw.audit import one_run as audit_one_run
    from fedsw.audit import record as audit_record
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
    from fedsw.desk.planning import after_moments as moments_plan
    from fedsw.desk.planning import private_search as private_search
    from fedsw.desk.planning import public_rows as public_rows
    from fedsw.desk.planning import run_plan as run_plan
    from fedsw.desk.planning import search as searching
    from fedsw.desk.planning import words as plan_words
    from fedsw.desk.use import export as exporting
    from fedsw.desk.use import trained as trained
    from fedsw.experiment import choices as experiment_code
    from fedsw.experiment import load as experiment_files
    from fedsw.federation.deploy import bundle as bundles
    from fedsw.federation.deploy import certificates as certificates
    from fedsw.federation.deploy import client_check as client_check
    from fedsw.federation.deploy import flower_processes as flower_processes
    from fedsw.federation.deploy import node_file as node_files
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
    from fedsw.runs import status as run_status
    from fedsw.runs import telemetry as telemetry
    from fedsw.runs import view as run_view
    from fedsw.runs import write as run_pages
    from fedsw.runs.report import account_screens as account_screens
    from fedsw.runs.report import facts as run_facts
    from fedsw.runs.report import figures as figures
    from fedsw.runs.report import screens as screens
    from fedsw.runs.report import shapes as shape_figures
    from fedsw.runs.report import what_ifs as what_if
else:

    def _loaded(name: str) -> ModuleType:
        if (module := sys.modules.get(f"fedsw.{name}")) is not None:
            return module
        with loading():
            return import_module(f"fedsw.{name}")

    account_screens = Later("runs.report.account_screens", _loaded)
    additive_shapes = Later("runs.additive_shapes", _loaded)
    answer_files = Later("desk.own_data.answers", _loaded)
    audit_canary = Later("audit.canary", _loaded)
    audit_one_run = Later("audit.one_run", _loaded)
    audit_record = Later("audit.record", _loaded)
    budgets = Later("desk.budget", _loaded)
    bundles = Later("federation.deploy.bundle", _loaded)
    cards = Later("desk.own_data.card", _loaded)
    certificates = Later("federation.deploy.certificates", _loaded)
    client_check = Later("federation.deploy.client_check", _loaded)
    client_states = Later("runs.client_status", _loaded)
    code_books = Later("desk.own_data.code_book", _loaded)
    comparable = Later("desk.compare.methods", _loaded)
    comparison = Later("desk.compare", _loaded)
    comparison_grid = Later("desk.compare.comparison_grid", _loaded)
    comparison_page = Later("desk.compare.comparison_page", _loaded)
    comparison_table = Later("desk.compare.table", _loaded)
    data_places = Later("data.places", _loaded)
    demo_grid = Later("cli.demo", _loaded)
    description_page = Later("desk.own_data.description_page", _loaded)
    descriptions = Later("desk.own_data.description", _loaded)
    drafts = Later("desk.own_data.draft", _loaded)
    drifting = Later("desk.own_data.drifts", _loaded)
    driver = Later("federation.engines.driver", _loaded)
    examining = Later("desk.own_data.examine", _loaded)
    execution = Later("cli.execution", _loaded)
    experiment_code = Later("experiment.choices", _loaded)
    experiment_files = Later("experiment.load", _loaded)
    experiments = Later("experiment", _loaded)
    exporting = Later("desk.use.export", _loaded)
    figures = Later("runs.report.figures", _loaded)
    flower_processes = Later("federation.deploy.flower_processes", _loaded)
    following = Later("federation.engines.following", _loaded)
    installed = Later("_tools.installed", _loaded)
    lifetime = Later("privacy.accounting.lifetime", _loaded)
    limits = Later("federation.node.limits", _loaded)
    moments_plan = Later("desk.planning.after_moments", _loaded)
    node_files = Later("federation.deploy.node_file", _loaded)
    observers = Later("runs.observers", _loaded)
    other_tables = Later("desk.own_data.apart", _loaded)
    plan_words = Later("desk.planning.words", _loaded)
    pool = Later("federation.engines.pool", _loaded)
    private_search = Later("desk.planning.private_search", _loaded)
    public_rows = Later("desk.planning.public_rows", _loaded)
    rehearsal = Later("desk.own_data.rehearsal", _loaded)
    roll_call = Later("runs.roll_call", _loaded)
    rosters = Later("federation.node.roster", _loaded)
    run_accounts = Later("runs.accounts", _loaded)
    run_commands = Later("runs.commands", _loaded)
    run_facts = Later("runs.report.facts", _loaded)
    run_files = Later("runs.run_files", _loaded)
    run_folder = Later("runs.directory", _loaded)
    run_grid = Later("desk.run_grid", _loaded)
    run_pages = Later("runs.write", _loaded)
    run_plan = Later("desk.planning.run_plan", _loaded)
    run_progress = Later("runs.progress", _loaded)
    run_status = Later("runs.status", _loaded)
    run_view = Later("runs.view", _loaded)
    screens = Later("runs.report.screens", _loaded)
    searching = Later("desk.planning.search", _loaded)
    selections = Later("privacy.accounting.selection", _loaded)
    served = Later("federation.deploy.serving", _loaded)
    shape_figures = Later("runs.report.shapes", _loaded)
    sources = Later("data.sources", _loaded)
    synthetic_table = Later("desk.own_data.synthetic_table", _loaded)
    table_columns = Later("cli.columns", _loaded)
    telemetry = Later("runs.telemetry", _loaded)
    trained = Later("desk.use.trained", _loaded)
    understanding = Later("desk.own_data.understood", _loaded)
    verbs = Later("desk.verbs", _loaded)
    what_if = Later("runs.report.what_ifs", _loaded)
