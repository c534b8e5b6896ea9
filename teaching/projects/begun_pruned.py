"""Must a mask be learned?

Pruning step by step costs rounds, and each client comes to a mask of its own. What if all begin with the same
small network, by the magnitudes of weights that have learned nothing?

    python teaching/projects/begun_pruned.py [smoke | quick | full]

From here: masks drawn blindly; whole units instead of single weights (`fedbook.methods.pruning.drop_hidden`), which save
time and not only bytes; both at equal bytes.
"""
import sys
from dataclasses import replace

from fedbook.engine.workers import trial
from fedbook.methods.pruning import PruningExperiment, profiles


def main(profile="smoke"):
    sizes = profiles[profile]
    never = replace(sizes, step=0.0)
    for seed in range(sizes.seeds):
        rows = {"never pruned": PruningExperiment(never, seed), "step by step": PruningExperiment(sizes, seed),
                "begun pruned": PruningExperiment(never, seed, pruned=sizes.target)}
        for name, experiment in rows.items():
            ended = trial(experiment, workers=1)
            sent = ended.federation.ledger.total()
            print(f"seed {seed}, {name}: accuracy {ended.history.last('accuracy'):.3f}, {sent / 1e6:.2f} MB")


if __name__ == "__main__": main(*sys.argv[1:])
