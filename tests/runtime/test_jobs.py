"""Jobs of a cluster: what travels, what is refused, and what comes back."""

import http.server
import json
import os
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from distributed_privrl.cli.app import app
from distributed_privrl.core.errors import ConfigError, RowsError, RowsWarning, UnsafeError
from distributed_privrl.core.places import place_of
from distributed_privrl.data.metadata import PUBLIC_KEY
from distributed_privrl.data.store import FOLDER_VARIABLE
from distributed_privrl.experiments.registry import load_config
from distributed_privrl.privacy.ledger.storage import ledger_reference, ledger_url
from distributed_privrl.runtime import jobs, launch
from tests.worlds import choosing, grid, intake, mazes, ward

ADDRESS = "http://127.0.0.1:8265"


class Cluster:
    """Stands for the Jobs API: runs what is handed in at once, in this process.

    Args:
        said: what the job prints, once a look.
        code: its exit code.
    """

    def __init__(self, *said: str, code: int | None = 0) -> None:
        self._said, self._code, self._looks = list(said), code, 0
        self.files: dict[str, bytes] = {}
        self.asked: dict[str, Any] = {}
        self.stopped = False

    def submit_job(self, **asked: Any) -> str:
        folder = Path(asked["runtime_env"]["working_dir"])
        self.files = {path.name: path.read_bytes() for path in folder.iterdir()}
        self.asked = asked
        return "job-1"

    def get_job_status(self, job_id: str) -> Any:
        self._looks += 1
        ended = self.stopped or self._looks >= len(self._said)
        return SimpleNamespace(is_terminal=lambda: ended)

    def get_job_logs(self, job_id: str) -> str:
        return "".join(self._said[: self._looks])

    def get_job_info(self, job_id: str) -> Any:
        return SimpleNamespace(driver_exit_code=self._code)

    def stop_job(self, job_id: str) -> bool:
        self.stopped = True
        return True


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a configuration, its bounds, and much that must not travel."""
    monkeypatch.chdir(tmp_path)
    values = grid.values(data={"bounds": "public.yaml"})
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(values))
    (tmp_path / "public.yaml").write_text("reward: {low: 0, high: 1}\n")
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "rows.csv").write_text("secret")
    (tmp_path / "ledger.sqlite").write_text("secret")
    return tmp_path


def submit(cluster: Any, monkeypatch: pytest.MonkeyPatch, *words: str) -> Any:
    monkeypatch.setattr(jobs, "open_client", lambda address: cluster)
    monkeypatch.setattr(jobs, "POLL_SECONDS", 0)
    return CliRunner().invoke(app, ["submit", *words, "--address", ADDRESS])


RUN = ("run.yaml", "--out", "/shared/run", "--ledger", "file:/secrets/ledger")


def test_configuration_and_bounds_travel_and_nothing_else(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster("done\n")
    done = submit(cluster, monkeypatch, *RUN, "--shared", "/shared", "-o", "privacy.epsilon=2")
    assert done.exit_code == 0, done.output
    assert set(cluster.files) == {"config.yaml", "bounds.yaml"}
    sent = yaml.safe_load(cluster.files["config.yaml"])
    assert sent["data"]["bounds"] == "bounds.yaml"
    assert sent["privacy"]["epsilon"] == 2
    assert cluster.files["bounds.yaml"] == (place / "public.yaml").read_bytes()
    line = "python -m distributed_privrl.cli run config.yaml --out /shared/run --resume=auto"
    assert cluster.asked["entrypoint"] == line
    assert cluster.asked["runtime_env"]["env_vars"] == {
        "RAY_JOB_STOP_WAIT_TIME_S": "60",
        "PRIVRL_LEDGER": "file:/secrets/ledger",
        "PRIVRL_SHARED": "/shared",
    }


def test_datasets_and_bounds_are_named_by_uri(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, bounds = Cluster("done\n"), "s3://clinic/bounds.yaml"
    words = (*RUN, "--shared", "/shared", "-o", f"data.bounds={bounds}", "--datasets")
    done = submit(cluster, monkeypatch, *words, "s3://clinic/sets/")
    assert done.exit_code == 0, done.output
    assert set(cluster.files) == {"config.yaml"}
    assert yaml.safe_load(cluster.files["config.yaml"])["data"]["bounds"] == bounds
    variables = cluster.asked["runtime_env"]["env_vars"]
    assert variables["MINARI_DATASETS_PATH"] == "s3://clinic/sets"
    refused = submit(Cluster(), monkeypatch, *words, "s3://me:hunter2@clinic/sets")
    assert refused.exit_code == 4
    assert "hunter2" not in refused.output


def test_a_run_in_an_object_store_needs_no_shared_folder(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster("done\n")
    words = ("run.yaml", "--out", "s3://clinic/runs/one/", "--ledger", "file:/secrets/ledger")
    done = submit(cluster, monkeypatch, *words)
    assert done.exit_code == 0, done.output
    assert " --out s3://clinic/runs/one --resume=auto" in cluster.asked["entrypoint"]
    monkeypatch.setenv(jobs.OF_A_JOB, "{}")
    jobs.check_job(place_of("--out", "s3://clinic/runs/one"), "postgresql://somewhere/ledger")
    with pytest.raises(UnsafeError, match="lies on a machine of the cluster"):
        jobs.check_job(place_of("--out", "file:///run"), "postgresql://somewhere/ledger")


def test_the_folder_of_a_sweep_or_a_demo_is_no_uri(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = {
        "search": {"privacy.epsilon": {"grid": [1, 2]}},
        "selection": {"pays": "compose", "score": {"by": "policy"}},
    }
    (place / "sweep.yaml").write_text(yaml.safe_dump(grid.values() | more))
    out = ("--out", "s3://clinic/run")
    refused = submit(Cluster(), monkeypatch, "sweep.yaml", *out)
    for one in (refused, *(CliRunner().invoke(app, [verb, *out]) for verb in ("demo",))):
        assert one.exit_code == 2
        assert "takes a folder and no s3:// URI" in one.output
    assert not (place / "s3:").exists()


def test_a_sweep_travels_as_one(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    more = {
        "search": {"privacy.epsilon": {"grid": [1, 2]}},
        "selection": {"pays": "compose", "score": {"by": "policy"}},
    }
    (place / "sweep.yaml").write_text(yaml.safe_dump(grid.values() | more))
    cluster = Cluster("")
    done = submit(cluster, monkeypatch, "sweep.yaml", *RUN[1:])
    assert done.exit_code == 0, done.output
    assert " sweep config.yaml --out /shared/run --resume=auto" in cluster.asked["entrypoint"]
    assert yaml.safe_load(cluster.files["config.yaml"])["selection"]["pays"] == "compose"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--ledger", "postgresql://me:hush@db/ledger"), 4, "a password in --ledger"),
        (("--ledger", "postgresql://me@db/ledger?password=hush"), 4, "a password in --ledger"),
        (("--ledger", "postgresql://db/ledger?sslpassword=hush"), 4, "a password in --ledger"),
        (("--ledger", "sqlite:////shared/ledger.sqlite"), 4, "must outlive its cluster"),
        (("--attach", "job-1"), 2, "give CONFIG.yaml to hand a job in, or --attach"),
        (("--certificate", "run.yaml"), 2, "is there already"),
        (("--out", "runs/stays"), 2, "--out runs/stays is no absolute path"),
        (("--datasets", "datasets"), 2, "--datasets datasets is no absolute path"),
    ],
)
def test_what_a_job_must_not_have_is_refused_before_anything_is_sent(
    place: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], code: int, said: str
) -> None:
    cluster = Cluster("")
    done = submit(cluster, monkeypatch, *RUN[:3], *words)
    assert done.exit_code == code
    assert said in done.output
    assert "hush" not in done.output
    assert not cluster.asked


def test_what_is_no_bounds_file_does_not_travel_as_one(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster("")
    done = submit(cluster, monkeypatch, *RUN, "-o", "data.bounds=private/rows.csv")
    assert done.exit_code == 2, done.output
    assert not cluster.asked
    found = "data.bounds={epsilon: 0.1, search: public.yaml}"
    done = submit(cluster, monkeypatch, *RUN, "-o", found)
    assert done.exit_code == 0, done.output
    sent = yaml.safe_load(cluster.files["config.yaml"])
    assert sent["data"]["bounds"]["search"] == "bounds.yaml" in cluster.files
    done = submit(cluster, monkeypatch, *RUN, "-o", "data.bounds=environment")
    assert done.exit_code == 0, done.output
    assert set(cluster.files) == {"config.yaml"}


def test_bounds_of_600_megabytes_are_refused_before_they_are_read(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (place / "public.yaml").open("r+b") as file:
        file.truncate(600 * 10**6)  # sparse: no disk is needed, but reading would be noticed
    monkeypatch.setattr(Path, "read_bytes", lambda _: pytest.fail("read"))
    cluster = Cluster("")
    done = submit(cluster, monkeypatch, *RUN)
    assert done.exit_code == 2
    assert "600 MB, 10 MB at most are uploaded" in done.output
    assert not cluster.asked


def test_a_job_s_words_its_exit_code_and_its_certificate_come_back(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = json.dumps({"schema": 1, "status": "non_private"})
    cluster = Cluster("first\nhalf a ", f"line\n{jobs.CERTIFICATE_MARK}{told}\n", code=3)
    done = submit(cluster, monkeypatch, *RUN, "--certificate", "mine.json")
    assert done.exit_code == 3
    assert done.stdout == "first\nhalf a line\n"
    assert json.loads((place / "mine.json").read_text())["status"] == "non_private"


def test_looks_follow_each_other_sooner_at_first_and_after_a_line() -> None:
    cluster, waited = Cluster(*[""] * 5, "first\n", "", ""), list[float]()
    assert list(jobs.follow(cluster, "job-1", pause=waited.append)) == ["first"]
    assert waited == [0.1, 0.2, 0.4, 0.8, 1.0, 0.1, 0.2]


@pytest.mark.parametrize(("failures", "code"), [(3, 0), (1000, 7)])
def test_a_dashboard_that_is_gone_for_a_moment_ends_nothing(
    place: Path, monkeypatch: pytest.MonkeyPatch, failures: int, code: int
) -> None:
    class Shaky(Cluster):
        left = failures

        def get_job_logs(self, job_id: str) -> str:
            self.left -= 1
            if self.left >= 0:
                raise ConnectionError("no route")
            return super().get_job_logs(job_id)

    monkeypatch.setattr(jobs.follow, "__kwdefaults__", {"pause": lambda _: None})
    done = submit(Shaky("first\n"), monkeypatch, *RUN)
    assert done.exit_code == code, done.output
    assert ("first" in done.stdout) is (code == 0)
    assert ("--attach job-1" in done.output) is (code == 7)


@pytest.mark.parametrize("on_interrupt", ["detach", "cancel"])
def test_an_interrupt_leaves_the_job_or_stops_it(
    place: Path, monkeypatch: pytest.MonkeyPatch, on_interrupt: str
) -> None:
    cluster = Cluster("", "", "")

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(jobs.time, "sleep", interrupted)
    monkeypatch.setattr(jobs.follow, "__kwdefaults__", {"pause": interrupted})
    done = submit(cluster, monkeypatch, *RUN, "--on-interrupt", on_interrupt)
    assert done.exit_code == 130
    assert cluster.stopped is (on_interrupt == "cancel")
    if on_interrupt == "detach":
        assert f"privrl submit --attach job-1 --address {ADDRESS}" in done.output


@contextmanager
def dashboard(code: int) -> Iterator[str]:
    """Answer every request with one code."""

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(code)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = http.server.HTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(("code", "said"), [(200, "lets in anybody"), (500, "cannot be told")])
def test_a_cluster_that_asks_for_no_token_gets_no_job(code: int, said: str) -> None:
    with dashboard(code) as address, pytest.raises(UnsafeError, match=said):
        jobs.open_client(address)
    with dashboard(401) as address:
        jobs.check_token_asked(address)
    with pytest.raises(ConfigError, match="no Ray dashboard answers"):
        jobs.check_token_asked(address)  # it has ended
    with pytest.raises(ConfigError, match="is no dashboard's"):
        jobs.open_client("head.internal:6379")


def test_a_job_keeps_neither_ledger_nor_folder_on_its_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs.check_job(tmp_path / "run", None)  # no job: nobody is stopped
    monkeypatch.setenv(jobs.OF_A_JOB, "{}")
    with pytest.raises(UnsafeError, match="SQLite is a file on it"):
        jobs.check_job(tmp_path / "run", "sqlite:////shared/ledger.sqlite")
    ledger = "postgresql://me@db/ledger"
    monkeypatch.setattr(jobs, "_kind_of", lambda _: "ext4")
    with pytest.raises(UnsafeError, match="lies on a machine of the cluster"):
        jobs.check_job(tmp_path / "run", ledger)
    monkeypatch.setenv(jobs.SHARED_VARIABLE, os.pathsep.join(["/elsewhere", str(tmp_path)]))
    jobs.check_job(tmp_path / "run", ledger)
    with pytest.raises(UnsafeError):
        jobs.check_job(tmp_path.parent / "run", ledger)  # beside it
    monkeypatch.setattr(jobs, "_kind_of", lambda _: "nfs4")
    jobs.check_job(tmp_path.parent / "run", ledger)


def test_a_run_in_a_job_is_refused_before_it_touches_anything(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(jobs.OF_A_JOB, "{}")
    done = CliRunner().invoke(app, ["run", "run.yaml", "--out", "run", "--resume=auto"])
    assert done.exit_code == 4
    assert "a fresh budget" in done.output
    assert not (place / "run").exists()


def test_what_tells_of_rows_is_in_no_log_of_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A holder of the cluster's token reads the log; the owner finds why in `private/`."""
    world = ward.Ward(tmp_path)
    world.write(ward.NAME, ward.stays())
    world.write("ward/copy-v0", ward.stays().select(range(200)))
    others = replace(ward.stays(seed=2), unit_ids=np.arange(ward.STAYS) + 1000)
    world.write("ward/public-v0", others, metadata={PUBLIC_KEY: True})
    world.budget(ward.NAME)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(FOLDER_VARIABLE, str(world.store.root))
    about = {
        "sensitive": "ward/copy-v0",
        "unit": "patient",
        "units": 400,
        "public": ["ward/public-v0"],
    }
    values = mazes.config_values() | {"data": about}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(values))
    words = ["run", "run.yaml", "--out", "run", "--resume=auto", "--ledger", world.url]
    plain = CliRunner().invoke(app, words)
    assert plain.exit_code == 4, plain.output
    assert "% of the rows of ward/stays-v0" in plain.output
    assert not (tmp_path / "run").exists()
    monkeypatch.setenv(jobs.OF_A_JOB, "{}")
    monkeypatch.setattr(jobs, "check_job", lambda *_: None)
    path = tmp_path / "run" / "private" / "refusal.txt"
    for _ in range(2):  # what lies there is in no retry's way
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 4
        assert "%" not in done.output
        assert "ward/stays-v0" not in done.output
        assert str(path) in done.output
        assert "% of the rows of ward/stays-v0" in path.read_text()
        assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(UnsafeError) as refused, jobs.rows_kept_from_log(tmp_path / "run"):
        raise RowsError("3 % of the rows")
    assert "%" not in str(refused.value)


