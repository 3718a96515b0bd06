"""Tables and arrays that were written to harm: refused within bounds, nothing else is opened."""

import io
import json
import shutil
import traceback
import zipfile

import gymnasium
import h5py
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from distributed_privrl.core.errors import ConfigError, PrivRLError, StorageError
from distributed_privrl.data.bombs import MOST_COLUMNS
from distributed_privrl.data.importing import import_file
from distributed_privrl.data.schema import load_schema
from distributed_privrl.data.sources import open_columns
from tests.data.conftest import SPACES, walk
from tests.worlds.array_files import D4RL, SUCCESSORS, arrays_of, write_hdf5
from tests.worlds.bounded import bounded

EPISODES = D4RL.replace("terminals", "terminations").replace("timeouts", "truncations")
HUGE = 14 * 2**40 // 8
"""Numbers of 14 TiB."""
CANARY = "4711 stays of ann"


@pytest.fixture
def read(store, tmp_path):
    def read(path, *, extra=SUCCESSORS, schema=D4RL):
        (tmp_path / "schema.yaml").write_text(schema.format(extra=extra, split="false"))
        with bounded():
            import_file(path, load_schema(tmp_path / "schema.yaml"), store, "a-v0")

    yield read
    assert store.ids() == [], "something was written"


def refused(read, path, message, **options):
    with pytest.raises(ConfigError, match=message) as caught:
        read(path, **options)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 2000


COLUMNS = {
    "observations": [0.0, 1.0],
    "actions": [0.0, 0.5],
    "rewards": [0.0, 1.0],
    "terminals": [True, True],
    "timeouts": [False, False],
}
ITSELF = "next_observation: observations"


@pytest.mark.parametrize("role", ["unit", "trajectory"])
@pytest.mark.parametrize(
    "values",
    [
        [{"a": 1}, {"a": 2}],
        [[1], [2]],
        pa.array([[("a", 1)], [("b", 2)]], pa.map_(pa.string(), pa.int64())),
    ],
    ids=["struct", "list", "map"],
)
def test_a_column_of_several_values_a_row_is_no_unit(read, tmp_path, role, values):
    pq.write_table(pa.table({**COLUMNS, "x": values}), tmp_path / "x.parquet")
    message = "column 'x' holds several values a row"
    refused(read, tmp_path / "x.parquet", message, extra=f"{ITSELF}\n  {role}: x")


def test_bytes_that_are_no_text_are_no_numbers(read, tmp_path):
    table = pa.table({**COLUMNS, "rewards": [b"\xff", b"a"]})
    pq.write_table(table, tmp_path / "x.parquet")
    refused(read, tmp_path / "x.parquet", "'rewards' must hold numbers", extra=ITSELF)


@pytest.mark.parametrize("role", ["unit", "trajectory"])
def test_texts_that_are_no_text_are_refused(read, tmp_path, role):
    """A file says that its bytes are texts, and they are none."""
    raw = pa.array([b"ann", b"b\xec"], pa.binary())
    names = pa.Array.from_buffers(pa.string(), 2, raw.buffers())
    pq.write_table(pa.table({**COLUMNS, "x": names}), tmp_path / "x.parquet")
    message = "is no proper parquet file: .*UTF"
    refused(read, tmp_path / "x.parquet", message, extra=f"{ITSELF}\n  {role}: x")


def test_a_damaged_footer_does_not_end_the_process(read, tmp_path):
    """Arrow throws what nobody catches where the levels of a column are not those of its kind."""
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({**COLUMNS, "x": ["ann", "bob"]}), path)
    content = path.read_bytes()
    optional, required = (b"\x25" + kind + b"\x18\x07rewards" for kind in (b"\x02", b"\x00"))
    assert content.count(optional) == 1
    path.write_bytes(content.replace(optional, required))
    refused(read, path, "is no proper parquet file: .*histogram", extra=f"{ITSELF}\n  unit: x")


REPEATED = r"'/?x'\]? has texts of \d+ bytes, with what is repeated"


@pytest.mark.parametrize("role", ["unit", "trajectory"])
@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary()], ids=str)
def test_a_parquet_file_of_long_texts_that_repeat_is_refused(read, tmp_path, role, kind):
    """A megabyte that stands for 390: one text, of which every row has a copy."""
    texts = pa.DictionaryArray.from_arrays(np.zeros(390, np.int32), pa.array(["x" * 2**20], kind))
    table = pa.table({name: values * 195 for name, values in COLUMNS.items()} | {"x": texts})
    pq.write_table(table, tmp_path / "x.parquet", store_schema=False)
    assert (tmp_path / "x.parquet").stat().st_size < 2**21
    refused(read, tmp_path / "x.parquet", REPEATED, extra=f"{ITSELF}\n  {role}: x")


