"""Ray's own in-process cluster, in a process of its own: `python ray_cluster.py one=1 two=1`.

Names nodes, how many CPUs they say they have and, as in `one=2,2`, GPUs, which only Ray believes in. It writes the
cluster's address, then obeys lines on stdin, each answered by one: `add NAME=CPUS`, `kill NAME`; it ends with stdin.
"""

import sys

from ray.cluster_utils import Cluster


def main() -> None:
    cluster, nodes = Cluster(initialize_head=False), {}

    def add(text: str) -> None:
        name, _, has = text.partition("=")
        cpus, _, gpus = has.partition(",")
        nodes[name] = cluster.add_node(
            num_cpus=int(cpus), num_gpus=int(gpus or 0), node_name=name, labels={"called": name},
            node_ip_address="127.0.0.1", include_dashboard=False,
        )  # fmt: skip

    for text in sys.argv[1:]:
        add(text)
    print(cluster.address, flush=True)
    for line in sys.stdin:
        verb, name = line.split()
        if verb == "add":
            add(name)
        else:
            cluster.remove_node(nodes.pop(name), allow_graceful=False)
        print("done", flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    main()
