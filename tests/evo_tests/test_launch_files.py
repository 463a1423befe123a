"""The cluster files in configs/ are what Ray and KubeRay take, carry a search, and keep what docs/cluster.md says of them."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from evo.cluster.jobs import STOP_WAIT_S, server_address, without_log
from evo.commands.continuing import as_it_began
from evo.commands.readiness import check_quickly
from evo.commands.submitting import PACKED, entrypoint, pack
from evo.config import RunConfig, read_config
from evo.errors import ConfigError, InputError
from evo.main import main
from evo.search.library import read_library

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = ROOT / "configs"
LAUNCHER_FILES = sorted(path for path in CONFIGS.glob("*.yaml") if "\nprovider:" in path.read_text())
MANIFESTS, JOB = CONFIGS / "evolve-kuberay.yaml", CONFIGS / "evolve-kuberay-job.yaml"
KUBERAY = pytest.mark.parametrize("path", [MANIFESTS, JOB], ids=lambda path: path.stem)

RAY_CLUSTER = {
    "": {"rayVersion", "authOptions", "enableInTreeAutoscaling", "autoscalerOptions", "headGroupSpec", "workerGroupSpecs"},
    "authOptions": {"mode"},
    "autoscalerOptions": {"version", "idleTimeoutSeconds"},
    "headGroupSpec": {"rayStartParams", "template"},
    "workerGroupSpecs": {"groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template"},
}
RAY_JOB = {"submissionMode", "entrypoint", "runtimeEnvYAML", "backoffLimit", "shutdownAfterJobFinishes", "rayClusterSpec"}
"""Fields of KubeRay's RayCluster and RayJob (ray.io/v1) that the files may use; they were checked against the whole definitions of
KubeRay 1.7.0."""


def documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text(encoding="utf-8")))


def cluster_of(path: Path) -> tuple[str, dict[str, Any]]:
    """Name of what asks KubeRay for a cluster, and the cluster."""
    ((name, spec),) = (
        (document["metadata"]["name"], document["spec"]) for document in documents(path) if document["apiVersion"] == "ray.io/v1"
    )
    return name, spec.get("rayClusterSpec", spec)


def test_there_is_a_file_for_hosts_of_ones_own_and_one_for_aws() -> None:
    assert {yaml.safe_load(path.read_text())["provider"]["type"] for path in LAUNCHER_FILES} == {"local", "aws"}


@pytest.mark.parametrize("path", LAUNCHER_FILES, ids=lambda path: path.stem)
def test_rays_launcher_takes_the_file(path: Path) -> None:
    from ray.autoscaler._private.util import prepare_config, validate_config

    document = yaml.safe_load(path.read_text())
    metadata = json.dumps(document["metadata"])
    prepared = prepare_config(document)
    validate_config(prepared)
    assert json.dumps(prepared["metadata"]) == metadata
    with pytest.raises(Exception, match=r"unexpected|Additional"):
        validate_config(prepared | {"searches": {}})


@pytest.mark.parametrize("path", [*LAUNCHER_FILES, MANIFESTS, JOB], ids=lambda path: path.stem)
def test_the_file_carries_a_search_that_is_accepted(path: Path) -> None:
    config = read_config(path)
    check_quickly(config, str(path))
    assert config.name == path.stem


def test_a_search_asks_for_as_many_workers_as_its_file_lets_come() -> None:
    """An autoscaler starts none for evaluators that are bound to the nodes that there are."""
    aws = CONFIGS / "evolve-aws.yaml"
    allowed = {aws: yaml.safe_load(aws.read_text())["available_node_types"]["gpu"]["max_workers"]}
    for path in (MANIFESTS, JOB):
        allowed[path] = sum(group["maxReplicas"] for group in cluster_of(path)[1]["workerGroupSpecs"])
    assert {path: read_config(path).cluster.evaluators for path in allowed} == allowed


@pytest.mark.parametrize("path", LAUNCHER_FILES, ids=lambda path: path.stem)
def test_every_ray_asks_for_the_token_and_the_dashboard_stays_at_home(path: Path) -> None:
    document = yaml.safe_load(path.read_text())
    starts = [line for key in ("head", "worker") for line in document[f"{key}_start_ray_commands"] if " ray start " in line]
    assert len(starts) == 2
    for line in starts:
        assert "RAY_AUTH_MODE=token" in line
        assert "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO=1" in line
        assert "RAY_memory_monitor_refresh_ms=0" in line
        # With the provider `local` the second autoscaler starts one worker too few.
        assert ("RAY_enable_autoscaler_v2=0" in line) == (document["provider"]["type"] == "local")
    assert "--dashboard-host=127.0.0.1" in starts[0]
    assert document["file_mounts"] == {"~/.ray/auth_token": "~/.ray/auth_token"}
    assert "chmod 600 ~/.ray/auth_token" in document["setup_commands"]


@KUBERAY
def test_the_manifests_have_fields_that_kuberay_knows(path: Path) -> None:
    _, cluster = cluster_of(path)
    for place, known in RAY_CLUSTER.items():
        found: Any = cluster[place] if place else cluster
        for part in found if isinstance(found, list) else [found]:
            assert set(part) <= known, place
    assert cluster["authOptions"] == {"mode": "token"}
    pods = [cluster["headGroupSpec"]["template"], *(group["template"] for group in cluster["workerGroupSpecs"])]
    assert len({container["image"] for pod in pods for container in pod["spec"]["containers"]}) == 1
    for pod in pods:
        volumes = {volume["name"] for volume in pod["spec"].get("volumes", ())}
        for container in pod["spec"]["containers"]:
            assert {"name": "RAY_memory_monitor_refresh_ms", "value": "0"} in container["env"]
            assert set(container["resources"]["limits"]) >= {"cpu", "memory"}
            assert {mount["name"] for mount in container.get("volumeMounts", ())} <= volumes


@KUBERAY
def test_the_manifests_fit_each_other(path: Path) -> None:
    of_kind = {document["kind"]: document for document in documents(path)}
    assert set(of_kind) == {"PersistentVolumeClaim", "NetworkPolicy", "ConfigMap", "RayJob" if path == JOB else "RayCluster"}
    name, cluster = cluster_of(path)
    head = cluster["headGroupSpec"]["template"]["spec"]
    volumes, mounts = (
        {item["name"]: item for item in items} for items in (head["volumes"], head["containers"][0]["volumeMounts"])
    )
    assert volumes["store"]["persistentVolumeClaim"]["claimName"] == of_kind["PersistentVolumeClaim"]["metadata"]["name"]
    assert str(read_config(path).store).startswith(f"{mounts['store']['mountPath']}/")
    policy = of_kind["NetworkPolicy"]["spec"]
    chosen = policy["podSelector"]["matchLabels"]
    assert policy["ingress"][0]["from"] == [{"podSelector": {"matchLabels": chosen}}]
    if path == MANIFESTS:
        assert chosen == {"ray.io/cluster": name}
    else:  # the operator names the clusters of a job, so it is known by a label of its own
        pods = [cluster["headGroupSpec"]["template"], *(group["template"] for group in cluster["workerGroupSpecs"])]
        assert [pod["metadata"]["labels"] for pod in pods] == [chosen, chosen]


def test_a_job_of_kuberay_does_as_a_submit_with_what_its_config_map_carries(tmp_path: Path) -> None:
    """As the head of its cluster sees it: the ConfigMap's text as a file, and the command."""
    of_kind = {document["kind"]: document for document in documents(JOB)}
    job, texts = of_kind["RayJob"]["spec"], of_kind["ConfigMap"]["data"]
    assert set(job) <= RAY_JOB
    head = job["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]
    (volume,) = (volume["configMap"] for volume in head["volumes"] if volume["name"] == "search")
    (mount,) = (mount for mount in head["containers"][0]["volumeMounts"] if mount["name"] == "search")
    assert volume["name"] == of_kind["ConfigMap"]["metadata"]["name"]
    (item,) = volume["items"]
    (tmp_path / item["path"]).write_text(texts[item["key"]])
    assert read_config(tmp_path / item["path"]) == read_config(JOB)
    given, submitted = shlex.split(job["entrypoint"]), shlex.split(entrypoint(read_config(JOB)))
    assert given == [
        f"{mount['mountPath']}/{item['path']}" if word == PACKED else word for word in submitted[: submitted.index("--store")]
    ]
    assert yaml.safe_load(job["runtimeEnvYAML"])["env_vars"] == {"RAY_JOB_STOP_WAIT_TIME_S": str(STOP_WAIT_S)}
    assert job["submissionMode"] == "HTTPMode", "other pods may not reach the job server"


def test_mistakes_in_manifests_are_told_by_their_place(tmp_path: Path) -> None:
    text = MANIFESTS.read_text()
    path = tmp_path / "cluster.yaml"
    path.write_text(text.replace("islands: 4", "isles: 4"))
    with pytest.raises(ConfigError, match=r"data\.triton_evolve\.search\.isles.*an unknown key"):
        read_config(path)
    path.write_text(text.replace("kind: ConfigMap", "kind: Secret"))
    with pytest.raises(ConfigError, match="of one ConfigMap"):
        read_config(path)
    for wrong in ("", "{name: own, tasks: [softmax]}"):
        path.write_text(f"{{apiVersion: v1, kind: ConfigMap, data: {{triton_evolve: {wrong}}}}}")
        with pytest.raises(ConfigError, match=r"data\.triton_evolve.*a ConfigMap carries text"):
            read_config(path)


@pytest.mark.parametrize("change", [("metadata:", "metadta:"), ("triton_evolve:", "triton_evolv:")], ids=lambda change: change[1])
@pytest.mark.parametrize("path", LAUNCHER_FILES, ids=lambda path: path.stem)
def test_a_cluster_file_whose_search_is_not_where_it_belongs_says_where(
    path: Path, change: tuple[str, str], tmp_path: Path
) -> None:
    (tmp_path / path.name).write_text(path.read_text().replace(*change))
    with pytest.raises(ConfigError, match=r"metadata\.triton_evolve; a cluster file carries the search configuration there"):
        read_config(tmp_path / path.name)


@pytest.fixture
def own_file(tmp_path: Path) -> Path:
    """A configuration with a task of the user's, whose kernel lies in a folder beside it."""
    (tmp_path / "tasks/kernels").mkdir(parents=True)
    kernel = (ROOT / "evo/tasks/starts/softmax.py").read_text()
    task = (ROOT / "evo/tasks/softmax.py").read_text().replace("starts/softmax.py", "kernels/own.py")
    (tmp_path / "tasks/kernels/own.py").write_text(kernel)
    (tmp_path / "tasks/own.py").write_text(task)
    path = tmp_path / "own.yaml"
    path.write_text(
        "{name: own, tasks: [gemm_decode, tasks/own.py], search: {crossover_share: 1.0e-06}, evaluation: {tune_trials: 3}}"
    )
    return path


def test_what_goes_to_a_cluster_is_the_search_with_the_tasks_of_ones_own(own_file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "packed"
    folder.mkdir()
    config = read_config(own_file)
    pack(own_file, config, folder)
    own_file.unlink()
    there = read_config(folder / PACKED)
    assert there.tasks == ("gemm_decode", str(folder / "tasks/1/own.py"))
    assert there.model_copy(update={"tasks": config.tasks}) == config
    from evo.tasks.loading import load_task

    assert load_task(there.tasks[1]).name == "softmax"
    assert sorted(str(path.relative_to(folder)) for path in folder.rglob("*.py")) == ["tasks/1/kernels/own.py", "tasks/1/own.py"]


def test_a_library_on_this_machine_goes_along_and_one_on_a_server_stays(own_file: Path, tmp_path: Path) -> None:
    server = "postgresql+psycopg://me@host/kernels"
    (tmp_path / "tasks/kernels/notes.txt").write_text("no kernel")
    own_file.write_text(own_file.read_text().replace("tasks: [", f"library: [tasks/kernels, '{server}'], tasks: [", 1))
    folder = tmp_path / "packed"
    folder.mkdir()
    pack(own_file, read_config(own_file), folder)
    there = read_config(folder / PACKED).library
    assert there == (server, str(folder / "library"))
    assert [example.source for example in read_library(there[1:])] == [(tmp_path / "tasks/kernels/own.py").read_text()]


def test_files_of_models_are_the_heads_and_must_not_lie_in_the_jobs_folder(
    own_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def packed(file: str) -> RunConfig:
        text = f"models: [{{provider: local, name: small, options: {{file: {file}}}}}], tasks: ["
        (tmp_path / "model.yaml").write_text(own_file.read_text().replace("tasks: [", text, 1))
        folder = tmp_path / f"packed{len(file)}"
        folder.mkdir()
        return pack(tmp_path / "model.yaml", read_config(tmp_path / "model.yaml"), folder)

    assert packed("~/models/small.gguf").models[0].options == {"file": "~/models/small.gguf"}
    assert "models.0.options.file: ~/models/small.gguf is looked for on the head" in capsys.readouterr().out
    with pytest.raises(ConfigError, match=r"models\.0\.options\.file; given 'small.gguf'; .*begin it with / or ~"):
        packed("small.gguf")


def test_a_kernel_outside_of_its_tasks_folder_does_not_go(own_file: Path, tmp_path: Path) -> None:
    task = tmp_path / "tasks/own.py"
    (tmp_path / "own.py").write_text((tmp_path / "tasks/kernels/own.py").read_text())
    task.write_text(task.read_text().replace("kernels/own.py", "../own.py"))
    (tmp_path / "packed").mkdir()
    with pytest.raises(InputError, match=r"own\.yaml: tasks\.1.*in its own folder"):
        pack(own_file, read_config(own_file), tmp_path / "packed")


@pytest.mark.parametrize(
    ("store", "expected"),
    [
        (None, ["--store", "~/runs/own.sqlite"]),
        ("kept/a b.sqlite", ["--store", "~/kept/a b.sqlite"]),
        ("/disk/own.sqlite", ["--store", "/disk/own.sqlite"]),
        ("postgresql://h/d?schema=s", ["--store", "postgresql://h/d?schema=s", "--export", "~/runs/own_front"]),
    ],
)
def test_a_job_keeps_its_store_where_it_stays(store: str | None, expected: list[str]) -> None:
    shell, *command = shlex.split(entrypoint(RunConfig(name="own", tasks=("softmax",), store=store)))
    assert shell == "exec"
    assert command[: command.index("--store")] == ["python", "-m", "evo.main", "run", PACKED, "--continue", "--address", "auto"]
    assert command[command.index("--store") :] == expected


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--address", "http://127.0.0.1:1"], "--address; given 'http://127.0.0.1:1'; no job server answers there"),
        (["--stop", "--logs"], "--logs; cannot be given with --stop"),
    ],
)
def test_what_cannot_be_submitted_is_told_in_one_line(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RAY_AUTH_MODE", "RAY_ADDRESS"):  # what the command may set or take away in its process
        monkeypatch.setenv(name, "disabled" if name == "RAY_AUTH_MODE" else "")
    with pytest.raises(SystemExit) as ended:
        main(["submit", str(CONFIGS / "quickstart.yaml"), *arguments])
    told = capsys.readouterr().err.strip().splitlines()
    assert ended.value.code == 2
    assert len(told) == 1
    assert words in told[0]


def test_the_log_is_not_told_again_at_the_end_of_a_job() -> None:
    ended = "Job entrypoint command failed due to signal 9"
    assert without_log(f"{ended}, last available logs (truncated to 20,000 chars):\nsearch: 649/2000 evaluations\n") == ended
    assert (
        without_log("Failed to set up the runtime environment:\nno space left")
        == "Failed to set up the runtime environment:\nno space left"
    )


def test_the_port_of_the_dashboard_is_that_of_the_job_server() -> None:
    assert server_address("head:8265") == "http://head:8265"
    assert [server_address(given) for given in (None, "head:6379", "http://head:8265")] == [None, "head:6379", "http://head:8265"]


@pytest.mark.parametrize("command", ["submit", "run"])
@pytest.mark.parametrize("key", ["store: {}", "library: [{}]"])
def test_a_password_in_a_stores_url_is_neither_shown_nor_sent(
    command: str, key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "own.yaml"
    url = "postgresql+psycopg://me:sesame@127.0.0.1:1/runs?schema=own"
    path.write_text(f"{{name: own, tasks: [softmax], target: cuda:90, {key.format(repr(url))}}}")
    with pytest.raises(SystemExit) as ended:
        main([command, str(path)])
    said = "".join(capsys.readouterr())
    assert ended.value.code == 2
    assert "put it into ~/.pgpass or PGPASSWORD" in said
    assert "sesame" not in said


def test_a_run_goes_on_with_the_budget_of_the_file_and_its_own_rules(capsys: pytest.CaptureFixture[str]) -> None:
    recorded = RunConfig.model_validate({"name": "own", "tasks": ["a"], "budget": {"evaluations": 5}, "search": {"islands": 2}})
    given = RunConfig.model_validate(
        {
            "name": "own",
            "tasks": ["b"],
            "budget": {"dollars": 7},
            "search": {"islands": 3},
            "cluster": {"proposers": 9},
            "seed": 1,
        }
    )
    config = as_it_began(recorded, given, "own.yaml")
    assert (config.tasks, config.budget, config.search.islands) == (("b",), given.budget, 2)
    assert capsys.readouterr().out == "as the run began, not as own.yaml has it now: seed, search.islands\n"