def test_a_parquet_file_whose_pages_unpack_to_long_texts_is_refused(read, tmp_path, monkeypatch):
    monkeypatch.setattr("distributed_privrl.data.sources.MOST_TEXT", 2**20)
    table = pa.table({name: values * 20 for name, values in COLUMNS.items()})
    table = table.append_column("x", [[f"{row}" + "x" * 2**15 for row in range(40)]])
    pq.write_table(table, tmp_path / "x.parquet", compression="zstd", use_dictionary=False)
    refused(read, tmp_path / "x.parquet", REPEATED, extra=f"{ITSELF}\n  unit: x")


@pytest.mark.parametrize("shape", [(400,), (400, 1)], ids=str)
def test_an_hdf5_file_of_long_texts_that_repeat_is_refused(read, tmp_path, monkeypatch, shape):
    """One text lies in the file, and 400 rows point to it."""
    monkeypatch.setattr("distributed_privrl.data.array_files.MOST_TEXT", 2**20)
    arrays = {name: np.repeat(values, 50, axis=0) for name, values in arrays_of(walk()).items()}
    path = tmp_path / "x.hdf5"
    write_hdf5(path, arrays)
    with h5py.File(path, "a") as file:
        file.create_dataset("x", shape, h5py.string_dtype())
        file["x"][0] = "x" * 2**15
        at = file["x"].id.get_offset()
    content = bytearray(path.read_bytes())
    content[at : at + 16 * 400] = content[at : at + 16] * 400
    path.write_bytes(content)
    refused(read, path, REPEATED, extra=f"{SUCCESSORS}\n  unit: x")


@pytest.mark.parametrize("coded", [True, False], ids=["a dictionary", "plain"])
def test_texts_of_a_parquet_file_are_what_they_were(tmp_path, coded):
    """Gaps, empty ones, kinds and dictionaries of a table in memory stay."""
    values = ["b", None, "", "a" * 1000, "b"] * 3
    table = pa.table(
        {
            "text": values,
            "large": pa.array(values, pa.large_string()),
            "bytes": pa.array([value and value.encode() for value in values], pa.binary()),
            "category": pa.array(values).dictionary_encode(),
            "number": range(15),
        }
    )
    pq.write_table(table, tmp_path / "x.parquet", use_dictionary=coded, row_group_size=4)
    (frame,) = open_columns(tmp_path / "x.parquet", separator="comma")
    expected = table.to_pandas(types_mapper={pa.int64(): pd.Int64Dtype()}.get)
    pd.testing.assert_frame_equal(
        frame.astype({"category": object}), expected.astype({"category": object})
    )


@pytest.mark.parametrize("suffix", [".npz", ".hdf5"])
@pytest.mark.parametrize("name", ["observations", "actions", "next_observations", "rewards"])
def test_arrays_without_width_are_refused(read, tmp_path, suffix, name):
    arrays = arrays_of(walk()) | {name: np.zeros((8, 0))}
    path = tmp_path / f"x{suffix}"
    np.savez(path, **arrays) if suffix == ".npz" else write_hdf5(path, arrays)
    refused(read, path, rf"'{name}' must (have 1 to {MOST_COLUMNS} numbers|be one value) a row")


def test_arrays_without_rows_are_refused(read, tmp_path):
    arrays = {name: values[:0] for name, values in arrays_of(walk()).items()}
    np.savez(tmp_path / "x.npz", **arrays)
    refused(read, tmp_path / "x.npz", "no rows")


@pytest.mark.parametrize("values", [np.zeros(8, complex), np.zeros(8, "V4"), np.zeros(8, "m8[s]")])
def test_arrays_of_other_things_than_numbers_are_refused(read, tmp_path, values):
    np.savez(tmp_path / "x.npz", **arrays_of(walk()) | {"rewards": values})
    refused(read, tmp_path / "x.npz", "array 'rewards' must hold numbers or texts")


def npz(path, arrays, *, compression=zipfile.ZIP_STORED, **members):
    """Write an NPZ file, and further members as they are given."""
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, values in arrays.items():
            with archive.open(f"{name}.npy", "w") as member:
                np.lib.format.write_array(member, np.asarray(values))
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)


