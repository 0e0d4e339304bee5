"""Move the package into its rooms, as `.ci/rooms.txt` says: modules, tests, imports, dotted names, paths of text.

Ran once, on the tree before this commit: `python .ci/move_rooms.py` in a checkout of it.
"""

# ruff: noqa
import ast
import os
import pathlib
import re
import subprocess

ROWS = [line.split() for line in pathlib.Path(".ci/rooms.txt").read_text().splitlines() if not line.startswith("#")]
LISTED = subprocess.run(["git", "ls-files"], capture_output=True, text=True).stdout.splitlines()
MODULES = {
    f[:-3].replace("/", ".").removesuffix(".__init__") for f in LISTED if f.startswith("fedsw/") and f.endswith(".py")
}
FINAL = {module: module for module in MODULES} | {old: new for old, new in ROWS if old.startswith("fedsw")}
FOLDERS = {old: new for old, new in ROWS if old.startswith("tests")}


def new_test(path: str) -> str:
    name = path.removesuffix(".py").replace("/", ".")
    for old, new in FOLDERS.items():
        if name == old or name.startswith(old + "."):
            return new.replace(".", "/") + path[len(old) :]
    return path


tracked = subprocess.run(["git", "ls-files"], capture_output=True, text=True).stdout.splitlines()
TESTS = {}
for f in tracked:
    if f.startswith("tests/"):
        n = new_test(f)
        if f.endswith(".py"):
            TESTS[f[:-3].replace("/", ".")] = n[:-3].replace("/", ".")
TESTS.update(FOLDERS)
ALL = {**FINAL, **TESTS}
PACKAGES = {"fedsw", "tests"}


def longest(dotted):
    parts = dotted.split(".")
    for i in range(len(parts), 0, -1):
        head = ".".join(parts[:i])
        if head in ALL:
            return ALL[head] + "".join("." + p for p in parts[i:])
    return dotted


DOTTED = re.compile(r"(?<![\w./-])(fedsw|tests)((?:\.[A-Za-z_]\w*)+)")
PATH = re.compile(r"(?<![\w.-])(fedsw|tests)((?:/[A-Za-z_]\w*)+)(\.py\b)?")


def sub_dotted(m):
    return longest(m.group(1) + m.group(2))


def sub_path(m):
    dotted = (m.group(1) + m.group(2)).replace("/", ".")
    if m.group(3) is None and dotted in ALL and dotted not in PACKAGES:
        return m.group(0) if False else longest(dotted).replace(".", "/")
    return longest(dotted).replace(".", "/") + (m.group(3) or "")


def text_map(t):
    return PATH.sub(sub_path, DOTTED.sub(sub_dotted, t))


def imports(node, src_lines):
    """New text of one `from … import …` statement."""
    mod = node.module
    groups = {}
    for a in node.names:
        full = mod + "." + a.name
        if full in ALL and a.name != "*":
            new = ALL[full]
            home, leaf = new.rsplit(".", 1)
            alias = a.asname or (a.name if leaf != a.name else None)
            groups.setdefault(home, []).append((leaf, alias))
        else:
            groups.setdefault(ALL.get(mod, longest(mod)), []).append((a.name, a.asname))
    pad = " " * node.col_offset
    out = []
    for home, names in groups.items():
        items = [n + (f" as {x}" if x else "") for n, x in names]
        line = f"{pad}from {home} import " + ", ".join(items)
        if len(line) > 116:
            line = f"{pad}from {home} import (\n" + "".join(f"{pad}    {i},\n" for i in items) + f"{pad})"
        out.append(line)
    return "\n".join(out)


