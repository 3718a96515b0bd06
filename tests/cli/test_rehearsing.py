import yaml

BOUNDS = (
    "observation: {low: [0, 0], high: [10, 1]}\naction: {low: [0], high: [1]}\nreward: [0, 1]\n"
)
CONFIG = {
    "method": "marginals",
    "data": {"sensitive": "clinic/stays-v0", "unit": "transition", "units": 500},
    "privacy": {"epsilon": 8, "delta": 1e-5},
    "model": {"bins": 4, "draws": 500},
    "training": {"steps": 1, "tables": 2},
    "output": {"dataset": "clinic/private-v0", "size": 300},
    "runtime": {"workers": 1, "executor": "local"},
}


def test_a_rehearsal_needs_no_dataset_and_spends_nothing(workplace):
    bounds, out = workplace.folder / "bounds.yaml", workplace.folder / "rehearsal"
    bounds.write_text(BOUNDS)
    config = workplace.folder / "marginals.yaml"
    config.write_text(yaml.safe_dump(CONFIG | {"data": CONFIG["data"] | {"bounds": str(bounds)}}))
    made = workplace.privrl("rehearse", config, "--out", out)
    assert made.exit_code == 0, made.output
    assert made.stdout.startswith("rehearsed on invented rows, 500 units, at epsilon")
    assert "strongest pairs" in made.stdout
    assert "pairs by their association" in made.stdout
    assert {path.name for path in out.iterdir()} == {"rehearsal.txt", "rehearsal.json"}
    assert (out / "rehearsal.txt").read_text() == made.stdout
    assert not workplace.datasets.exists() or not list(workplace.datasets.iterdir())
    assert "no budget" in workplace.privrl("ledger", "show").output.lower()
    again = workplace.privrl("rehearse", config, "--out", out)
    assert again.exit_code == 2
    assert "is not empty" in again.stderr


def test_the_help_says_how_long_it_takes(workplace):
    shown = " ".join(workplace.privrl("rehearse", "--help").stdout.replace("│", " ").split())
    assert "takes about as long as the run" in shown