def header(shape, kind="<f8"):
    file = io.BytesIO()
    about = {"descr": kind, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_2_0(file, about)
    return file.getvalue()


def without(name):
    return {key: values for key, values in arrays_of(walk()).items() if key != name}


@pytest.mark.parametrize("shape", [(HUGE,), (2**40, 2**40), (8, HUGE), (-1,), (2**62, 0)])
def test_an_npz_that_claims_terabytes_is_refused(read, tmp_path, shape):
    npz(tmp_path / "x.npz", without("rewards"), rewards=header(shape))
    refused(read, tmp_path / "x.npz", "'rewards'|array is too big")


def test_an_npz_that_unpacks_to_more_than_there_is_memory_is_refused(read, tmp_path, monkeypatch):
    """8 MiB of zeros that are stored as 8 KiB: proper, and too much for what is left."""
    monkeypatch.setattr("distributed_privrl.core.memory.available_memory", lambda: 2**23)
    rewards = header((2**20,)) + bytes(2**23)
    npz(tmp_path / "x.npz", without("rewards"), compression=zipfile.ZIP_DEFLATED, rewards=rewards)
    refused(read, tmp_path / "x.npz", r"would take 0\.0 GiB of memory")


@pytest.mark.parametrize(
    "content", [b"", b"\x93NUMPY", b"\x93NUMPY\x03\x00" + b"\xff" * 40, header((8,))[:-20] + b"\n"]
)
def test_a_member_that_is_no_array_is_refused(read, tmp_path, content):
    npz(tmp_path / "x.npz", without("rewards"), rewards=content)
    refused(read, tmp_path / "x.npz", "is no proper npz file")


def test_a_way_of_packing_that_numpy_does_not_write_is_refused(read, tmp_path):
    npz(tmp_path / "x.npz", arrays_of(walk()), compression=zipfile.ZIP_LZMA)
    refused(read, tmp_path / "x.npz", "packed in a way that NumPy does not write")


def hdf5(path, change, *, but="rewards"):
    """Write an HDF5 file whose array ``but`` is made by ``change``."""
    write_hdf5(path, without(but))
    with h5py.File(path, "a") as file:
        change(file)
    return path


def elsewhere(path):
    """Write numbers as another file of the machine has them."""
    np.arange(8.0).tofile(path)
    return path


def external_storage(folder):
    place = str(elsewhere(folder / "secret.bin"))
    return lambda file: file.create_dataset(
        "rewards", (8,), "f8", external=[(place, 0, h5py.h5f.UNLIMITED)]
    )


def external_link(folder):
    with h5py.File(folder / "other.h5", "w") as file:
        file["rewards"] = np.arange(8.0)

    def change(file):
        file["rewards"] = h5py.ExternalLink(str(folder / "other.h5"), "rewards")

    return change


def virtual(folder):
    external_link(folder)
    layout = h5py.VirtualLayout((8,), "f8")
    layout[:] = h5py.VirtualSource(str(folder / "other.h5"), "rewards", (8,))
    return lambda file: file.create_virtual_dataset("rewards", layout)


def soft_link(_):
    def change(file):
        file["rewards"] = h5py.SoftLink("/infos/seed")

    return change


OUTSIDE = {
    "storage": (external_storage, "has its values in another file"),
    "link": (external_link, "no column rewards"),
    "virtual": (virtual, "has its values in another file"),
    "soft": (soft_link, "no column rewards"),
}


@pytest.mark.parametrize("kind", OUTSIDE)
def test_an_hdf5_file_reaches_nothing_outside_it(read, tmp_path, kind):
    make, message = OUTSIDE[kind]
    refused(read, hdf5(tmp_path / "x.hdf5", make(tmp_path)), message)


def sparse(shape, **options):
    return lambda file: file.create_dataset("rewards", shape, "f8", **options)


def early(file):
    """Declare 16 GB that the file is long enough for, though no byte of them is stored."""
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    plist.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    space = h5py.h5s.create_simple((2**31,))
    h5py.h5d.create(file.id, b"rewards", h5py.h5t.IEEE_F64LE, space, plist)


@pytest.mark.parametrize(
    "change",
    [sparse((HUGE,)), sparse((HUGE,), chunks=(2**10,)), sparse((8, 2**31)), early],
    ids=["contiguous", "chunked", "wide", "sparse file"],
)
def test_an_hdf5_file_that_claims_terabytes_is_refused(read, tmp_path, change):
    path = hdf5(tmp_path / "x.hdf5", change)
    refused(read, path, r"declares \d+ bytes, and \d+ of it are stored")


@pytest.mark.parametrize("kind", ["V8", np.dtype([("a", "f4")]), h5py.ref_dtype, "c16"])
def test_an_hdf5_array_of_other_things_is_refused(read, tmp_path, kind):
    path = hdf5(tmp_path / "x.hdf5", lambda file: file.create_dataset("rewards", (8,), kind))
    refused(read, path, "'/rewards' must hold numbers or texts")


def test_a_table_of_a_million_columns_is_refused(read, tmp_path):
    path = tmp_path / "x.csv"
    path.write_text(",".join(f"c{i}" for i in range(10**6)) + "\n")
    refused(read, path, f"has 1000000 columns, more than {MOST_COLUMNS}")


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_wrong_name_among_many_columns_is_refused_in_a_short_line(read, tmp_path, suffix):
    names, path = [f"c{i}" for i in range(999)], tmp_path / f"x{suffix}"
    if suffix == ".csv":
        path.write_text(",".join(names) + "\n")
    else:
        pq.write_table(pa.table({name: [0] for name in names}), path)
    refused(read, path, "no column observations.* and 967 more")


def test_a_parquet_file_of_too_many_columns_is_refused_before_its_schema_is_built(
    read, tmp_path, monkeypatch
):
    monkeypatch.setattr("distributed_privrl.data.sources.MOST_COLUMNS", 1000)
    pq.write_table(pa.table({f"c{i}": [0] for i in range(2000)}), tmp_path / "x.parquet")
    refused(read, tmp_path / "x.parquet", "is no proper parquet file")


@pytest.fixture
def stored(store):
    store.write_trajectories("b-v0", walk(), **SPACES)
    return store.root / "b-v0" / "data"


def replaced(folder, make):
    """Make the rewards of the first episode another thing."""
    with h5py.File(folder / "main_data.hdf5", "a") as file:
        del file["episode_0"]["rewards"]
        make(file["episode_0"])


@pytest.mark.parametrize("kind", [*OUTSIDE, "sparse"])
def test_a_dataset_reaches_nothing_outside_it(store, stored, tmp_path, kind):
    make = sparse((HUGE,)) if kind == "sparse" else OUTSIDE[kind][0](tmp_path)
    replaced(stored, make)
    with bounded(), pytest.raises(StorageError, match=r"is damaged .*(link|another file|declares)"):
        store.read_trajectories("b-v0")


@pytest.mark.parametrize("episodes", [10**15, -1, 4])
def test_a_dataset_that_claims_more_episodes_than_it_has_is_refused(store, stored, episodes):
    path = stored / "metadata.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "total_episodes": episodes}))
    with bounded(), pytest.raises(PrivRLError, match=r"its metadata say|total_episodes"):
        store.read_trajectories("b-v0")


@pytest.mark.parametrize("text", ["[" * 10**5, "[1]", "{", '"x"', "{}"])
def test_metadata_that_are_none_are_refused(store, stored, text):
    (stored / "metadata.json").write_text(text)
    with bounded(), pytest.raises(PrivRLError, match=r"metadata\.json"):
        store.read_trajectories("b-v0")


@pytest.mark.parametrize(
    "values",
    [
        {"total_episodes": None},
        {"total_steps": CANARY},
        {"total_steps": [8]},
        {"total_steps": float("inf")},
        {"distributed_privrl": [1]},
        {"distributed_privrl": {"total_trajectories": None}},
        {"distributed_privrl": {"total_trajectories": {}}},
        {"distributed_privrl": {"total_trajectories": CANARY}},
        {"env_spec": "{"},
        {"env_spec": "[]"},
        {"env_spec": 3},
    ],
    ids=str,
)
def test_metadata_of_other_kinds_are_refused(store, stored, values):
    path = stored / "metadata.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))
    if "env_spec" in values:
        changed = json.loads(path.read_text())
        changed["distributed_privrl"]["environment"] = None
        path.write_text(json.dumps(changed))
    with bounded(), pytest.raises(StorageError, match=r"metadata\.json is damaged") as caught:
        store.info("b-v0")
    assert "\n" not in str(caught.value)
    said = "".join(traceback.format_exception(caught.value))
    assert CANARY not in said, "what a sensitive dataset says of itself would be in a log"


def test_metadata_without_spaces_are_not_quoted(store, stored):
    path = stored / "metadata.json"
    values = json.loads(path.read_text())
    del values["observation_space"], values["action_space"]
    spec = json.loads(gymnasium.spec("CartPole-v1").to_json()) | {"id": CANARY}
    path.write_text(json.dumps(values | {"env_spec": json.dumps(spec)}))
    with bounded(), pytest.raises(ConfigError, match="names no spaces and its") as caught:
        store.info("b-v0")
    assert CANARY not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("kind", [*OUTSIDE, "sparse"])
def test_a_file_of_episodes_reaches_nothing_outside_it(read, stored, tmp_path, kind):
    make = sparse((HUGE,)) if kind == "sparse" else OUTSIDE[kind][0](tmp_path)
    replaced(stored, make)
    path = (stored / "main_data.hdf5").rename(tmp_path / "x.hdf5")
    shutil.rmtree(stored.parent)
    with pytest.raises(ConfigError, match=r"no column rewards|another file|declares"):
        read(path, extra="trajectory: episode", schema=EPISODES)
