"""Ray's own in-process cluster, in a process of its own: `python ray_cluster.py one=1 two=1`.

Names nodes and how many CPUs they say they have; a name that ends in a digit is not given to Ray. It writes the
cluster's address, then obeys lines on stdin, each answered by one: `add NAME=CPUS`, `kill NAME`; it ends with stdin.
"""

import sys

from ray.cluster_utils import Cluster


def main() -> None:
    cluster, nodes = Cluster(initialize_head=False), {}

    def add(text: str) -> None:
        name, _, cpus = text.partition("=")
        named = {} if name[-1].isdigit() else {"node_name": name}
        nodes[name] = cluster.add_node(num_cpus=int(cpus), include_dashboard=False, **named)

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
