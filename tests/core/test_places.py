"""A place is a path or an object; what could hold a password is refused, and never quoted."""

import pickle
from pathlib import Path

import pytest
import yaml

from distributed_privrl.core.config import DataConfig
from distributed_privrl.core.errors import ConfigError, UnsafeError
from distributed_privrl.core.places import ObjectUri, check_folder, place_of

SECRET = "hunter2"


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("runs/a b", Path("runs/a b")),
        ("file:///shared/a%20b", Path("/shared/a b")),
        ("s3://clinic/data//sets/", ObjectUri("s3://clinic/data/sets")),
        ("gs://clinic", ObjectUri("gs://clinic")),
    ],
)
def test_a_place_is_a_path_or_an_object(text: str, place: Path | ObjectUri) -> None:
    found = place_of("--datasets", text)
    assert (type(found), found) == (type(place), place)
    assert place_of("--datasets", found) == found


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (f"s3://me:{SECRET}@clinic/data", UnsafeError),
        (f"s3://clinic/data?secret_key={SECRET}", UnsafeError),
        (f"gs://{SECRET}@clinic/data", UnsafeError),
        (f"file://me:{SECRET}@host/data", UnsafeError),
        (f"ftp://me:{SECRET}@clinic/data", ConfigError),
        (f"file://host/{SECRET}", ConfigError),
        (f"s3://{SECRET}:443/data", ConfigError),
        (f"s3://clinic/../{SECRET}", ConfigError),
        (f"s3:///{SECRET}", ConfigError),
    ],
)
def test_what_is_refused_is_not_quoted(text: str, error: type[Exception]) -> None:
    with pytest.raises(error) as raised:
        place_of("--datasets", text)
    assert type(raised.value) is error
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize("scheme", ["s3", "gs", "file"])
def test_a_folder_is_no_uri(scheme: str) -> None:
    for path in (Path(f"{scheme}://clinic/runs"), Path(f"{scheme}://clinic/runs").absolute()):
        with pytest.raises(ConfigError, match=f"--out takes a folder and no {scheme}:// URI"):
            check_folder("--out", path)
    assert check_folder("--out", Path("runs/s3")) == Path("runs/s3")


@pytest.mark.parametrize(
    "bounds",
    [
        "s3://clinic/bounds.yaml",
        "bounds.yaml",
        "environment",
        {"epsilon": 0.5, "search": "gs://clinic/wide.yaml"},
    ],
)
def test_bounds_by_uri_are_written_and_read_alike(bounds: object) -> None:
    values = {"sensitive": "a-v0", "unit": "transition", "units": 9, "bounds": bounds}
    data = DataConfig.model_validate(values)
    written = yaml.safe_load(yaml.safe_dump(data.model_dump(mode="json", exclude_unset=True)))
    assert written == values  # not as Path has it, s3:/clinic
    assert DataConfig.model_validate(written) == data == pickle.loads(pickle.dumps(data))


def test_bounds_with_a_password_are_refused() -> None:
    values = {"sensitive": "a-v0", "unit": "transition", "units": 9}
    with pytest.raises(UnsafeError) as raised:
        DataConfig.model_validate({**values, "bounds": f"s3://me:{SECRET}@clinic/bounds.yaml"})
    assert SECRET not in str(raised.value)
