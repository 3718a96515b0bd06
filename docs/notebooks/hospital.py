# %% [markdown]
# # A hospital: a private treatment rule from patients in intensive care
#
# ICU-Sepsis is a public model of sepsis, made of real stays. We record patients in it, learn a rule
# under differential privacy, and judge it exactly: the model tells what any rule is worth.

# %%
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt

SMALL = bool(os.environ.get("PRIVRL_SMALL"))
PATIENTS, EPSILONS = (2_000, [4]) if SMALL else (100_000, [0.5, 1, 4])

# %% [markdown]
# Datasets and ledger lie in a folder of their own.

# %%
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


privrl(f"collect icu-sepsis --dataset icu/patients-v0 --seed 1 -o patients={PATIENTS}")

# %% [markdown]
# ## The data
#
# A patient is in one of 716 states; 25 treatments are fluids and vasopressors in five doses each.

# %%
import distributed_privrl as pr

rows = pr.load("icu/patients-v0").to_pandas()
stays = rows.groupby("trajectory").size()
figure, axes = plt.subplots(1, 2, figsize=(9, 3))
axes[0].hist(stays, bins=range(1, 21))
axes[0].set(title="steps of a stay", ylabel="patients")
axes[1].hist(rows["action"], bins=range(26))
axes[1].set(title="treatments", ylabel="steps")
plt.show()

# %% [markdown]
# ## The budget, and what it buys
#
# The unit is the patient. `plan` opens no data.

# %%
privrl(
    f"ledger budget icu/patients-v0 --epsilon {sum(EPSILONS)} --delta 1e-5"
    " --unit patient_id --relation replace_one"
)


def configuration(epsilon):
    """Write the configuration of a run, and return its path."""
    path = folder / f"epsilon-{epsilon}.yaml"
    path.write_text(f"""
method: apvi
data: {{sensitive: icu/patients-v0, unit: patient_id, units: {PATIENTS},
       environment: privrl/ICU-Sepsis-v0}}
privacy: {{epsilon: {epsilon}, delta: 1e-6, relation: replace_one}}
model: {{horizon: 20, reward: known, pooled: true, visits: first, stationary: true}}
training: {{pessimism: {{preset: practical}}}}
evaluation: {{study_units: [{PATIENTS}], study_epsilons: [{epsilon}], seeds: 1}}
runtime: {{executor: local}}
""")
    return path


privrl(f"plan {configuration(EPSILONS[-1])}")

# %% [markdown]
# ## The runs
#
# Each takes its part of the budget. Their sum is what a patient may lose.

# %%
for epsilon in EPSILONS:
    out = folder / f"epsilon-{epsilon}"
    privrl(f"run {configuration(epsilon)} --out {out} --anyway")
    privrl(f"certificate verify {out / 'certificate.json'}")

# %%
privrl("ledger show")

# %% [markdown]
# ## The judgement
#
# The public report has the exact value of the rule that was released: here the chance to survive.


# %%
def exact(epsilon):
    """Return the figures of a run's public report on its exact value."""
    report = json.loads((folder / f"epsilon-{epsilon}" / "report.json").read_text())
    (section,) = (one for one in report["sections"] if one["title"].startswith("Exact value"))
    return {one["name"]: one["value"] for one in section["metrics"]}


values = {epsilon: exact(epsilon) for epsilon in EPSILONS}
for epsilon, found in values.items():
    print(epsilon, found)

# %%
numbers = {
    name: [found[name] for found in values.values()]
    for name, value in values[EPSILONS[-1]].items()
    if isinstance(value, float)
}
for name, points in numbers.items():
    plt.plot([f"{epsilon:g}" for epsilon in EPSILONS], points, marker="o", label=name)
plt.xlabel("epsilon")
plt.ylabel("survival")
plt.legend()
plt.show()
