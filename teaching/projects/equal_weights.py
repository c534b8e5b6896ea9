"""Should every client count alike?

FedAvg weighs clients by their pictures. Under skew a large client that holds two classes pulls the average
towards these two. Here is a server that gives every reply the same weight.

    python teaching/projects/equal_weights.py [smoke | quick | full]

From here: ten seeds and more skews; accuracy by class; a weight between the two, and how you would choose it
without looking at the test.
"""
import sys
from dataclasses import replace

from fedbook.engine.workers import trial
from fedbook.methods.fedavg import FedAvgExperiment, profiles
from fedbook.engine.federation import Mean, Server


class Alike(Server):
    "FedAvg's server, for which every reply weighs the same."
    def merge(self, replies):
        mean = Mean()
        for _, msg in replies: mean.add(msg.tensors, 1)
        self.weights = mean.value()


def main(profile="smoke"):
    sizes = replace(profiles[profile], alpha=0.1)
    for seed in range(sizes.seeds):
        for name, kind in {"by pictures": Server, "all alike": Alike}.items():
            ended = trial(FedAvgExperiment(sizes, seed, server_kind=kind), workers=1)
            print(f"seed {seed}, {name}: accuracy {ended.history.last('accuracy'):.3f}")


if __name__ == "__main__": main(*sys.argv[1:])
