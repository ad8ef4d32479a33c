"""Built-in workloads: `index` names them without torch, one torch module a family builds them."""