def _swept(words: list[str], path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin a sweep on rows that are refused, at a terminal and then, twice, in a job."""
    plain = CliRunner().invoke(app, words)
    assert plain.exit_code == 4, plain.output
    assert "a privacy budget as" in plain.output
    assert not path.parents[1].exists()
    monkeypatch.setenv(jobs.OF_A_JOB, "{}")
    monkeypatch.setattr(jobs, "check_job", lambda *_: None)
    for _ in range(2):
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 4, done.output
        assert "a privacy budget as" not in done.output
        assert str(path) in done.output
        assert "a privacy budget as" in path.read_text()


@pytest.mark.parametrize("pays", ["private", "compose"])
def test_what_tells_of_rows_is_in_no_log_of_a_sweep_as_a_job(
    pays: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lies in `private/` is in no retry's way, neither of a selection nor of a sweep."""
    world = choosing.Choosing(tmp_path)
    intake.write(world.store, "intake/copy-v0", intake.admissions(), metadata={PUBLIC_KEY: True})
    changes: dict[str, Any] = {"data__public": ["intake/copy-v0"]}
    if pays == "compose":
        score = {"by": "fidelity", "to": "intake/copy-v0"}
        changes |= {"selection": {"pays": pays, "score": score}}
        changes |= {"search": {"model.bins": {"grid": [4, 6]}}}
    world.sweep(**changes)
    monkeypatch.setenv(FOLDER_VARIABLE, str(world.store.root))
    words = ["sweep", str(world.file), "--out", str(tmp_path / "out"), "--resume=auto"]
    path = tmp_path / "out" / "private" / "refusal.txt"
    _swept([*words, "--ledger", world.url], path, monkeypatch)


def test_a_warning_that_tells_of_rows_is_in_no_log_of_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(jobs.OF_A_JOB, "{}")
    said: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        monkeypatch.setattr(warnings, "showwarning", lambda message, *_: said.append(str(message)))
        with jobs.rows_kept_from_log(tmp_path / "run"):
            warnings.warn("3 % of the rows", RowsWarning, stacklevel=1)
            warnings.warn("few blocks", UserWarning, stacklevel=1)
    kept = tmp_path / "run" / "private" / "refusal.txt"
    assert said == [f"a warning that tells of rows lies in {kept}, for their owner", "few blocks"]
    assert kept.read_text() == "3 % of the rows\n"


def test_a_script_in_a_job_is_refused_like_the_command(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(jobs.OF_A_JOB, "{}")
    config = load_config(place / "run.yaml", ["runtime.executor=local"])
    with pytest.raises(UnsafeError, match="a fresh budget"):
        launch.run(config, out=place / "run", ledger=f"sqlite:///{place / 'fresh.sqlite'}")
    assert not (place / "run").exists()


@pytest.mark.parametrize("declared", ["/", "/tmp/..", ".", "runs", "/elsewhere:."])
def test_what_each_machine_has_for_itself_is_no_shared_folder(
    declared: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(jobs.SHARED_VARIABLE, declared)
    with pytest.raises(UnsafeError, match="each machine has for itself"):
        jobs.outlives(Path("runs/here"))


@pytest.mark.parametrize(
    ("mounts", "kind"),
    [
        ("far:/ /data nfs4 rw 0 0\n/dev/a /data ext4 rw 0 0\n", "ext4"),
        ("/dev/a /data ext4 rw 0 0\nfar:/ /data nfs4 rw 0 0\n", "nfs4"),
        ("far:/ /data nfs4 rw 0 0\n/dev/a /data/my\\040runs ext4 rw 0 0\n", "ext4"),
    ],
)
def test_a_folder_is_on_what_was_mounted_there_last(
    mounts: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "read_text", lambda _: mounts)
    assert jobs._kind_of(Path("/data/my runs/one")) == kind


def test_the_ledger_s_url_may_lie_in_a_file_that_few_can_read(tmp_path: Path) -> None:
    secret = tmp_path / "ledger"
    secret.write_text("postgresql://me:hush@db/ledger\n")
    secret.chmod(0o640)
    assert ledger_url(f"file:{secret}").password == "hush"
    assert ledger_reference(f"file:{secret}") == f"file:{secret}"  # the password does not travel
    secret.chmod(0o644)
    with pytest.raises(ConfigError, match="everybody can read"):
        ledger_url(f"file:{secret}")
    with pytest.raises(ConfigError, match="no absolute path"):
        ledger_url("file:secrets/ledger")
    with pytest.raises(ConfigError, match="cannot be read"):
        ledger_url(f"file:{tmp_path / 'nothing'}")


def test_resume_auto_begins_and_then_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = grid.Grid(tmp_path).budget(epsilon=6)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(world.store.root))
    monkeypatch.setenv("PRIVRL_LEDGER", world.url)
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(grid.values()))
    line = ["run", str(tmp_path / "run.yaml"), "--out", str(tmp_path / "out"), "--resume=auto"]
    for _ in range(2):  # epsilon 5 of 6: a second charge would be refused
        done = CliRunner().invoke(app, line)
        assert done.exit_code == 0, done.output
    assert CliRunner().invoke(app, [*line[:-1], "--resume=always"]).exit_code == 2
