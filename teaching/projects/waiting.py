"""How long should a server wait?

A short timeout gives many rounds with the fast clients, a long one few rounds with everybody; and the slow ones
may have the unusual data. Each client has a speed of its own; who is late is missing. All timeouts get the same
time on the clock.

    python teaching/projects/waiting.py [smoke | quick | full]

From here: a timeout that adapts; slow clients with classes of their own; a server that takes what comes late
into the next round.
"""
import sys
from dataclasses import dataclass, replace

import numpy as np

from fedbook.engine.workers import Faults, trial
from fedbook.methods.fedavg import FedAvgExperiment, profiles
from fedbook.engine.federation import Server

CLOCK = 240      # seconds that every setting has


@dataclass(frozen=True)
class Late(Faults):
    "Strikes silent what would come after `timeout` seconds."
    timeout: float = 30.0

    def strike(self, round, verb, id):
        own = np.random.default_rng([self.seed, id]).lognormal(np.log(10), 0.8)
        now = np.random.default_rng([self.seed, id, round]).lognormal(0, 0.3)
        return "silent" if own * now > self.timeout else None


class Skipping(Server):
    "FedAvg's server, which skips a round in which nobody came in time."
    def merge(self, replies):
        if replies := list(replies): super().merge(replies)


def main(profile="smoke"):
    for seed in range(profiles[profile].seeds):
        for timeout in (10, 30, 60) if profile != "smoke" else (60, 120):
            sizes = replace(profiles[profile], alpha=0.3, rounds=CLOCK // timeout)
            experiment = FedAvgExperiment(sizes, seed, server_kind=Skipping)
            ended = trial(experiment, workers=1, faults=Late(seed, timeout=timeout), min_replies=0)
            print(f"seed {seed}, {timeout} s, {sizes.rounds} rounds: {ended.history.last('accuracy'):.3f}")


if __name__ == "__main__": main(*sys.argv[1:])
