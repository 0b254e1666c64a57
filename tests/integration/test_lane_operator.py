"""What an operator sees of a fleet whose lanes lie in a real cluster."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from imagefleet.producer.commands.cli import main
from imagefleet.shared.redis_client.connection import connect_lanes
from imagefleet.shared.settings.redis_doctor import check_redis
from imagefleet.shared.settings.settings import Settings
from tests.support.redis_cluster import RedisCluster


@pytest.fixture
def environment(cluster: RedisCluster, namespace: str) -> dict[str, str]:
    return {"IMAGEFLEET_REDIS_URL": cluster.url, "IMAGEFLEET_NAMESPACE": namespace}


def test_the_doctor_describes_each_master_and_names_its_lanes(
    environment: dict[str, str], cluster: RedisCluster, namespace: str
) -> None:
    report = CliRunner().invoke(main, ["doctor"], env=environment)
    assert report.exit_code == 0, report.output
    assert re.search(
        r"^ok    redis +3 masters with 0 replicas, 8 lanes, and a master for 16,384 of 16,384",
        report.output,
        re.M,
    )
    for master in cluster.masters:
        address = f"127.0.0.1:{master.port}"
        assert re.search(
            rf"^ok    redis +{address} \(lanes [^;]*; 0 replicas\): valkey 9.* ms a command$",
            report.output,
            re.M,
        ), report.output
        assert f"warn  redis      {address}: Redis has a master without a replica" in report.output
    with connect_lanes(cluster.url, namespace).first.client as client:
        assert not client.keys(f"{namespace}*")


def test_the_doctor_says_what_endangers_the_lanes_of_a_master(
    environment: dict[str, str], cluster: RedisCluster, namespace: str
) -> None:
    first = connect_lanes(cluster.url, namespace, lanes=4).first
    first.client.set(f"{first.namespace}:lanes", 4)
    with cluster.master_of(first.namespace).client() as master:
        master.config_set("cluster-require-full-coverage", "yes")
        master.config_set("min-replicas-to-write", 1)
        found = [
            each.line("redis") for each in check_redis(_settings(environment), runs_celery=True)
        ]
        master.config_set("cluster-require-full-coverage", "no")
        master.config_set("min-replicas-to-write", 0)
    assert any(re.search("^warn .* while any slot has no master, all lanes stop", e) for e in found)
    assert any(
        re.search("^FAIL .* takes no jobs: min-replicas-to-write asks", each) for each in found
    )
    assert any(re.search("^FAIL .* was made with 4 lanes; set it to 4", each) for each in found)


def test_the_doctor_names_lanes_that_are_down(tmp_path: Path, namespace: str) -> None:
    with RedisCluster(tmp_path) as cluster:
        environment = {"IMAGEFLEET_REDIS_URL": cluster.url, "IMAGEFLEET_NAMESPACE": namespace}
        lanes = connect_lanes(cluster.url, namespace)
        masters = [cluster.master_of(lane.namespace) for lane in lanes]
        masters[1].kill()
        down = [str(number) for number, each in enumerate(masters) if each is masters[1]]
        report = CliRunner().invoke(main, ["doctor"], env=environment)
    assert report.exit_code == 1
    named = re.search(
        "^FAIL  redis +lanes (.*) wait until a replica takes over", report.output, re.M
    )
    assert named is not None, report.output
    assert re.findall(r"\d", named[1]) == down


def _settings(environment: dict[str, str]) -> Settings:
    return Settings.load(
        redis_url=environment["IMAGEFLEET_REDIS_URL"],
        namespace=environment["IMAGEFLEET_NAMESPACE"],
    )