def python(text, name):
    try:
        tree = ast.parse(text)
    except SyntaxError as e:
        print("no syntax", name, e)
        return text_map(text)
    lines = text.split("\n")
    spans = []
    for n in ast.walk(tree):
        if isinstance(n, ast.ImportFrom) and n.level == 0 and n.module and n.module.split(".")[0] in ("fedsw", "tests"):
            spans.append((n.lineno - 1, n.end_lineno - 1, n))
    spans.sort(key=lambda s: s[0])
    out = []
    at = 0
    for a, b, n in spans:
        out.append(text_map("\n".join(lines[at:a])) if a > at else None)
        old = "\n".join(lines[a : b + 1])
        tail = lines[b].encode()[n.end_col_offset :].decode()
        new = imports(n, lines) if lines[a][: n.col_offset].strip() == "" else None
        if new is None:
            print("odd import", name, old)
            new = text_map(old)
            tail = ""
        if "#" in old and "#" not in tail:
            print("comment lost", name, a + 1, old)
        if tail.strip() and "\n" in new:
            print("tail on many", name, a + 1, tail)
        out.append(new + tail)
        at = b + 1
    out.append(text_map("\n".join(lines[at:])) if at < len(lines) else None)
    return "\n".join(o for o in out if o is not None)


def depth(new_file, old_file, text):
    d = new_file.count("/") - old_file.count("/")
    if not d:
        return text
    return re.sub(
        r"(Path\(__file__\)(?:\.resolve\(\))?\.parents)\[(\d)\]", lambda m: f"{m.group(1)}[{int(m.group(2)) + d}]", text
    )


def read(module):
    path = pathlib.Path(module.replace(".", "/"))
    return (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text()


def mutant_function(m):
    tail, rest = m.group(1), m.group(2)
    hits = [x for x in FINAL if x == tail or x.endswith("." + tail)]
    if len(hits) > 1:
        first = re.match(r"\w+", rest)
        sources = {h: read(h) for h in hits}
        hits = [h for h in hits if first and re.search(r"^(def |class )?" + first.group(0) + r"\b", sources[h], re.M)]
    if len(hits) != 1:
        print("mutant", tail, hits)
        return m.group(0)
    new = FINAL[hits[0]]
    k = tail.count(".") + 1
    return 'function = "' + ".".join(new.split(".")[-k:]) + ":" + rest


moves = []
for f in tracked:
    p = pathlib.Path(f)
    n = f
    if f.startswith("fedsw/") and f.endswith(".py"):
        mod = f[:-3].replace("/", ".")
        init = mod.endswith(".__init__")
        mod = mod[:-9] if init else mod
        n = FINAL[mod].replace(".", "/") + ("/__init__.py" if init else ".py")
    elif f.startswith("tests/"):
        n = new_test(f)
    if n != f:
        moves.append((f, n))
    if (
        p.suffix
        not in (
            ".py",
            ".md",
            ".toml",
            ".yaml",
            ".yml",
            ".cff",
            ".txt",
            ".html",
            ".css",
            ".js",
            ".ipynb",
            ".cfg",
            ".in",
            ".rst",
            "",
        )
        or p.is_symlink()
    ):
        continue
    if f.startswith(("simulations/papers/results", "benchmarks/results", "locks/")) or f in (
        "constraints.txt",
        "CHANGELOG.md",
    ):
        continue
    try:
        t = p.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        continue
    new = python(t, f) if p.suffix == ".py" else text_map(t)
    if f.startswith("tests/mutants/table/"):
        new = re.sub(r'function = "([\w.]+):(.*)', mutant_function, new)
    if f.startswith("tests/") and p.suffix == ".py":
        new = depth(n, f, new)
    if new != t:
        p.write_text(new, encoding="utf-8")
for a, b in moves:
    os.makedirs(os.path.dirname(b), exist_ok=True)
    os.rename(a, b)
for d, dirs, fs in os.walk(".", topdown=False):
    if d.startswith(("./fedsw", "./tests")) and (not os.listdir(d) or os.listdir(d) == ["__pycache__"]):
        subprocess.run(["rm", "-rf", d])
print(len(moves), "files moved")
