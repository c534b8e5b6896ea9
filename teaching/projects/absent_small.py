"""Who is missing, and who pays for it?

The faults of chapter 06 strike at random. Real absences do not: phones that are never charged at night have
other users than those that are. Here the clients with the fewest pictures never answer, or as many drawn
blindly.

    python teaching/projects/absent_small.py [smoke | quick | full]

From here: which classes lose; clients that come seldom instead of never; weights that make up for it.
"""
import sys
from dataclasses import dataclass, replace

import numpy as np

from fedbook.engine.workers import Faults, trial
from fedbook.methods.fedavg import FedAvgExperiment, profiles
from fedbook.engine.local import predict
from fedbook.methods.score import class_accuracy


@dataclass(frozen=True)
class Missing(Faults):
    "Strikes the clients `gone` silent, in every round."
    gone: tuple = ()

    def strike(self, round, verb, id): return "silent" if id in self.gone else None


def main(profile="smoke"):
    small = replace(profiles[profile], alpha=0.3)
    sizes = replace(small, per_round=small.clients)
    for seed in range(sizes.seeds):
        experiment, third = FedAvgExperiment(sizes, seed), sizes.clients // 3
        fewest = np.argsort([len(part) for part in experiment.parts])[:third]
        drawn = np.random.default_rng(seed).choice(sizes.clients, third, replace=False)
        for name, gone in {"nobody": (), "the smallest": fewest, "as many, drawn": drawn}.items():
            server = trial(experiment, workers=1, faults=Missing(gone=tuple(map(int, gone)))).server
            x, y = experiment.pictures("test").tensors()
            by_class = class_accuracy(predict(experiment.lent, server.weights, x), y, 10)
            print(f"seed {seed}, missing: {name}: mean {by_class.mean():.3f}, worst class {by_class.min():.3f}")


if __name__ == "__main__": main(*sys.argv[1:])
