# %% [markdown]
# # A maze: private steps of an agent, and an agent that learns from them
#
# Steps in one maze are sensitive, those in another are public. A model learns from the public ones
# first, then from the sensitive ones under noise. An agent judges what it draws.

# %%
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt

SMALL = bool(os.environ.get("PRIVRL_SMALL"))
STEPS = 2_000 if SMALL else 120_000
folder = Path(tempfile.mkdtemp())
os.environ["MINARI_DATASETS_PATH"] = str(folder / "datasets")
os.environ["PRIVRL_LEDGER"] = f"sqlite:///{folder / 'ledger.sqlite'}"


def privrl(line):
    """Type a command line and show what it prints."""
    command = [sys.executable, "-m", "distributed_privrl.cli", *line.split()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    print(done.stdout)


# %% [markdown]
# ## The data

# %%
privrl(f"collect maze2d-umaze --dataset maze/umaze-v0 --steps {STEPS} --seed 1")
privrl(f"collect maze2d-medium --dataset maze/medium-v0 --steps {STEPS // 2} --seed 2 --public")

# %%
import distributed_privrl as pr


def positions(axis, dataset):
    """Draw where the agent of a dataset has been."""
    rows = pr.load(dataset).to_pandas()
    axis.scatter(rows["observation_0"], rows["observation_1"], s=1, alpha=0.2)
    axis.set(title=dataset, aspect="equal")


figure, axes = plt.subplots(1, 2, figsize=(8, 4))
positions(axes[0], "maze/umaze-v0")
positions(axes[1], "maze/medium-v0")
plt.show()

# %% [markdown]
# ## What is spent
#
# The unit is a transition: each step is protected on its own.

# %%
agent = "{hidden: [64, 64], learning_rate: 0.001, polyak: 0.05, discount: 0.98, beta: 10.0}"
(folder / "maze.yaml").write_text(f"""
method: privorl_ar
data: {{sensitive: maze/umaze-v0, public: [maze/medium-v0], unit: transition, units: {STEPS},
       environment: privrl/Maze2D-umaze-v0}}
privacy: {{epsilon: 5, delta: {0.05 / STEPS}}}
model: {{bins: {8 if SMALL else 64}, hidden: [{8 if SMALL else 64}]}}
training: {{rounds: {3 if SMALL else 200}, spare: 1,
           expected_batch_size: {500 if SMALL else 4096},
           pretraining: {{steps: {5 if SMALL else 1500}, batch_size: {64 if SMALL else 512}}}}}
output: {{dataset: maze/private-v0, size: {500 if SMALL else 60_000}}}
evaluation: {{trainers: [iql], seeds: {1 if SMALL else 2}, steps: {5 if SMALL else 4000},
             episodes: {1 if SMALL else 10}, options: {{iql: {agent}}}}}
runtime: {{executor: local}}
""")
privrl(f"ledger budget maze/umaze-v0 --epsilon 5 --delta {0.05 / STEPS} --unit transition")
privrl(f"plan {folder / 'maze.yaml'}")

# %% [markdown]
# ## The run

# %%
privrl(f"run {folder / 'maze.yaml'} --out {folder / 'run'} --anyway")
privrl(f"certificate verify {folder / 'run' / 'certificate.json'}")

# %% [markdown]
# ## The judgement: where the private agent has been

# %%
figure, axes = plt.subplots(1, 2, figsize=(8, 4))
positions(axes[0], "maze/umaze-v0")
positions(axes[1], "maze/private-v0")
plt.show()

# %% [markdown]
# ## The judgement: what an agent earns that learned from them
#
# The report's figure is normalised: 0 the random policy, 100 the planner. Two agents on one release
# order nothing; they show that something was learned.

# %%
report = json.loads((folder / "run" / "report.json").read_text())
(section,) = (one for one in report["sections"] if one["title"].startswith("Agents"))
for one in section["metrics"]:
    print(f"{one['name']}: {one['value']}")
