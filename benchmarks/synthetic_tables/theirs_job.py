"""One table of MST or AIM, by the code of their authors: run by an interpreter that has `mbi`, without fedsw.

    PYTHON theirs_job.py '{"method": "aim", "seed": 0, "epsilon": 1, "delta": 1e-9, "divided_by": 1, "sizes": [...],
                           "source": "codes.npy", "target": "rows.npz", "mechanisms": FOLDER, "settings": {...}}'

`mechanisms` is the folder of aim.py, mst.py and cdp2adp.py in https://github.com/ryan112358/mbi. rho is that of their own
`cdp_rho`, divided by `divided_by`. Nothing else of theirs is changed; their progress goes to standard output.
"""

import importlib.metadata
import itertools
import json
import sys
import time

import numpy as np


def main():
    """Write codes (n, columns), and facts of the run as JSON, to the target."""
    job = json.loads(sys.argv[1])
    sys.path.insert(0, job["mechanisms"])
    from cdp2adp import cdp_rho
    from mbi import Dataset, Domain

    codes, sizes = np.load(job["source"]), job["sizes"]
    names = [f"c{place}" for place in range(len(sizes))]
    data = Dataset({name: codes[:, place] for place, name in enumerate(names)}, Domain(names, sizes))
    np.random.seed(job["seed"])
    rho = cdp_rho(job["epsilon"], job["delta"]) / job["divided_by"]
    make = {"aim": by_aim, "mst": by_mst}[job["method"]]
    began = time.process_time(), time.monotonic()
    made, facts = make(data, rho, job)
    facts |= {
        "rho": round(rho, 6),
        "cpu_seconds": round(time.process_time() - began[0], 1),
        "seconds": round(time.monotonic() - began[1], 1),
        "versions": {name: importlib.metadata.version(name) for name in ("mbi", "jax", "numpy")},
    }
    columns = made.to_dict()
    np.savez(job["target"], rows=np.stack([columns[name] for name in names], axis=1), facts=json.dumps(facts))


def by_aim(data, rho, job):
    """As aim.py's own command: all marginals of `degree` columns with at most `max_cells` numbers, of weight 1."""
    from aim import AIM
    from mbi import junction_tree

    chosen = job["settings"]
    workload = [
        (clique, 1.0)
        for clique in itertools.combinations(data.domain, int(chosen["degree"]))
        if data.domain.size(clique) <= int(chosen["max_cells"])
    ]
    size, most = float(chosen["max_model_size"]), int(chosen["max_iters"])
    mechanism = AIM(job["epsilon"], job["delta"], max_model_size=size, max_iters=most)
    mechanism.rho = rho
    model, made = mechanism.run(data, workload, num_synth_rows=data.records)
    megabytes = junction_tree.hypothetical_model_size(model.domain, list(model.cliques))
    return made, {"model_mb": round(float(megabytes), 3), "measured": sum(len(each) > 1 for each in model.cliques)}


def by_mst(data, rho, job):
    """As mst.py's own command."""
    import mst

    mst.cdp_rho = lambda epsilon, delta: rho
    return mst.MST(data, job["epsilon"], job["delta"]), {}


if __name__ == "__main__":
    main()
